"""The filter language of the console: what it finds, and what it refuses."""

import time

import pytest

from millstream.console.filters import DEPTH_MAX, LENGTH_MAX, FilterError, Subject, parse

DOCUMENT = {"order": {"total": 12.5, "items": [{"sku": "a-1"}, {"sku": "b-2"}], "paid": True}, "a b": "x", "n": None}
SUBJECT = Subject(
    {
        "key": "eu-17",
        "value": DOCUMENT,
        "headers": {"trace": "t1"},
        "topic": "orders",
        "partition": 3,
        "offset": 40,
        "timestamp": 1_769_846_400_000,  # 2026-01-31T08:00Z
        "size": 90,
    },
    {"key": "eu-17", "value": '{"order": …}'},
)


@pytest.mark.parametrize(
    "text",
    [
        "value.order.total > 3 and key ~ '^eu-'",
        "value.order.items[1].sku = 'b-2'",
        "value.order.items[-1].sku == 'b-2'",
        'value["a b"] = "x"',
        "value.order.paid",
        "not value.order.missing",
        "value.n = null and value.missing.deeper = null",
        "headers.trace in ['t0', 't1']",
        "key contains 'u-1' and value.order contains 'total'",
        "partition = 3 and offset >= 40 and offset <= 40 and offset != 41",
        'timestamp >= "2026-01-31T08:00Z" and timestamp < "2026-01-31T08:00:01"',
        "timestamp = 1769846400000",
        "value ~ 'order' and key !~ 'us'",
        "(partition = 9 or size = 90) and not (topic = 'x')",
        "not not value.order.paid",
        "value.order.total = 1.25e1",
        'key = "eu\\-17"',
    ],
)
def test_what_matches(text):
    assert parse(text)(SUBJECT)


@pytest.mark.parametrize(
    "text",
    [
        "value.order.total > '3'",  # of different types, none is less
        "value.order.paid = 1",
        "value.missing > 0",
        "value.missing ~ '.'",
        "value.order.items[7]",
        "key.anything",
        "value.order.items.sku",
        "partition in [1, 2]",
        "value contains 3",
    ],
)
def test_what_does_not_match(text):
    assert not parse(text)(SUBJECT)


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("value.a >", 9, "missing at the end"),
        ("value.a > > 3", 10, "'>'"),
        ("__import__('os')", 0, "a path starts with"),
        ("value.a; value.b", 7, "';'"),
        ("value.a value.b", 8, "'and' or 'or'"),
        ("key ~ '('", 4, "is no pattern"),
        ("key ~ value", 4, "a pattern in quotes"),
        ("timestamp > 'soon'", 10, "is no time"),
        ("(key", 4, ") is missing"),
        ("value.[1]", 6, "a name is missing"),
        ("key in [value]", 13, "texts and numbers"),
        ("", 0, "missing at the end"),
    ],
)
def test_what_is_refused_says_where(text, position, said):
    with pytest.raises(FilterError) as refusal:
        parse(text)
    assert refusal.value.position == position
    assert said in str(refusal.value)


def test_the_bounds_hold():
    with pytest.raises(FilterError, match="levels"):
        parse("(" * (DEPTH_MAX + 2) + "key" + ")" * (DEPTH_MAX + 2))
    with pytest.raises(FilterError, match="levels"):
        parse("key in " + "[" * 500)
    with pytest.raises(FilterError, match="characters"):
        parse("key or " * LENGTH_MAX)
    assert parse("not " * 400 + "key")(SUBJECT)


def test_a_pattern_that_backtracks_elsewhere_is_searched_in_linear_time():
    hostile = SUBJECT._replace(texts={"key": "a" * 50_000 + "!", "value": ""})
    began = time.process_time()
    assert not parse("key ~ '^(a+)+$'")(hostile)
    assert time.process_time() - began < 5
