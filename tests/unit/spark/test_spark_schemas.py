"""Records in Confluent's wire format to Arrow columns, by two versions of a schema and with broken ones between."""

import datetime as dt
import decimal
import io
import json
import random

import fastavro
import pyarrow as pa
import pytest
from schema_support import Schemas, avro_bytes, json_bytes, json_schema, message_class, proto

from millstream.errors import Rejected
from millstream.registry.formats.parsed import Named
from millstream.registry.model import Schema
from millstream.spark.schemas import AvroDecoder, ProtobufDecoder, registry_decoder
from millstream.spark.schemas.source import Resolved


def avro(*fields, references=()):
    described = [{"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields]
    text = json.dumps({"type": "record", "name": "Order", "fields": described})
    return Resolved(Schema(text), references)


V1 = avro(("id", "long"))
V2 = avro(("id", "long"), ("item", ["null", "string"], None))
DAY = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)


def test_records_of_two_versions_come_out_as_the_reader_schema_has_it():
    schemas = Schemas(V1, V2)
    values = [avro_bytes(1, V1, {"id": 1}), avro_bytes(2, V2, {"id": 2, "item": "tea"}), None]
    decoded = registry_decoder(schemas, "orders-value").decode(pa.array(values, pa.binary()))
    assert decoded.columns.to_pylist() == [{"id": 1, "item": None}, {"id": 2, "item": "tea"}, None]
    assert decoded.errors.null_count == 3
    assert decoded.boundary is None


def test_decoding_stops_before_a_record_that_needs_a_wider_table_and_goes_on():
    schemas = Schemas(V1)
    decoder = registry_decoder(schemas, "orders-value")
    schemas.held.append(V2)
    values = [
        avro_bytes(1, V1, {"id": 1}),
        b"junk",
        avro_bytes(2, V2, {"id": 2, "item": "tea"}),
        avro_bytes(1, V1, {"id": 3}),
    ]
    first = decoder.decode(pa.array(values, pa.binary()))
    assert first.columns.to_pylist() == [{"id": 1}, None]
    assert [error is None for error in first.errors.to_pylist()] == [True, False]
    assert (first.boundary.row, first.boundary.schema_id) == (2, 2)
    assert first.boundary.fields == pa.schema([("item", pa.string())])
    rest = registry_decoder(schemas, "orders-value").decode(pa.array(values[first.boundary.row :], pa.binary()))
    assert rest.columns.to_pylist() == [{"id": 2, "item": "tea"}, {"id": 3, "item": None}]
    narrow = AvroDecoder(schemas, V1, stop_at_boundary=False).decode(pa.array(values, pa.binary()))
    assert narrow.columns.to_pylist() == [{"id": 1}, None, {"id": 2}, {"id": 3}]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "is empty"),
        (b"\0\0", "begins with 00 00"),
        (b"{}xxxxxx", "begins with 7b 7d"),
        (b"\0\0\0\0\x63\x02", "no schema with id 99"),
        (b"\0\0\0\0\x01", "not readable with schema 1"),
        (b"\0\0\0\0\x01\x02\x02", "1 bytes are left"),
    ],
)
def test_a_record_that_does_not_decode_says_why_and_costs_no_other(value, why):
    good = avro_bytes(1, V1, {"id": 1})
    decoded = registry_decoder(Schemas(V1), "s").decode(pa.array([good, value, good], pa.binary()))
    assert decoded.columns.to_pylist() == [{"id": 1}, None, {"id": 1}]
    assert why in decoded.errors[1].as_py()
    assert decoded.errors.null_count == 2


