"""Decoding: each record by itself, every fault with its reason, nothing lost on the way."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.declared import parse_schema
from millstream.spark.values import JsonDecoder, RawDecoder, StringDecoder

FIELDS = parse_schema(
    "id bigint not null, s tinyint, name string, at timestamp, day date, price decimal(5,2), raw binary,"
    "tags array<struct<a: int, b: map<string, timestamp>>>, f float, any json"
)


def decode(*values):
    decoded = JsonDecoder(FIELDS).decode(pa.array(values, pa.binary()))
    return decoded.columns.to_pylist(), decoded.errors.to_pylist()


def test_a_record_becomes_typed_columns():
    value = {
        "id": 1, "s": -128, "name": "x", "at": "2013-01-01T10:00:00+02:00", "day": "2013-01-01", "price": 1.25,
        "raw": "aGk=", "tags": [{"a": 1, "b": {"k": "2013-01-01T10:00:00Z"}}, None], "more": 1,
    }  # fmt: skip
    (row,), (error,) = decode(json.dumps(value).encode())
    assert error is None
    assert row["at"] == dt.datetime(2013, 1, 1, 8, tzinfo=dt.UTC)
    assert (row["day"], row["price"], row["raw"]) == (dt.date(2013, 1, 1), Decimal("1.25"), b"hi")
    assert row["tags"] == [{"a": 1, "b": [("k", dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC))]}, None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field"),
        (b'{"id": "1"}', "`$.id`"),
        (b'{"id": 1.5}', "`$.id`"),
        (b'{"id": 9223372036854775808}', "`$.id`"),
        (b'{"id": 1, "s": 128}', "`$.s`"),
        (b'{"id": 1, "price": 1234.5}', "`$.price`"),
        (b'{"id": 1, "price": 1.234}', "`$.price`"),
        (b'{"id": 1, "raw": "?"}', "base64"),
        (b'{"id": 1, "f": 1e39}', "`$.f`"),
        (b'{"id": 1, "f": 1e400}', "number"),
        (b'{"id": 1, "tags": [{}, {"b": {"k": "0001-01-01T00:00:00+14:00"}}]}', "`$.tags[1].b['k']`"),
        (b'{"id": 1, "any": {"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "recursion"),
        (b'{"id": 1, "any": "\xff"}', "utf-8"),
        (b'{"id": 1, "name": "\xff"}', "utf-8"),
        (b'{"id": 1, "at": "yesterday"}', "`$.at`"),
        (b'{"id": 1, "at": "0001-01-01T00:00:00+14:00"}', "`$.at`"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"id":' + b"[" * 100_000, "JSON"),
        (None, "no value"),
    ],
)
def test_a_fault_has_a_reason_and_touches_no_neighbour(value, reason):
    rows, errors = decode(b'{"id": 1, "name": "before"}', value, b'{"id": 2, "name": "after"}')
    assert (errors[0], errors[2]) == (None, None)
    assert reason.lower() in errors[1].lower() or "id" in errors[1]
    assert [rows[0]["name"], rows[2]["name"]] == ["before", "after"]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2024-01-01T00:00:00.123456789Z", dt.datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=dt.UTC)),
        ("2024-01-01T00:00:00.9999999+02:00", dt.datetime(2023, 12, 31, 22, 0, 0, 999999, tzinfo=dt.UTC)),
        ("1969-12-31T23:59:59.9999999", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)),
        ("9999-12-31T23:59:59.999999999Z", dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)),
    ],
)
def test_a_time_with_nanoseconds_keeps_its_microseconds_and_never_becomes_a_later_one(text, micros):
    (row,), (error,) = decode(json.dumps({"id": 1, "at": text, "name": text}).encode())
    assert (row["at"], row["name"], error) == (micros, text, None)


def test_the_largest_float_is_one_in_each_way_to_write_it():
    (*rows, _), (*errors, error) = decode(b'{"id": 1, "f": 3.4028235e38}', b'{"id": 1, "f": -3.4028234663852886e38}',
                                            b'{"id": 1, "f": 3.4028236e38}')  # fmt: skip
    assert [row["f"] for row in rows] == [3.4028234663852886e38, -3.4028234663852886e38]
    assert errors == [None, None]
    assert "`$.f`" in error


def test_a_tombstone_is_a_row_of_nulls_where_nothing_is_required():
    decoded = JsonDecoder(parse_schema("a int")).decode(pa.array([None], pa.binary()))
    assert (decoded.columns.to_pylist(), decoded.errors.to_pylist()) == ([{"a": None}], [None])


def test_text_that_is_not_utf8_is_an_error_of_its_record():
    decoded = StringDecoder().decode(pa.array([b"a", b"\xff", None], pa.binary()))
    assert [row["value"] for row in decoded.columns.to_pylist()] == ["a", None, None]
    assert [error is None for error in decoded.errors.to_pylist()] == [True, False, True]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=60), st.just(b'{"id": 7}'))))
def test_any_bytes_give_a_row_or_a_reason_for_each_record(values):
    array = pa.array(values, pa.binary())
    for decoder in (RawDecoder(), StringDecoder(), JsonDecoder(FIELDS)):
        decoded = decoder.decode(array)
        assert len(decoded.columns) == len(decoded.errors) == len(values)
    alone = [JsonDecoder(FIELDS).decode(pa.array([value], pa.binary())).errors[0].as_py() for value in values]
    assert JsonDecoder(FIELDS).decode(array).errors.to_pylist() == alone
