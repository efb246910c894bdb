"""Records of every version of a subject into one set of columns: what a schema's life may bring, by kind of change."""

import datetime as dt
import decimal
import io
import json

import fastavro
import pyarrow as pa
import pytest
from schema_support import Schemas, avro_bytes, json_bytes, json_schema, message_class, proto

from millstream.registry.model import Schema
from millstream.spark.schemas import AvroDecoder, JsonSchemaDecoder, ProtobufDecoder, columns_of, members_of
from millstream.spark.schemas.source import Resolved
from millstream.spark.values import SchemaRefused

DECODERS = {"AVRO": AvroDecoder, "JSON": JsonSchemaDecoder, "PROTOBUF": ProtobufDecoder}
DAY = dt.date(2026, 1, 2)
MIDNIGHT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
TIMESTAMP = pa.timestamp("us", tz="UTC")


def record(*fields, name="Order"):
    described = [{"name": f[0], "type": f[1], **(f[2] if len(f) > 2 else {})} for f in fields]
    return Resolved(Schema(json.dumps({"type": "record", "name": name, "fields": described})))


def decoder(schemas, table=None, **more):
    reader = schemas.latest("s")
    columns = columns_of(members_of(reader, None), table, frozenset({"_offset"}))
    return DECODERS[reader.schema.type](schemas, reader, columns=columns, **more)


def rows_of(schemas, *values, table=None, **more):
    decoded = decoder(schemas, table, **more).decode(pa.array(values, pa.binary()))
    assert decoded.boundary is None
    return decoded.columns.to_pylist(), decoded.errors.to_pylist(), decoded.places.to_pylist()


ID = ("id", "long")


@pytest.mark.parametrize(
    ("old", "new", "table", "rows"),
    [
        # dropped: the column stays if the table has it, and is left out if not
        ([ID, ("note", "string")], [ID], None, [{"id": 1}, {"id": 2}]),
        ([ID, ("note", "string")], [ID], [("id", pa.int64()), ("note", pa.string())],
         [{"id": 1, "note": "a"}, {"id": 2, "note": None}]),
        # renamed by an alias: the table's column keeps its name
        ([ID, ("old", "string")], [ID, ("new", "string", {"aliases": ["old"]})], None,
         [{"id": 1, "new": "a"}, {"id": 2, "new": "b"}]),
        ([ID, ("old", "string")], [ID, ("new", "string", {"aliases": ["old"]})],
         [("id", pa.int64()), ("old", pa.string())], [{"id": 1, "old": "a"}, {"id": 2, "old": "b"}]),
        # added: null before, unless there is a default
        ([ID], [ID, ("more", "string")], None, [{"id": 1, "more": None}, {"id": 2, "more": "b"}]),
        ([ID], [ID, ("more", "string", {"default": "x"})], None, [{"id": 1, "more": "x"}, {"id": 2, "more": "b"}]),
        # wider, in the schema or in the table alone
        ([ID, ("n", "int")], [ID, ("n", "long")], None, [{"id": 1, "n": 5}, {"id": 2, "n": 1 << 40}]),
        ([ID, ("n", "int")], [ID, ("n", "int")], [("id", pa.int64()), ("n", pa.int64())],
         [{"id": 1, "n": 5}, {"id": 2, "n": 6}]),
        ([ID, ("n", "float")], [ID, ("n", "double")], None, [{"id": 1, "n": 0.5}, {"id": 2, "n": 0.1}]),
        ([ID, ("n", "bytes")], [ID, ("n", "string")], None, [{"id": 1, "n": "a"}, {"id": 2, "n": "b"}]),
        # another case of a name, which Spark and tables do not tell apart
        ([ID, ("Note", "string")], [ID, ("note", "string")], [("id", pa.int64()), ("Note", pa.string())],
         [{"id": 1, "Note": "a"}, {"id": 2, "Note": "b"}]),
        # another order, other case of the table's column, columns of the table's own
        ([("n", "int"), ID], [ID, ("n", "int")], [("N", pa.int32()), ("own", pa.bool_()), ("_offset", pa.int64())],
         [{"id": 1, "N": 5, "own": None}, {"id": 2, "N": 6, "own": None}]),
    ],
)  # fmt: skip
def test_rows_of_two_versions_fit_one_table(old, new, table, rows):
    schemas = Schemas(record(*old), record(*new))

    def row(number, fields, low, high):
        made = {"id": number}
        for name, kind, *_ in fields:
            if name != "id":
                made[name] = {"string": "ab"[number - 1], "bytes": b"a", "int": 4 + number, "long": high,
                              "float": 0.5, "double": low}[kind]  # fmt: skip
        return made

    values = [
        avro_bytes(1, schemas.held[0], row(1, old, 0, 0)),
        avro_bytes(2, schemas.held[1], row(2, new, 0.1, 1 << 40)),
    ]
    found, errors, _ = rows_of(schemas, *values, table=None if table is None else pa.schema(table))
    assert (found, errors) == (rows, [None, None])


