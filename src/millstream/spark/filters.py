"""Filters that Spark pushes down: those that the source applies exactly, and those left to Spark.

Spark passes the terms of a conjunction and removes the accepted ones from its plan. A term is therefore accepted only
if every row that it rejects is rejected here. Offsets and partitions narrow the plan; times are checked row by row
while decoding, and exclude whole segment files. Other terms are returned to Spark.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from millstream.spark.wanted import NEVER_NULL, NO_LOWER_BOUND, NO_UPPER_BOUND, Predicate

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def split_filters(filters: Sequence[Filter]) -> tuple[Predicate, list[Filter]]:
    """The predicate of the accepted filters, and the filters left to Spark."""
    predicate = Predicate()
    left: list[Filter] = []
    for term in filters:
        narrowed = _narrow(predicate, term)
        if narrowed is None:
            left.append(term)
        else:
            predicate = narrowed
    return predicate, left


def _narrow(predicate: Predicate, term: Filter) -> Predicate | None:
    """The predicate with one more term; None if the term cannot be applied here."""
    attribute: tuple[str, ...] = getattr(term, "attribute", ())
    if isinstance(term, Not) or len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(term, IsNotNull):
        return predicate if column in NEVER_NULL else None
    if column in ("partition", "topic"):
        return _narrow_place(predicate, column, term)
    if isinstance(term, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        if column == "offset" and _is_int(term.value):
            low, end = _integers(term, term.value, term.value)
            return msgspec.structs.replace(
                predicate, from_offset=max(predicate.from_offset, low), end_offset=min(predicate.end_offset, end)
            )
        if column == "timestamp" and isinstance(term.value, datetime) and term.value.tzinfo is not None:
            micros = (term.value - _EPOCH) // _MICROSECOND
            # A row's time is a whole number of ms: round inwards.
            low, end = _integers(term, -(-micros // 1000), micros // 1000)
            return msgspec.structs.replace(
                predicate,
                from_timestamp=max(predicate.from_timestamp, low),
                last_timestamp=min(predicate.last_timestamp, end if end == NO_UPPER_BOUND else end - 1),
            )
    return None


def _narrow_place(predicate: Predicate, column: str, term: Filter) -> Predicate | None:
    right_type = _is_int if column == "partition" else _is_str
    if isinstance(term, EqualTo | EqualNullSafe) and right_type(term.value):
        values = frozenset([term.value])
    elif isinstance(term, In) and all(right_type(value) for value in term.value):
        values = frozenset(term.value)
    else:
        return None
    if column == "partition":
        return msgspec.structs.replace(predicate, partitions=_both(predicate.partitions, values))
    return msgspec.structs.replace(predicate, topics=_both(predicate.topics, values))


def _integers(term: Filter, ceiling: int, floor: int) -> tuple[int, int]:
    """Half-open range of integers that satisfy a comparison with a value between ``floor`` and ``ceiling``."""
    if isinstance(term, GreaterThan):
        return floor + 1, NO_UPPER_BOUND
    if isinstance(term, GreaterThanOrEqual):
        return ceiling, NO_UPPER_BOUND
    if isinstance(term, LessThan):
        return NO_LOWER_BOUND, ceiling
    if isinstance(term, LessThanOrEqual):
        return NO_LOWER_BOUND, floor + 1
    return ceiling, floor + 1


def _both(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_str(value: object) -> bool:
    return isinstance(value, str)
