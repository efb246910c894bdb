"""Avro, JSON Schema and Protobuf: what is valid, what is the same, and what can follow what."""

import json

import pytest
from registry_client import Registry

from millstream.registry.formats.avro_format import parse_avro
from millstream.registry.formats.json_format import parse_json_schema
from millstream.registry.formats.parsed import InvalidSchema, Named
from millstream.registry.formats.protobuf_format import parse_protobuf
from millstream.registry.model import Schema


def rules(original, update):
    """The rules that ``update`` breaks as a reader of what ``original`` wrote."""
    found = parse_json_schema(json.dumps(update), []).differences(parse_json_schema(json.dumps(original), []))
    return {message.split("'")[1] for message in found}


def obj(properties, closed=False, **more):
    return {"type": "object", "properties": properties, **({"additionalProperties": False} if closed else {}), **more}


INT, STR = {"type": "integer"}, {"type": "string"}
ARRAY = {"type": "array", "items": INT}


@pytest.mark.parametrize(
    ("original", "update", "broken"),
    [
        (INT, {"type": "number"}, set()),
        ({"type": "number"}, INT, {"TYPE_CHANGED"}),
        (STR, {"type": ["string", "null"]}, set()),
        ({"type": ["string", "null"]}, STR, {"TYPE_NARROWED"}),
        (STR, True, set()),
        (STR, {}, set()),
        ({}, STR, {"TYPE_NARROWED"}),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 9}, set()),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 4}, {"MAX_LENGTH_DECREASED"}),
        (STR, {"type": "string", "minLength": 1}, {"MIN_LENGTH_ADDED"}),
        ({"type": "string", "pattern": "a"}, STR, set()),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, {"PATTERN_CHANGED"}),
        ({"type": "integer", "multipleOf": 10}, {"type": "integer", "multipleOf": 5}, set()),
        ({"type": "integer", "multipleOf": 5}, {"type": "integer", "multipleOf": 10}, {"MULTIPLE_OF_CHANGED"}),
        ({"enum": [1, 2]}, {"enum": [1, 2, 3]}, set()),
        ({"enum": [1, 2]}, {"enum": [1]}, {"ENUM_ARRAY_NARROWED"}),
        (obj({"a": INT}), obj({}), set()),
        (obj({"a": INT}), obj({"a": INT, "b": STR}), {"PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"}),
        (obj({"a": INT}, True), obj({"a": INT, "b": STR}, True), set()),
        (
            obj({"a": INT}, True),
            obj({"a": INT, "b": STR}, True, required=["b"]),
            {"REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"},
        ),
        (obj({}, True), obj({"b": {"type": "string", "default": ""}}, True, required=["b"]), set()),
        (obj({"a": INT}, True), obj({}, True), {"PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"}),
        (obj({"a": INT}), obj({"a": INT}, required=["a"]), {"REQUIRED_ATTRIBUTE_ADDED"}),
        (obj({"a": INT}), obj({"a": INT}, True), {"ADDITIONAL_PROPERTIES_REMOVED"}),
        (obj({}), obj({}, patternProperties={"^x": INT}), {"PATTERN_PROPERTY_ADDED"}),
        (obj({"xa": STR}, True), obj({"xa": STR}, True, patternProperties={"^x": INT}), {"PATTERN_PROPERTY_ADDED"}),
        (obj({"a": STR}, True), obj({"a": STR}, True, patternProperties={"^x": INT}), set()),
        (obj({}, patternProperties={"^x": INT}), obj({}, patternProperties={"^x": {"type": "number"}}), set()),
        (obj({}, patternProperties={"^x": INT}), obj({}, patternProperties={"^x": STR}), {"TYPE_CHANGED"}),
        (obj({}, patternProperties={"^x": INT}), obj({}), set()),
        (obj({}, True, patternProperties={"^x": INT}), obj({}, True), {"PATTERN_PROPERTY_REMOVED"}),
        (obj({"xa": INT}, True), obj({}, True, patternProperties={"^x": INT, "a$": STR}), {"PATTERN_PROPERTY_ADDED", "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"}),  # noqa: E501
        ({"type": "array", "items": INT}, {"type": "array", "items": {"type": "number"}}, set()),
        ({"type": "array", "items": INT}, {"type": "array", "items": STR}, {"TYPE_CHANGED"}),
        (ARRAY, {"type": "array", "items": [INT]}, set()),  # a tuple whose rest is open
        (ARRAY, {"type": "array", "items": [STR]}, {"TYPE_CHANGED"}),
        (ARRAY, {"type": "array", "items": [INT], "additionalItems": False}, {"TYPE_CHANGED"}),
        ({"type": "array"}, {"type": "array", "items": [INT]}, {"ITEM_ADDED_TO_OPEN_CONTENT_MODEL"}),
        ({"type": "array", "items": [INT]}, ARRAY, {"ADDITIONAL_ITEMS_NARROWED"}),
        ({"type": "array", "items": [INT], "additionalItems": False}, ARRAY, set()),
        ({"type": "array", "items": [INT], "additionalItems": INT}, ARRAY, set()),
        ({"type": "array", "items": [STR], "additionalItems": False}, ARRAY, {"TYPE_CHANGED"}),
        ({"type": "array"}, {"type": "array", "uniqueItems": True}, {"UNIQUE_ITEMS_ADDED"}),
        (INT, {"oneOf": [STR, INT]}, set()),
        ({"oneOf": [STR, INT]}, {"oneOf": [INT, {"type": "null"}, STR]}, set()),
        ({"oneOf": [STR, INT]}, {"oneOf": [INT]}, {"SUM_TYPE_NARROWED"}),
        ({"allOf": [INT]}, {"allOf": [INT, {"minimum": 3}]}, {"PRODUCT_TYPE_EXTENDED"}),
        ({"allOf": [INT, {"minimum": 3}]}, {"allOf": [INT]}, set()),
        ({"not": {"type": "number"}}, {"not": INT}, set()),
        ({"not": INT}, {"not": {"type": "number"}}, {"NOT_TYPE_EXTENDED"}),
    ],
)  # fmt: skip
def test_json_schema_rules(original, update, broken):
    assert rules(original, update) == broken


