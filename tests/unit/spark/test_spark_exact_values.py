"""No conversion of a value silently makes another one of it: each is tried at its limits.

Values of JSON go into declared columns, values of one schema's version into the columns of another one, and JSON text
into columns with a type. What a column cannot hold is a fault of its record, and the reason names the column.
"""

import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schema_support import Schemas, json_bytes, json_schema, message_class, proto

from millstream.registry.model import Schema
from millstream.spark.declared import parse_schema
from millstream.spark.fitters import fitter
from millstream.spark.fitting import JSON_TEXT, Member, Misfit
from millstream.spark.schemas import ProtobufDecoder, members_of
from millstream.spark.schemas.decoded import columns_of
from millstream.spark.schemas.registry_decoder import registry_decoder
from millstream.spark.schemas.source import Resolved
from millstream.spark.values import JsonDecoder

FIELDS = parse_schema(
    "d double, f float, l bigint, i int, m decimal(38,0), c decimal(10,2), s struct<d: double, many: array<float>>,"
    "by map<string, double>, t timestamp, x string"
)
LOST = "keeps no more of its digits"


def decoded(text):
    """The row, the reason and the place of one record."""
    found = JsonDecoder(FIELDS).decode(pa.array([text.encode(), b'{"d": 1.5}'], pa.binary()))
    rows, errors, places = found.columns.to_pylist(), found.errors.to_pylist(), found.places.to_pylist()
    assert (rows[1]["d"], errors[1]) == (1.5, None)
    return rows[0], errors[0], places[0]


@pytest.mark.parametrize(
    ("column", "number", "kept"),
    [
        ("d", "9007199254740992", 2.0**53), ("d", "-9007199254740992", -(2.0**53)),
        ("d", "9007199254740994", 2.0**53 + 2), ("d", "1152921504606846976", 2.0**60),
        ("d", "18446744073709552000", 2.0**64), ("d", "1e23", 1e23), ("d", "9.9999999999999992E+22", 1e23),
        ("d", "0.1", 0.1), ("d", "0.12345678901234567890", 0.12345678901234568),
        ("d", "1234567.1234567890123456", 1234567.123456789),
        ("d", "1.7976931348623157e308", 1.7976931348623157e308), ("d", "5e-324", 5e-324), ("d", "0e-999", 0.0),
        ("f", "16777216", 2.0**24), ("f", "16777218", 2.0**24 + 2), ("f", "3.4028235e38", 3.4028234663852886e38),
        ("f", "123456790", 123456792.0), ("f", "0.1", 0.10000000149011612), ("f", "1e-45", 1.401298464324817e-45),
        ("l", "9223372036854775807", 2**63 - 1), ("l", "-9223372036854775808", -(2**63)),
        ("m", "9" * 38, Decimal("9" * 38)), ("c", "12345678.90", Decimal("12345678.90")),
    ],
)  # fmt: skip
def test_a_number_that_a_column_keeps_is_its_value(column, number, kept):
    row, error, _ = decoded(f'{{"{column}": {number}}}')
    assert (row[column], error) == (kept, None)


@pytest.mark.parametrize(
    ("column", "number", "reason"),
    [
        ("d", "9007199254740993", "9007199254740993 would become 9007199254740992.0 in a column of type double"),
        ("d", "-9007199254740993", LOST), ("d", "12345678901234567.89", LOST), ("d", "18446744073709551615", LOST),
        ("d", "1e400", "out of range"), ("d", "1e-400", "would become 0"),
        ("d", "0." + "0" * 400 + "1", "would become 0"),
        ("f", "16777217", LOST), ("f", "123456789.5", LOST), ("f", "3.4028236e38", "`$.f`"),
        ("f", "1e-60", "would become 0"),
        ("l", "9223372036854775808", "`$.l`"), ("l", "1.5", "`$.l`"), ("i", "2147483648", "`$.i`"),
        ("m", "1" + "0" * 38, "`$.m`"), ("m", "0.5", "`$.m`"), ("c", "1.239", "`$.c`"), ("c", "123456789", "`$.c`"),
    ],
)  # fmt: skip
def test_a_number_that_a_column_does_not_keep_is_a_fault_that_names_it(column, number, reason):
    row, error, place = decoded(f'{{"{column}": {number}, "x": "kept apart"}}')
    assert row[column] is None
    assert reason in error
    assert place in (column, None)


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"s": {"d": 2**53 + 1}}, "s.d"), ({"s": {"many": [1.5, 2**24 + 1]}}, "s.many[1]"),
        ({"by": {"k": 2**53 + 1}}, "by['k']"),
    ],
)  # fmt: skip
def test_a_fault_within_a_nested_value_has_its_place(record, place):
    _, error, found = decoded(json.dumps(record))
    assert LOST in error
    assert found == place