def test_avro_types():
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    schema = avro(
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("uuid", {"type": "string", "logicalType": "uuid"}),
        ("list", {"type": "array", "items": ["null", inner]}),
        ("map", {"type": "map", "values": "double"}),
        ("again", ["null", "Inner"]),
        ("number", ["int", "long"]),
        ("fixed", {"type": "fixed", "name": "F", "size": 2}),
    )
    row = {
        "e": "B", "at": DAY, "day": dt.date(2026, 1, 2), "price": decimal.Decimal("12.34"), "uuid": "u",
        "list": [{"x": 1}, None], "map": {"a": 0.5}, "again": {"x": 2}, "number": 5, "fixed": b"ab",
    }  # fmt: skip
    plain = {**row, "at": 1767323045678, "day": 20455, "price": b"\x04\xd2"}
    decoder = registry_decoder(Schemas(schema), "s")
    text = json.loads(schema.schema.text)
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema({**text, "name": "Plain"}), row)
    assert plain  # what the logical types stand for
    decoded = decoder.decode(pa.array([b"\0\0\0\0\x01" + data.getvalue()], pa.binary()))
    assert decoded.errors.to_pylist() == [None]
    assert decoded.columns.to_pylist() == [{**row, "map": [("a", 0.5)]}]


def test_a_schema_without_a_message_is_refused():
    with pytest.raises(Rejected, match="no message"):
        ProtobufDecoder(Schemas(), proto("enum E { A = 0; }"))


P1 = proto(
    'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; message Order { int64 id = 1; '
    "map<string, int32> counts = 2; message Line { string item = 1; } repeated Line lines = 3; E e = 4; optional "
    "string note = 5; google.protobuf.Timestamp at = 6; google.protobuf.Int32Value w = 7; uint64 u = 8; bytes b = 9; "
    "enum E { A = 0; B = 1; } }"
)
P2 = proto(P1.schema.text.split("package p; ")[1].replace("bytes b = 9;", "bytes b = 9; double more = 10;"))


def test_protobuf_types():
    order = message_class(P1, "p.Order")(id=5, counts={"a": 1}, e=1, u=(1 << 64) - 1, b=b"x")
    order.lines.add(item="tea")
    order.at.FromDatetime(DAY)
    order.w.value = 0
    decoder = registry_decoder(Schemas(P1), "s")
    wrapped = b"\0\0\0\0\x01\0" + order.SerializeToString()
    nested = b"\0\0\0\0\x01\x04\0\x02" + order.lines[0].SerializeToString()
    empty = b"\0\0\0\0\x01\0"
    decoded = decoder.decode(
        pa.array([wrapped, nested, empty, b"\0\0\0\0\x01\0\xff", empty + b"\x0a\x7f"], pa.binary())
    )
    first, second, third, *broken = decoded.columns.to_pylist()
    assert first == {
        "id": 5, "counts": [("a", 1)], "lines": [{"item": "tea"}], "e": "B", "note": None, "at": DAY, "w": 0,
        "u": decimal.Decimal((1 << 64) - 1), "b": b"x",
    }  # fmt: skip
    assert (second, broken) == (None, [None, None])
    assert (third["id"], third["e"], third["note"], third["w"], third["lines"]) == (0, "A", None, None, [])
    errors = decoded.errors.to_pylist()
    assert "p.Order.Line" in errors[1]
    assert [error is None for error in errors] == [True, False, True, False, False]


def test_protobuf_stops_at_a_wider_schema():
    schemas = Schemas(P1, P2)
    old = b"\0\0\0\0\x01\0" + message_class(P1, "p.Order")(id=1).SerializeToString()
    new = b"\0\0\0\0\x02\0" + message_class(P2, "p.Order")(id=2, more=0.5).SerializeToString()
    stopped = ProtobufDecoder(schemas, P1).decode(pa.array([old, new], pa.binary()))
    assert (stopped.boundary.row, stopped.boundary.fields) == (1, pa.schema([("more", pa.float64())]))
    rows = ProtobufDecoder(schemas, P2).decode(pa.array([old, new], pa.binary())).columns.to_pylist()
    assert [(row["id"], row["more"]) for row in rows] == [(1, 0.0), (2, 0.5)]


