"""Filters: what is accepted is applied exactly; everything else is given back."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from millstream.spark.filters import split_filters
from millstream.spark.wanted import Predicate

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARE = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


@given(st.lists(st.tuples(st.sampled_from(list(COMPARE)), st.integers(-5, 25)), max_size=4))
def test_offset_filters_accept_exactly_what_they_say(terms):
    predicate, left = split_filters([kind(("offset",), value) for kind, value in terms])
    assert left == []
    for offset in range(20):
        expected = all(COMPARE[kind](offset, value) for kind, value in terms)
        assert (predicate.from_offset <= offset < predicate.end_offset) == expected


@given(st.lists(st.tuples(st.sampled_from(list(COMPARE)), st.integers(-3000, 9000)), max_size=4))
def test_time_filters_accept_exactly_what_they_say_down_to_the_microsecond(terms):
    filters = [kind(("timestamp",), EPOCH + timedelta(microseconds=value)) for kind, value in terms]
    predicate, left = split_filters(filters)
    assert left == []
    for ms in range(-5, 12):
        expected = all(COMPARE[kind](ms * 1000, value) for kind, value in terms)
        assert (predicate.from_timestamp <= ms <= predicate.last_timestamp) == expected


def test_partitions_and_topics():
    predicate, left = split_filters(
        [EqualTo(("partition",), 3), In(("topic",), ("a", "b")), EqualNullSafe(("topic",), "b")]
    )
    assert left == []
    assert predicate == Predicate(partitions=frozenset({3}), topics=frozenset({"b"}))


@pytest.mark.parametrize(
    "term",
    [
        EqualTo(("key",), b"x"),
        IsNotNull(("key",)),
        IsNotNull(("value",)),
        IsNull(("offset",)),
        Not(EqualTo(("partition",), 1)),
        Not(IsNotNull(("offset",))),
        GreaterThan(("partition",), 1),
        In(("partition",), (1, None)),
        EqualTo(("offset",), None),
        EqualTo(("offset",), True),
        EqualTo(("offset",), 1.5),
        GreaterThan(("timestamp",), datetime(2020, 1, 1)),  # noqa: DTZ001
        StringStartsWith(("topic",), "a"),
        EqualTo(("headers", "key"), "x"),
    ],
)
def test_everything_else_is_left_to_spark(term):
    assert split_filters([term]) == (Predicate(), [term])


@pytest.mark.parametrize("column", ["topic", "partition", "offset", "timestamp", "timestampType"])
def test_what_is_never_null_needs_no_test(column):
    assert split_filters([IsNotNull((column,))]) == (Predicate(), [])
