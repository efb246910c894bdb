"""Records of _schemas, byte for byte, and the state that they make."""

import json

import pytest
from registry_client import Registry, record

from millstream.registry.model import Config, Reference, Registered, Schema
from millstream.registry.records import (
    BadRecord,
    ConfigWritten,
    ModeWritten,
    SchemaErased,
    SchemaWritten,
    SubjectCleared,
    SubjectDeleted,
    decode,
    encode,
)
from millstream.registry.serve import TOPIC

GOLDEN = [
    (
        SchemaWritten(Registered("s", 1, 7, Schema('"string"'))),
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        b'{"subject":"s","version":1,"id":7,"schema":"\\"string\\"","deleted":false}',
    ),
    (
        SchemaWritten(
            Registered("s", 2, 8, Schema("true", "JSON", (Reference("r", "t", 3),), '{"a":1}', '{"b":2}'), deleted=True)
        ),
        b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
        (
            b'{"subject":"s","version":2,"id":8,"schemaType":"JSON","references":[{"name":"r","subject":"t",'
            b'"version":3}],"metadata":{"a":1},"ruleSet":{"b":2},"schema":"true","deleted":true}'
        ),
    ),
    (SchemaErased("s", 1), b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', None),
    (
        ConfigWritten(None, Config("FULL")),
        b'{"keytype":"CONFIG","subject":null,"magic":0}',
        b'{"compatibilityLevel":"FULL"}',
    ),
    (ConfigWritten("s", None), b'{"keytype":"CONFIG","subject":"s","magic":0}', None),
    (ModeWritten("s", "READONLY"), b'{"keytype":"MODE","subject":"s","magic":0}', b'{"mode":"READONLY"}'),
    (
        SubjectDeleted("s", 2),
        b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        b'{"subject":"s","version":2}',
    ),
    (SubjectCleared("s"), b'{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}', b'{"subject":"s"}'),
]


@pytest.mark.parametrize(("event", "key", "value"), GOLDEN)
def test_golden_bytes(event, key, value):
    written = encode(event)
    assert (written.key, written.value) == (key, value)
    assert decode(key, value) == event


def test_what_other_registries_write_is_read():
    assert TOPIC == "_schemas"
    assert decode(b'{"keytype":"NOOP","magic":0}', None) is None
    assert decode(b'{"keytype":"EXPORTER","magic":0}', b"{}") is None
    # Karapace: an empty value for null, members in another order; Confluent: more members than are needed here.
    assert decode(b'{"subject":"s","version":1,"magic":1,"keytype":"SCHEMA"}', b"") == SchemaErased("s", 1)
    more = b'{"subject":"s","version":1,"id":7,"md5":"x","ts":5,"schema":"\\"string\\"","deleted":false}'
    assert decode(GOLDEN[0][1], more) == GOLDEN[0][0]
    assert decode(GOLDEN[3][1].replace(b'"subject":null,', b""), GOLDEN[3][2]) == GOLDEN[3][0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"\x80", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":-1,"magic":1}', None),
        (b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"SOMETIMES"}'),
        (b'{"keytype":"MODE","subject":1,"magic":0}', b'{"mode":"READONLY"}'),
        (b'{"keytype":"NOOP","magic":' + b"[" * 100_000, None),
    ],
)
def test_a_record_that_makes_no_sense_is_an_error_of_its_own(key, value):
    with pytest.raises(BadRecord):
        decode(key, value)


def busy_registry():
    registry = Registry()
    registry.register("a", record("A", ("x", "int")))
    registry.register("a", record("A", ("x", "int"), ("y", "int", 0)))
    registry.register("b", record("A", ("x", "int")))
    registry.register("j", '{"type":"object"}', schemaType="JSON")
    registry.register("p", 'syntax = "proto3"; message M { int32 a = 1; }', schemaType="PROTOBUF")
    registry.level("a", "NONE")
    registry.put("/mode/b", {"mode": "READONLY"})
    registry.delete("/subjects/a/versions/1")
    registry.register("c", '"string"')
    registry.delete("/subjects/c")
    registry.delete("/subjects/c?permanent=true")
    return registry


PATHS = [
    "/subjects?deleted=true",
    "/schemas?deleted=true",
    "/config/a",
    "/mode/b",
    "/schemas/ids/1",
    "/schemas/ids/1/versions?deleted=true",
]


@pytest.mark.parametrize("compacted", [False, True])
def test_the_state_is_what_the_records_say(compacted):
    registry = busy_registry()
    again = registry.restarted(compacted=compacted)
    for path in PATHS:
        assert again.get(path).json == registry.get(path).json, path
    # What is known of schemas is known again: none gets a second id.
    proto = 'syntax = "proto3";\n// a comment\nmessage M { int32 a = 1; }'
    assert again.register("p2", proto, schemaType="PROTOBUF").json["id"] == 4
    assert again.register("j2", '{ "type": "object" }', schemaType="JSON").json["id"] == 3


def test_records_that_come_twice_change_nothing():
    registry = busy_registry()
    twice = Registry([each for each in registry.records for _ in range(2)])
    for path in PATHS:
        assert twice.get(path).json == registry.get(path).json, path


def test_stored_schemas_that_are_not_valid_can_be_read_and_replaced():
    """Other registries have taken names that Avro does not allow."""
    text = json.dumps({"type": "record", "name": "a", "namespace": "x-y", "fields": []})
    value = {"subject": "s", "version": 1, "id": 1, "schema": text, "deleted": False}
    broken = {"subject": "t", "version": 1, "id": 2, "schema": "{", "deleted": False}
    registry = Registry(
        [
            (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', json.dumps(value).encode()),
            (b'{"keytype":"SCHEMA","subject":"t","version":1,"magic":1}', json.dumps(broken).encode()),
        ]
    )
    assert registry.get("/schemas/ids/1").json["schema"] == text
    assert registry.get("/schemas/ids/2").json["schema"] == "{"
    wider = {"type": "record", "name": "a", "namespace": "xy", "fields": []}
    assert registry.register("s", wider).status == 200
    assert registry.register("t", '"int"').status == 409
    registry.level("t", "NONE")
    assert registry.register("t", '"int"').json["id"] == 4