def test_references_are_found():
    inner = Named("inner.proto", Schema('syntax = "proto3"; package i; message I { int32 a = 1; }', "PROTOBUF"))
    schema = proto('import "inner.proto"; message M { i.I i = 1; }', (inner,))
    decoded = registry_decoder(Schemas(schema), "s").decode(pa.array([b"\0\0\0\0\x01\0\x0a\x02\x08\x07"], pa.binary()))
    assert decoded.columns.to_pylist() == [{"i": {"a": 7}}]
    address = Named("Address", Schema('{"type":"record","name":"Address","fields":[{"name":"s","type":"string"}]}'))
    referring = avro(("home", "Address"), references=(address,))
    decoded = registry_decoder(Schemas(referring), "s").decode(pa.array([b"\0\0\0\0\x01\x02a"], pa.binary()))
    assert decoded.columns.to_pylist() == [{"home": {"s": "a"}}]


@pytest.mark.parametrize("resolved", [V2, P1])
def test_no_bytes_end_a_batch(resolved):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    values = [b"\0\0\0\0\x01" + chance.randbytes(chance.randrange(30)) for _ in range(2000)]
    decoded = registry_decoder(Schemas(resolved), "s").decode(pa.array(values, pa.binary()))
    assert len(decoded.columns) == len(decoded.errors) == len(values)
    assert all((error is None) == (row is not None) for row, error in zip(decoded.columns.to_pylist(), decoded.errors.to_pylist(), strict=True))  # fmt: skip  # noqa: E501