def test_recursive_json_schemas_are_compared():
    def tree(leaf):
        return {"$ref": "#/definitions/n", "definitions": {"n": obj({"v": leaf, "kids": {"type": "array", "items": {"$ref": "#/definitions/n"}}}, True)}}  # fmt: skip  # noqa: E501

    assert rules(tree(INT), tree({"type": "number"})) == set()
    assert rules(tree({"type": "number"}), tree(INT)) == {"TYPE_CHANGED"}


def test_json_schema_references():
    address = Named("address.json", Schema('{"type":"object"}', "JSON"))
    for identified in ({}, {"$id": "http://example.com/user.json"}):
        text = json.dumps({**identified, "properties": {"home": {"$ref": "address.json"}}})
        assert parse_json_schema(text, [address])
        with pytest.raises(InvalidSchema, match=r"address\.json"):
            parse_json_schema(text, [])
    with pytest.raises(InvalidSchema, match=r"circle|nowhere"):
        parse_json_schema('{"$ref":"#/definitions/a","definitions":{"a":{"$ref":"#"}}}', [])
    with pytest.raises(InvalidSchema):
        parse_json_schema('{"type":"objet"}', [])


HEAD = 'syntax = "proto3"; package p; '


def proto_rules(original, update):
    found = parse_protobuf(update, []).differences(parse_protobuf(original, []))
    return {message.split("'")[1] for message in found}