def test_long_digits_in_texts_are_no_numbers():
    row, error, _ = decoded('{"x": "9007199254740993", "d": 0.5, "t": "2026-01-01T00:00:00.123456789012345678Z"}')
    assert (row["x"], row["d"], error) == ("9007199254740993", 0.5, None)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([repr, "{:.17g}".format, "{:.20e}".format]))
def test_every_double_is_kept_in_each_way_to_write_it(number, text):
    row, error, _ = decoded(f'{{"d": {text(number)}}}')
    assert (row["d"], error) == (number, None)


@given(st.integers(-(2**70), 2**70))
def test_an_integer_in_a_double_is_that_integer_or_a_fault(number):
    row, error, _ = decoded(f'{{"d": {number}}}')
    if error is None:
        assert row["d"] == number or float(repr(row["d"])) == float(number)
        assert int(row["d"]) == number or str(number) == f"{Decimal(repr(row['d'])):f}".removesuffix(".0")
    else:
        assert int(float(number)) != number


def test_a_number_of_a_json_schema_is_kept_or_named():
    held = json_schema({"n": {"type": "number"}, "i": {"type": "integer"}})
    values = [json_bytes(1, {"n": n, "i": i}) for n, i in ((2**53 + 1, 1), (0.1, 2**63), (2**53, 2**63 - 1))]
    found = registry_decoder(Schemas(held), "s").decode(pa.array(values, pa.binary()))
    assert found.columns.to_pylist() == [None, None, {"n": 2.0**53, "i": 2**63 - 1}]
    assert found.places.to_pylist() == ["n", "i", None]


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("source", "target", "kept", "lost"),
    [
        (pa.int64(), pa.int32(), [2**31 - 1, -(2**31)], [2**31, -(2**31) - 1]),
        (pa.int64(), pa.float64(), [2**53, -(2**53)], [2**53 + 1, 2**62 + 1]),
        (pa.int64(), pa.float32(), [2**24], [2**24 + 1]),
        (pa.float64(), pa.int64(), [-(2.0**63), 5.0], [2.0**63, 0.5, NAN, INF]),
        (pa.float64(), pa.float32(), [0.5, INF, -0.0, NAN], [0.1, 1e39, 5e-324]),
        (pa.int64(), pa.decimal128(10, 2), [10**8 - 1], [10**8]),
        (pa.int64(), pa.decimal128(38, 0), [2**63 - 1, -(2**63)], []),
        (pa.decimal128(38, 2), pa.int64(), [Decimal("5.00")], [Decimal("5.01"), Decimal(2**63)]),
        (pa.decimal128(38, 4), pa.decimal128(38, 2), [Decimal("1.2500")], [Decimal("1.2501")]),
        (pa.decimal128(38, 0), pa.decimal128(38, 2), [Decimal(10**36 - 1)], [Decimal(10**36)]),
        (pa.decimal128(10, 2), pa.float64(), [], [Decimal("0.50")]),
        (pa.float64(), pa.decimal128(10, 2), [], [0.5]),
        (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC"), [1000], [1001]),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), [], [0]),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), [], [0]),
        (pa.timestamp("us", "UTC"), pa.date32(), [], [0]),
        (pa.date32(), pa.timestamp("us", "UTC"), [0, -719162], [2**31 - 1]),
        (pa.binary(), pa.string(), [b"\xc3\xa9"], [b"\xff"]),
        (pa.binary(), pa.binary(4), [b"abcd"], [b"abc"]),
        (pa.string(), pa.int64(), [], ["5"]),
        (pa.bool_(), pa.int64(), [], [True]),
    ],
)  # fmt: skip
def test_values_of_one_type_are_the_same_in_another_one_or_faults(source, target, kept, lost):
    fit = fitter(Member("a", source), target, None, "a")
    for value in kept:
        array = pa.array([value], source)
        found = fit(array)
        assert found.type == target
        assert str(found.cast(source, safe=False).to_pylist()) == str(array.to_pylist())  # as text, NaN equals itself
    for value in lost:
        with pytest.raises(Misfit):
            fit(pa.array([value], source))