def test_members_of_structs_lists_and_maps_live_as_columns_do():
    def nested(*fields):
        line = {"type": "record", "name": "Line", "fields": [{"name": n, "type": t, **more} for n, t, more in fields]}
        return record(
            ID, ("lines", {"type": "array", "items": line}), ("by", {"type": "map", "values": ["null", "Line"]})
        )

    old = nested(("x", "int", {}), ("was", "string", {}))
    new = nested(("x", "long", {}), ("now", "string", {"aliases": ["was"]}), ("y", "int", {"default": 7}))
    schemas = Schemas(old, new)
    table = pa.schema([("id", pa.int64()), ("lines", pa.list_(pa.struct([("was", pa.string()), ("x", pa.int32())])))])
    value = avro_bytes(1, old, {"id": 1, "lines": [{"x": 1, "was": "a"}], "by": {"k": {"x": 2, "was": "b"}, "n": None}})
    found, errors, _ = rows_of(schemas, value, value, table=table)
    assert errors == [None, None]
    assert found[0] == {
        "id": 1, "lines": [{"was": "a", "x": 1, "y": 7}], "by": [("k", {"x": 2, "now": "b", "y": 7}), ("n", None)],
    }  # fmt: skip
    kept = decoder(schemas, table).type
    assert kept.field("lines").type.value_type == pa.struct(
        [("was", pa.string()), ("x", pa.int64()), ("y", pa.int32())]
    )