@pytest.mark.parametrize(
    ("original", "update", "broken"),
    [
        ("message M { int32 a = 1; }", "message M { int64 b = 1; string c = 2; }", set()),
        ("message M { int32 a = 1; string b = 2; }", "message M { int32 a = 1; }", set()),
        ("message M { int32 a = 1; }", "message M { string a = 1; }", {"FIELD_SCALAR_KIND_CHANGED"}),
        ("message M { int32 a = 1; }", "message M { repeated int32 a = 1; }", {"FIELD_NUMERIC_LABEL_CHANGED"}),
        ("message M { string a = 1; }", "message M { repeated bytes a = 1; }", set()),
        ("message M { } message N { }", "message M { }", {"MESSAGE_REMOVED"}),
        ("message M { N n = 1; } message N { int32 a = 1; } message O { }",
         "message M { O n = 1; } message N { int32 a = 1; } message O { }", {"FIELD_NAMED_TYPE_CHANGED"}),
        ("message M { int32 a = 1; }", "message M { M a = 1; }", {"FIELD_KIND_CHANGED"}),
        ("message M { map<string, int32> m = 1; }", "message M { map<string, int64> m = 1; }", set()),
        ("message M { map<string, int32> m = 1; }", "message M { map<string, string> m = 1; }",
         {"FIELD_SCALAR_KIND_CHANGED"}),
        ("message M { oneof o { int32 a = 1; int32 b = 2; } }", "message M { oneof o { int32 a = 1; } }",
         {"ONEOF_FIELD_REMOVED"}),
        ("message M { int32 a = 1; int32 b = 2; }", "message M { oneof o { int32 a = 1; int32 b = 2; } }",
         {"MULTIPLE_FIELDS_MOVED_TO_ONEOF"}),
        ("message M { int32 a = 1; }", "message M { oneof o { int32 a = 1; int32 b = 2; } }", set()),
        ("message M { optional int32 a = 1; }", "message M { int32 a = 1; }", set()),
        ("message M { E e = 1; } enum E { A = 0; }", "message M { int32 e = 1; }", set()),
    ],
)  # fmt: skip
def test_protobuf_rules(original, update, broken):
    assert proto_rules(HEAD + original, HEAD + update) == broken


WRITTEN = [
    HEAD + 'import "google/protobuf/timestamp.proto"; import "google/type/date.proto"; message M { reserved 7 to 9; '
    'reserved "z"; int32 x_y = 1 [json_name = "q"]; map<string, N> m = 2; oneof u { string s = 3; N n = 4; } optional '
    "bool o = 5; google.protobuf.Timestamp t = 6; google.type.Date d = 10; message N { repeated M ms = 1; E e = 2; } "
    "enum E { A = 0; B = 5 [deprecated = true]; } } service S { rpc F(stream M) returns (M.N); }",
    HEAD + 'import "confluent/meta.proto"; message M { option (confluent.message_meta).doc = "d"; '
    'int32 a = 1 [(confluent.field_meta) = { doc: "h" tags: "PII" }]; }',
    ('syntax = "proto2"; message A { optional group G = 1 { required int32 x = 1; } optional string s = 2 [default = '
    '"a\\"b"]; extensions 100 to max; optional bytes b = 3 [default = "\\001a"]; optional E e = 4 [default = B]; '
    "enum E { A = 0; B = 1; reserved 5 to 9; } optional double d = 5 [default = inf]; oneof o { group H = 6 { } "
    "int32 i = 7; } } extend A { optional int32 ext = 100; }"),
    ('edition = "2023"; package p; option features.field_presence = IMPLICIT; message A { int32 a = 1 '
    "[features.field_presence = EXPLICIT]; repeated int32 r = 2; reserved foo; }"),
    HEAD + 'import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { repeated string tag = '
    '50001; } message A { int32 a = 1 [(.p.tag) = "x", (.p.tag) = "y"]; message p { int32 A = 1; } p q = 2; '
    ".p.A r = 3; }",
]  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_a_descriptor_is_written_as_text_that_compiles_to_it(text):
    parsed = parse_protobuf(text, [])
    again = parse_protobuf(parsed.serialized(), [])
    assert again.text != parsed.text
    assert again.identity == parsed.identity
    normal = parse_protobuf(parsed.normalized, [])
    assert parse_protobuf(normal.normalized, []).identity == normal.identity


def test_protobuf_references_and_errors():
    inner = Named("inner.proto", Schema('syntax = "proto3"; package i; message I { int32 a = 1; }', "PROTOBUF"))
    text = HEAD + 'import "inner.proto"; message M { i.I i = 1; }'
    assert parse_protobuf(text, [inner])
    with pytest.raises(InvalidSchema, match=r"inner\.proto"):
        parse_protobuf(text, [])
    with pytest.raises(InvalidSchema, match='"Foo" is not defined'):
        parse_protobuf(HEAD + "message M { Foo x = 1; }", [])
    for name in ("../inner.proto", "/etc/inner.proto", "a//b"):
        with pytest.raises(InvalidSchema, match="no path"):
            parse_protobuf(text, [Named(name, inner.schema)])
    with pytest.raises(InvalidSchema):
        parse_protobuf("AAAA", [])