@pytest.mark.parametrize(
    ("text", "target", "kept"),
    [
        ("5", pa.int64(), 5), ("0.5", pa.float64(), 0.5), ("1.25", pa.decimal128(5, 2), Decimal("1.25")),
        ('"aGk="', pa.binary(), b"hi"), ('{"a": 1}', pa.struct([("a", pa.int32())]), {"a": 1}),
        ("[1, null]", pa.list_(pa.int64()), [1, None]),
    ],
)  # fmt: skip
def test_json_text_is_read_into_a_column_as_a_record_is(text, target, kept):
    assert fitter(Member("a", JSON_TEXT), target, None, "a")(pa.array([text, None])).to_pylist() == [kept, None]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("1.5", pa.int64()), ("9007199254740993", pa.float64()), ("1e39", pa.float32()),
        ("5", pa.timestamp("us", "UTC")),
        ('"é"', pa.binary()), ("true", pa.int64()), ("1.239", pa.decimal128(5, 2)), ("5", pa.string()),
        ("[1.5]", pa.list_(pa.int64())),
    ],
)  # fmt: skip
def test_json_text_that_a_column_does_not_keep_is_a_fault(text, target):
    fit = fitter(Member("a", JSON_TEXT), target, None, "a")
    if target == pa.string():
        assert fit is None, "text stays text"
        return
    with pytest.raises(Misfit) as raised:
        fit(pa.array([None, text]))
    assert raised.value.column == "a"


@pytest.mark.parametrize(
    ("kind", "default", "table", "kept"),
    [
        ("long", 5, pa.int32(), 5), ("long", 1 << 40, pa.int32(), None), ("double", 1.5, pa.int64(), None),
        ("double", 0.5, pa.float32(), 0.5), ("double", 0.1, pa.float32(), None),
        ("int", 3, pa.decimal128(5, 2), Decimal("3.00")),
    ],
)  # fmt: skip
def test_a_default_is_the_same_in_the_tables_column_or_a_fault(kind, default, table, kept):
    written = Member("", pa.struct([("id", pa.int64())]), (Member("id", pa.int64()),))
    arrow = {"long": pa.int64(), "double": pa.float64(), "int": pa.int32()}[kind]
    reader = Member("", pa.struct([]), (Member("id", pa.int64()), Member("n", arrow, default=default)))
    fit = fitter(written, pa.struct([("id", pa.int64()), ("n", table)]), reader)
    rows = pa.array([{"id": 1}], written.type)
    if kept is None:
        with pytest.raises(Misfit) as raised:
            fit(rows)
        assert raised.value.column == "n"
    else:
        assert fit(rows).to_pylist() == [{"id": 1, "n": kept}]


def protobuf_rows(resolved, *contents):
    reader = Schemas(resolved).latest("s")
    decoder = ProtobufDecoder(Schemas(resolved), reader, columns=columns_of(members_of(reader, None)))
    found = decoder.decode(pa.array([b"\0\0\0\0\x01\0" + content for content in contents], pa.binary()))
    return found.columns.to_pylist(), found.errors.to_pylist()


def test_protobuf_numbers_at_their_limits_are_their_values():
    body = "message N { uint64 u = 1; int64 i = 2; uint32 v = 3; float f = 4; fixed64 x = 5; sint64 z = 6; "
    body += "google.protobuf.Duration d = 7; }"
    held = proto('import "google/protobuf/duration.proto"; ' + body)
    low = message_class(held, "p.N")(i=-(2**63), z=-(2**63), f=1.401298464324817e-45)
    low.d.seconds, low.d.nanos = -315576000000, -999999999
    high = message_class(held, "p.N")(u=2**64 - 1, i=2**63 - 1, v=2**32 - 1, f=INF, x=2**64 - 1, z=2**63 - 1)
    (first, second), errors = protobuf_rows(held, low.SerializeToString(), high.SerializeToString())
    assert errors == [None, None]
    assert (first["i"], first["z"], first["f"]) == (-(2**63), -(2**63), 1.401298464324817e-45)
    assert first["d"] == {"seconds": -315576000000, "nanos": -999999999}
    assert (second["u"], second["x"], second["v"], second["f"]) == (
        Decimal(2**64 - 1),
        Decimal(2**64 - 1),
        2**32 - 1,
        INF,
    )


def test_protobuf_bytes_that_the_schema_does_not_know_are_a_fault_and_open_enums_keep_their_numbers():
    body = "enum E { A = 0; B = 1; } message N { E e = 1; }"
    new = proto(body.replace("E e = 1;", "E e = 1; int64 more = 9;"))
    content = message_class(new, "p.N")(e=1, more=5).SerializeToString()
    rows, errors = protobuf_rows(proto(body), content, message_class(new, "p.N")(e=77).SerializeToString())
    assert (rows[0], rows[1]) == (None, {"e": "77"})
    assert "has a field, or a number of an enum, that the schema does not have" in errors[0]
    closed = Resolved(Schema(f'syntax = "proto2"; package p; {body.replace("E e", "optional E e")}', "PROTOBUF"))
    _, errors = protobuf_rows(closed, message_class(new, "p.N")(e=77).SerializeToString())
    assert "a number of an enum" in errors[0], "a closed enum has no place for it"