J1 = json_schema({"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}, required=["id"])
J2 = json_schema({"id": {"type": "integer"}, "item": {"type": ["null", "string"]}}, required=["id", "item"])


def test_json_records_of_a_schema_decode_each_by_itself():
    schemas = Schemas(J1)
    rows = [
        {"id": 1, "at": "2026-01-02T03:04:05.678Z", "more": 1},
        {"id": "1"},
        {"at": "2026-01-02T03:04:05Z"},
        b"{cut",
        {"id": 2},
    ]
    values = [*(json_bytes(1, row) for row in rows), None, json_bytes(9, {"id": 1}), b"junk"]
    decoded = registry_decoder(schemas, "orders-value").decode(pa.array(values, pa.binary()))
    found = decoded.columns.to_pylist()
    assert (found[0], found[4]) == ({"id": 1, "at": DAY}, {"id": 2, "at": None})
    errors = decoded.errors.to_pylist()
    assert [error is None for error in errors] == [True, False, False, False, True, True, False, False]
    words = ["got `str`", "missing required field `id`", "malformed", "no schema with id 9", "begins with"]
    assert [word in error for word, error in zip(words, filter(None, errors), strict=True)] == [True] * 5


def test_json_decoding_stops_before_a_record_with_a_member_that_the_columns_lack():
    values = pa.array([json_bytes(1, {"id": 1}), json_bytes(2, {"id": 2, "item": "tea"})], pa.binary())
    schemas = Schemas(J1)
    decoder, whole = (registry_decoder(schemas, "s", stop_at_boundary=stop) for stop in (True, False))
    schemas.held.append(J2)
    found = decoder.decode(values)
    assert (found.boundary.row, found.boundary.schema_id, found.boundary.fields.names) == (1, 2, ["item"])
    assert found.columns.to_pylist() == [{"id": 1, "at": None}]
    assert whole.decode(values).columns.to_pylist()[1] == {"id": 2, "at": None}


def test_types_of_a_json_schema_are_columns():
    address = Named(
        "address.json", Schema(json.dumps({"type": "object", "properties": {"zip": {"type": "string"}}}), "JSON")
    )
    found = registry_decoder(
        Schemas(
            json_schema(
                {
                    "a": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/money"}]},
                    "b": {"type": "array", "items": {"type": "boolean"}},
                    "c": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "d": {"$ref": "address.json"},
                    "e": {"enum": ["x", "y"]},
                    "f": {"type": "string", "contentEncoding": "base64"},
                    "g": {"type": "string", "format": "date"},
                },
                references=(address,),
                **{"$defs": {"money": {"type": "number"}}},
            )
        ),
        "orders-value",
    ).type
    assert [str(field.type) for field in found] == [
        "double", "list<element: bool>", "map<string, int64>", "struct<zip: string>", "string", "binary", "date32[day]",
    ]  # fmt: skip


BASE = {"type": "object", "properties": {"a": {"type": "integer"}}}
B, C = ({"properties": {name: {"type": "string"}}} for name in "bc")


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        # always: columns
        ({**BASE, "allOf": [B]}, {"a": 1, "b": "x"}),
        ({"allOf": [{"$ref": "#/$defs/base"}, B]}, {"a": 1, "b": "x"}),
        ({"$ref": "#/$defs/base", **B}, {"b": "x", "a": 1}),
        ({"allOf": [{"$ref": "#/$defs/base"}], "description": "d"}, {"a": 1}),
        ({**BASE, "allOf": [{"properties": {"a": {"type": "string"}}}]}, {"a": "1"}),
        ({**BASE, "oneOf": [{"required": ["a"]}, {"properties": {"a": {"const": 5}}}]}, {"a": 1}),
        # under a condition: the text of the record, of which nothing is left out
        ({**BASE, "anyOf": [B]}, None), ({**BASE, "oneOf": [B, C]}, None), ({**BASE, "if": {}, "then": B}, None),
        ({**BASE, "allOf": [{"if": {}, "else": B}]}, None), ({**BASE, "dependentSchemas": {"a": B}}, None),
        ({"allOf": [{"$ref": "#/$defs/base"}, {"anyOf": [{"allOf": [B]}]}]}, None),
        ({"$defs": {"base": {"allOf": [{"$ref": "#/$defs/base"}] * 2}}, **BASE, "allOf": [{"$ref": "#/$defs/base"}]},
         None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("within", [False, True])
def test_each_property_that_a_json_schema_names_anywhere_is_read(schema, row, within):
    schema = {"$defs": {"base": BASE}, **schema}
    text = '{"a": 1, "b": "x"}'
    if within:
        schema = {"$defs": schema.pop("$defs"), "properties": {"m": schema}}
    resolved = Resolved(Schema(json.dumps(schema), "JSON"))
    value = json_bytes(1, f'{{"m": {text}}}'.encode() if within else text.encode())
    decoded = registry_decoder(Schemas(resolved), "s").decode(pa.array([value], pa.binary()))
    name = "m" if within else "value"
    wanted = {name: text} if row is None else {"m": row} if within else row
    assert (decoded.columns.to_pylist(), decoded.errors.to_pylist()) == ([wanted], [None])


@pytest.mark.parametrize(
    ("properties", "value", "row"),
    [
        ({}, b'{"x": [1]}', {"value": '{"x": [1]}'}),
        ({"a": {}}, b'{"a": [1.50, "x"]}', {"a": '[1.50, "x"]'}),
        ({"a": {"type": ["string", "integer"]}}, b'{"a": "x"}', {"a": '"x"'}),
        ({"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}, b'{"a": 5}', {"a": "5"}),
        ({"a": {"$ref": "#"}, "b": {"type": "integer"}}, b'{"a": {"b": 1}}', {"a": '{"b": 1}', "b": None}),
        ({"a": {"$ref": "#/nothing"}}, b'{"a": {}}', {"a": "{}"}),
        ({"a": {"$ref": "other.json"}}, b'{"a": null}', {"a": None}),
        ({"a": {"type": "object"}}, b'{"a": {"k": {}}}', {"a": '{"k": {}}'}),
        ({"a": {"type": "array", "items": {}}}, b'{"a": [{}, null, 1]}', {"a": ["{}", None, "1"]}),
    ],
)
def test_a_member_of_a_json_schema_without_a_column_type_is_kept_as_its_text(properties, value, row):
    schemas = Schemas(json_schema(properties))
    decoded = registry_decoder(schemas, "s").decode(pa.array([json_bytes(1, value), json_bytes(1, b"{")], pa.binary()))
    assert (decoded.columns.to_pylist(), decoded.errors[0].as_py()) == ([row, None], None)
    assert decoded.errors[1].as_py() is not None