@pytest.mark.parametrize(
    ("was", "value", "now", "fits"),
    [
        ("string", "x", "int", False), ("int", 5, "string", False), ("boolean", True, "int", False),
        ("long", 5, "int", True), ("long", 1 << 40, "int", False), ("double", 0.5, "float", True),
        ("double", 0.1, "float", False), ("long", (1 << 60) + 1, "double", False), ("long", 5, "double", True),
        (["int", "string"], 5, "int", True), (["int", "string"], "x", "int", False),
        ({"type": "array", "items": "int"}, [1], "int", False), (["null", "string"], None, "int", True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, decimal.Decimal("1.25"),
         {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}, True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, decimal.Decimal("1.25"),
         {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 1}, False),
        ({"type": "int", "logicalType": "date"}, DAY, {"type": "long", "logicalType": "timestamp-micros"}, True),
        ({"type": "long", "logicalType": "timestamp-micros"}, MIDNIGHT, {"type": "int", "logicalType": "date"}, False),
        ("long", 5, {"type": "long", "logicalType": "timestamp-micros"}, False),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_an_error_of_its_record_alone(was, value, now, fits):
    old, new = record(ID, ("x", was)), record(ID, ("x", now))
    plain = record(ID, ("x", ["null", now]))
    schemas = Schemas(old, plain, new)
    values = [avro_bytes(2, plain, {"id": 1, "x": None}), avro_bytes(1, old, {"id": 2, "x": value})]
    found, errors, places = rows_of(schemas, *values, *values)
    assert (errors[0], errors[2], found[0]) == (None, None, {"id": 1, "x": None})
    if fits:
        assert (errors[1], found[1]["x"]) == (None, MIDNIGHT if value is DAY else value)
    else:
        assert (found[1], places[1]) == (None, "x")
        assert errors[1].endswith("at `$.x`")


def test_a_column_of_the_table_that_is_narrower_becomes_wider_and_another_one_stays():
    schemas = Schemas(record(("a", "long"), ("b", "string"), ("c", "int")))
    found = decoder(schemas, pa.schema([("a", pa.int32()), ("b", pa.int64()), ("c", pa.int64())])).type
    assert [field.type for field in found] == [pa.int64(), pa.int64(), pa.int64()]


def test_a_version_that_was_deleted_softly_still_decodes_and_makes_no_column():
    oops = record(ID, ("oops", "string"))
    schemas = Schemas(record(ID), oops, deleted=[2])
    chosen = decoder(schemas)
    decoded = chosen.decode(pa.array([avro_bytes(2, oops, {"id": 1, "oops": "x"})], pa.binary()))
    assert (decoded.columns.to_pylist(), decoded.boundary) == ([{"id": 1}], None)
    assert chosen.left_out == {2: ("oops",)}


@pytest.mark.parametrize("fail", [False, True])
def test_a_foreign_schema_is_an_error_of_each_of_its_records_or_ends_the_batch(fail):
    payment = record(("pid", "string"), name="Payment")
    schemas = Schemas(record(ID), payment, record(("id", ["null", "long"]), name="Order"), foreign=[2, 3])
    good = avro_bytes(1, schemas.held[0], {"id": 1})
    strangers = [avro_bytes(2, payment, {"pid": "x"}), avro_bytes(3, schemas.held[2], {"id": 2})]
    if fail:
        with pytest.raises(SchemaRefused, match="schema 2 is of subject others-value") as caught:
            decoder(schemas, fail_on_schema=True).decode(pa.array([good, *strangers], pa.binary()))
        assert caught.value.row == 1
        return
    found, errors, _ = rows_of(schemas, good, *strangers, good)
    assert [row and row["id"] for row in found] == [1, None, None, 1]
    assert [error is None for error in errors] == [True, False, False, True]
    _, errors, _ = rows_of(schemas, *strangers, subjects=["others-value"])
    assert errors[1] is None


def test_a_schema_that_does_not_fit_ends_the_batch_where_that_is_wanted():
    schemas = Schemas(record(ID, ("x", "string")), record(ID, ("x", "int")))
    values = [avro_bytes(2, schemas.held[1], {"id": 1, "x": 1}), avro_bytes(1, schemas.held[0], {"id": 2, "x": "a"})]
    with pytest.raises(SchemaRefused, match="schema 1 does not fit: x is string, in the columns int32") as caught:
        decoder(schemas, fail_on_schema=True).decode(pa.array(values, pa.binary()))
    assert caught.value.row == 1
    broken = b"\0\0\0\0\2\xff"
    _, errors, _ = rows_of(schemas, values[0], broken, fail_on_schema=True)
    assert [error is None for error in errors] == [True, False]


def test_an_older_version_is_no_boundary_and_a_newer_one_is():
    wide = record(ID, ("n", "long"))
    values = pa.array([avro_bytes(1, wide, {"id": 1, "n": 5})], pa.binary())
    assert decoder(Schemas(wide, record(ID, ("n", "int")))).decode(values).columns.to_pylist() == [{"id": 1, "n": 5}]
    schemas = Schemas(record(ID))
    chosen = decoder(schemas)
    schemas.held.append(record(ID, ("n", {"type": "record", "name": "N", "fields": [{"name": "x", "type": "int"}]})))
    found = chosen.decode(pa.array([avro_bytes(2, schemas.held[1], {"id": 1, "n": {"x": 1}})], pa.binary()))
    assert found.boundary.fields == pa.schema([("n", pa.struct([("x", pa.int32())]))])


# Values without a column type


RECORDS = [
    {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]},
    {"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]},
]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (["int", "string"], 5, "5"), (["int", "string"], "a", '"a"'), (["null", "int", "string"], None, None),
        (["null", *RECORDS], ("B", {"x": 1}), '{"B":{"x":1}}'), (["bytes", "double"], b"hi", '"aGk="'),
        (["string", "double"], float("nan"), '"NaN"'),
        (["string", {"type": "long", "logicalType": "timestamp-millis"}], MIDNIGHT, '"2026-01-02T00:00:00Z"'),
        (["null", "Order"], {"id": 2, "u": None}, '{"id":2,"u":null}'),
        ({"type": "record", "name": "Empty", "fields": []}, {}, "{}"),
        ({"type": "array", "items": ["int", "string"]}, [1, "a"], ["1", '"a"']),
    ],
)  # fmt: skip
def test_avro_values_without_a_column_type_are_json_text(kind, value, text):
    schema = record(ID, ("u", kind))
    found, errors, _ = rows_of(Schemas(schema), avro_bytes(1, schema, {"id": 1, "u": value}))
    assert (found, errors) == ([{"id": 1, "u": text}], [None])