def test_normalized_schemas_are_one():
    registry = Registry()
    one = HEAD + "message M { int32 a = 1; int32 b = 2; }"
    other = HEAD + "message M { int32 b = 2; int32 a = 1; }"
    body = {"schema": other, "schemaType": "PROTOBUF"}
    registry.register("p", one, schemaType="PROTOBUF")
    assert registry.post("/subjects/p", body).code == 40403
    assert registry.post("/subjects/p?normalize=true", body).json["version"] == 1
    registry.register("j", '{"type":"object","title":"a"}', schemaType="JSON")
    assert registry.register("j", '{"title":"a","type":"object"}', schemaType="JSON").json["id"] == 2


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('{"type": "int"}', True),
        ('{"type": "int", "name": "age", "doc": "in years"}', True),
        ('{"type": "int", "logicalType": "date"}', False),
        ('{"type": "int", "connect.name": "age"}', False),
    ],
)
def test_a_simple_avro_type_is_the_same_whatever_it_is_called(text, same):
    assert (parse_avro(text, []).identity == parse_avro('"int"', []).identity) is same


def test_an_alias_without_a_namespace_has_that_of_its_name():
    def enum(**more):
        return parse_avro(json.dumps({"type": "enum", "symbols": ["X"], **more}), [])

    reader = enum(name="New", namespace="shop", aliases=["Old"])
    assert reader.differences(enum(name="Old", namespace="shop")) == []
    assert reader.differences(enum(name="Other", namespace="shop"))
    assert enum(name="shop.New", aliases=["other.Old"]).differences(enum(name="other.Old")) == []
    assert enum(name="New", aliases=["Old"]).differences(enum(name="Old")) == []


def avro_record(*fields):
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 2}]}  # fmt: skip  # noqa: E501


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"name": "a-b", "type": "int"}, "Illegal character in: a-b"),
        ({"name": "1a", "type": "int"}, "Illegal initial character: 1a"),
        (
            {"name": "m", "type": {"type": "map", "values": {**INNER, "fields": [{"name": "b c", "type": "int"}]}}},
            "b c",
        ),
        ({"name": "a", "type": "int", "default": "x"}, 'Invalid default for field a: "x"'),
        ({"name": "a", "type": "int", "default": 1 << 31}, "Invalid default"),
        ({"name": "a", "type": "long", "default": 1.0}, "Invalid default"),
        ({"name": "a", "type": "boolean", "default": 0}, "Invalid default"),
        ({"name": "a", "type": {"type": "array", "items": "int"}, "default": ["x"]}, "Invalid default"),
        ({"name": "a", "type": INNER, "default": {"y": 1}}, "Invalid default"),
        ({"name": "a", "type": ["null", "int"], "default": "x"}, "Invalid default"),
        ({"name": "ü_1", "type": "int"}, None),
        ({"name": "a", "type": ["null", "int"], "default": 1}, None),  # any branch, as Java has it
        ({"name": "a", "type": INNER, "default": {"x": 1}}, None),
        ({"name": "a", "type": "double", "default": 1}, None),
        ({"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}, "default": "\u00ff"}, None),
        ({"name": "a", "type": ["null", "R"], "default": None}, None),
    ],
)
def test_names_and_defaults_of_new_avro_schemas_are_checked(field, words):
    text = avro_record(field)
    parse_avro(text, [], stored=True)  # other registries have taken such
    if words is None:
        parse_avro(text, [])
    else:
        with pytest.raises(InvalidSchema, match=words):
            parse_avro(text, [])


@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)  # fmt: skip
def test_json_schemas_of_every_draft_find_what_they_refer_to(draft):
    name = "id" if "draft-04" in draft else "$id"
    definitions = "$defs" if "2020" in draft else "definitions"
    document = {
        "$schema": draft, name: "http://example.org/y.json", "type": "object", definitions: {"a": {"type": "integer"}},
        "properties": {"p": {"$ref": f"y.json#/{definitions}/a"}, "q": {"$ref": "z.json"}},
    }  # fmt: skip
    other = Named("z.json", Schema(json.dumps({"$schema": draft, "type": "string"}), "JSON"))
    parse_json_schema(json.dumps(document), [other])
    with pytest.raises(InvalidSchema):
        parse_json_schema(json.dumps({**document, "type": "no type"}), [other])