@pytest.mark.parametrize("around", ["{}", '{{"type": "array", "items": {}}}', '{{"type": "map", "values": {}}}'])
def test_a_union_of_texts_and_bytes_is_not_read_as_base64_into_a_column_of_bytes(around):
    old = record(ID, ("u", json.loads(around.format('["null", "string", "bytes"]'))))
    new = record(ID, ("u", json.loads(around.format('["null", "bytes"]'))))
    wrap = {"{": lambda value: value, "a": lambda value: [value], "m": lambda value: {"k": value}}
    made = wrap[around.replace('{{"type": "', "")[0]]
    values = [avro_bytes(1, old, {"id": 1, "u": made(value)}) for value in ("abcd", b"abcd", None)]
    values.append(avro_bytes(2, new, {"id": 1, "u": made(b"abcd")}))
    _, errors, _ = rows_of(Schemas(old, new), *values)
    assert [error is None for error in errors] == [False, False, True, True]
    assert "and the column is binary" in errors[0]


def test_avro_schemas_that_are_no_record_have_one_column():
    for text, value, found in (('"string"', "a", "a"), ('["int", "string"]', "a", '"a"'), ('{"type":"map","values":"int"}', {"k": 1}, [("k", 1)])):  # fmt: skip  # noqa: E501
        schema = Resolved(Schema(text))
        out = io.BytesIO()
        fastavro.schemaless_writer(out, json.loads(text), value)
        rows, errors, _ = rows_of(Schemas(schema), b"\0\0\0\0\1" + out.getvalue())
        assert (rows, errors) == ([{"value": found}], [None])


ANY = proto(
    'import "google/protobuf/struct.proto"; import "google/protobuf/any.proto"; message E { int64 id = 1; '
    "google.protobuf.Struct free = 2; google.protobuf.Any any = 3; google.protobuf.Value v = 4; E inner = 5; "
    "oneof kind { Created created = 6; Gone gone = 7; } message Created {} message Gone { string by = 1; } "
    "map<bool, int32> odd = 8; map<uint64, string> big = 9; repeated google.protobuf.Struct many = 10; }"
)


def test_protobuf_values_without_a_column_type_are_json_text():
    made = message_class(ANY, "p.E")(id=1, created={}, odd={True: 1}, big={1 << 63: "x"})
    made.free.update({"a": [1, "x"], "b": None})
    made.any.type_url, made.any.value = "type.googleapis.com/unknown.T", b"hi"
    made.v.string_value = "s"
    made.inner.id = 2
    made.many.add().update({"k": True})
    (row,), errors, _ = rows_of(Schemas(ANY), b"\0\0\0\0\1\0" + made.SerializeToString())
    assert errors == [None]
    texts = {name: json.loads(row[name]) for name in ("free", "any", "v", "inner", "created")}
    assert texts == {
        "free": {"a": [1.0, "x"], "b": None}, "v": "s", "inner": {"id": "2"}, "created": {},
        "any": {"@type": "type.googleapis.com/unknown.T", "value": "aGk="},
    }  # fmt: skip
    assert (row["gone"], row["odd"], row["big"]) == (None, [(True, 1)], [(decimal.Decimal(1 << 63), "x")])
    assert json.loads(row["many"][0]) == {"k": True}


def test_a_message_without_fields_keeps_its_column_when_it_gets_some():
    first = proto("message E { string id = 1; oneof k { Created created = 2; } message Created {} }")
    second = proto("message E { string id = 1; oneof k { Created created = 2; } message Created { string by = 1; } }")
    schemas = Schemas(first, second)
    old = b"\0\0\0\0\1\0" + message_class(first, "p.E")(id="a", created={}).SerializeToString()
    new = b"\0\0\0\0\2\0" + message_class(second, "p.E")(id="b", created={"by": "me"}).SerializeToString()
    table = pa.schema([("id", pa.string()), ("created", pa.string())])
    found, errors, _ = rows_of(schemas, old, new, table=table)
    assert (found, errors) == ([{"id": "a", "created": "{}"}, {"id": "b", "created": '{"by":"me"}'}], [None, None])
    found, errors, _ = rows_of(schemas, old, new)
    assert (found, errors) == ([{"id": "a", "created": {"by": None}}, {"id": "b", "created": {"by": "me"}}], [None] * 2)
    empty = proto("message Nothing {}")
    assert rows_of(Schemas(empty), b"\0\0\0\0\1\0")[0] == [{"value": "{}"}]


def test_a_structured_value_in_a_string_column_is_its_json_text():
    inner = [
        {"name": "m", "type": ["null", {"type": "map", "values": ["int", "string"]}]},
        {"name": "f", "type": "double"},
    ]
    schema = record(("x", {"type": "record", "name": "X", "fields": inner}))
    values = [avro_bytes(1, schema, {"x": {"m": m, "f": f}}) for m, f in (({"k": 1}, 0.5), (None, float("inf")))]
    found, errors, _ = rows_of(Schemas(schema), *values, table=pa.schema([("x", pa.string())]))
    assert errors == [None, None]
    assert [row["x"] for row in found] == ['{"m":{"k":1},"f":0.5}', '{"m":null,"f":"Infinity"}']


def test_protobuf_fields_are_the_same_by_number_and_messages_by_name():
    first = proto("message A { int64 id = 1; string was = 2; } message B { int64 x = 1; }")
    second = proto("message B { int64 x = 1; } message A { string now = 2; int64 id = 1; }")
    schemas = Schemas(first, second)
    old = b"\0\0\0\0\1\0" + message_class(first, "p.A")(id=1, was="a").SerializeToString()
    new = b"\0\0\0\0\2\2\2" + message_class(second, "p.A")(id=2, now="b").SerializeToString()
    other = b"\0\0\0\0\2\0" + message_class(second, "p.B")(x=1).SerializeToString()
    reader = schemas.latest("s")
    chosen = ProtobufDecoder(schemas, reader, message="p.A")
    decoded = chosen.decode(pa.array([old, new, other], pa.binary()))
    assert decoded.columns.to_pylist() == [{"now": "a", "id": 1}, {"now": "b", "id": 2}, None]
    assert decoded.errors[2].as_py() == "the record is a p.B, and the columns are of p.A"


def test_a_type_that_is_within_itself_many_ways_has_a_bounded_number_of_columns():
    body = " ".join(f"message M{i} {{ {' '.join(f'M{j} f{j} = {j + 1};' for j in range(12))} }}" for i in range(12))
    found = members_of(proto(body), None)
    assert sum(str(member.type).count(":") for member in found) < 100_000
    nodes = [{"type": "record", "name": f"R{i}", "fields": [{"name": f"f{j}", "type": f"R{j}"} for j in range(i)] or [{"name": "x", "type": "int"}]} for i in range(25)]  # fmt: skip  # noqa: E501
    text = json.dumps(
        {"type": "record", "name": "Top", "fields": [{"name": node["name"], "type": node} for node in nodes]}
    )
    assert len(members_of(Resolved(Schema(text)), None)) == 25


# Poison


def test_deep_records_of_a_recursive_schema_end_no_process():
    schema = record(("next", ["null", "Order"]))
    good, deep = b"\0\0\0\0\1\2\2\0", b"\0\0\0\0\1" + b"\2" * 3_000_000 + b"\0"
    found, errors, _ = rows_of(Schemas(schema), good, deep, good)
    assert (found[0], found[1]) == ({"next": '{"next":{"next":null}}'}, None)
    assert [error is None for error in errors] == [True, False, True]
    assert "nested too deeply" in errors[1]


def test_a_claim_of_endless_items_costs_nothing():
    schema = record(("a", {"type": "array", "items": "null"}))
    _, errors, _ = rows_of(Schemas(schema), b"\0\0\0\0\1\xfe\xff\xff\xff\xff\xff\x01\0")
    assert "items take no bytes" in errors[0]


def test_times_and_texts_that_no_column_holds_are_errors_of_their_records():
    at = {"type": "long", "logicalType": "timestamp-micros"}
    schema = record(("a", {"type": "array", "items": ["null", at, "string"]}), ("t", {"type": "map", "values": at}))
    far = b"\0\0\0\0\1\0\2\2k" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\0"
    text = b"\0\0\0\0\1\2\4\2\xff\0\0"
    good = avro_bytes(1, schema, {"a": [dt.datetime(1, 1, 1, tzinfo=dt.UTC)], "t": {"k": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)}})  # fmt: skip  # noqa: E501
    found, errors, _ = rows_of(Schemas(schema), good, far, text, good)
    assert [error is None for error in errors] == [True, False, False, True]
    assert found[0] == {"a": ['"0001-01-01T00:00:00Z"'], "t": [("k", dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC))]}  # fmt: skip  # noqa: E501


def test_poison_in_a_nested_member_of_json_is_an_error_with_its_place():
    schema = json_schema({"a": {"type": "array", "items": {"type": "object", "properties": {
        "b": {"type": "string", "contentEncoding": "base64"}, "at": {"type": "string", "format": "date-time"},
        "n": {"type": "integer"}}}}})  # fmt: skip
    good = json_bytes(1, {"a": [{"b": "aGk=", "at": "2026-01-02T00:00:00Z", "n": 1}]})
    bad = [
        {"a": [{}, {"b": "?"}]}, {"a": [{"at": "0001-01-01T00:00:00+01:00"}]}, {"a": [{"n": 1 << 64}]},
        {"a": [{"at": "9999-12-31T23:59:59-05:00"}]}, {"a": [{"n": 1.5}]},
    ]  # fmt: skip
    values = [good, *(json_bytes(1, row) for row in bad), good]
    found, errors, places = rows_of(Schemas(schema), *values)
    assert [error is None for error in errors] == [True, *[False] * len(bad), True]
    assert (found[0], found[-1]) == (found[-1], found[0])
    assert places[1:-1] == ["a[1].b", "a[0].at", "a[0].n", "a[0].at", "a[0].n"]


def test_a_batch_with_one_bad_record_in_a_hundred_is_decoded_record_by_record():
    schema = record(ID, ("m", {"type": "map", "values": {"type": "long", "logicalType": "timestamp-micros"}}))
    good, bad = avro_bytes(1, schema, {"id": 7, "m": {"k": MIDNIGHT}}), b"\0\0\0\0\1\x0e\2\2k" + b"\xff" * 9 + b"\x01\0"
    values = [bad if index % 100 == 5 else good for index in range(10_000)]
    _, errors, _ = rows_of(Schemas(schema), *values)
    assert [index for index, error in enumerate(errors) if error is not None] == list(range(5, 10_000, 100))
