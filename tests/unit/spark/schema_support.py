"""Schemas of the three formats, and values in them."""

import io
import json

import fastavro
import msgspec

from millstream.registry.formats.protobuf_format import ROOT, parse_protobuf, pool_of
from millstream.registry.model import Schema
from millstream.spark.schemas.source import Resolved, Use


class Schemas:
    """A registry in memory; ids count from 1 and are the versions of one subject, but for those that ``foreign`` and
    ``deleted`` name.
    """

    def __init__(self, *resolved, foreign=(), deleted=()):
        self.held = list(resolved)
        self.foreign, self.deleted = set(foreign), set(deleted)

    def by_id(self, schema_id):
        return self.held[schema_id - 1] if 1 <= schema_id <= len(self.held) else None

    def uses(self, schema_id):
        subject = "others-value" if schema_id in self.foreign else "s"
        return (Use(subject, schema_id, schema_id in self.deleted),)

    def latest(self, subject):
        number = max(n for n in range(1, len(self.held) + 1) if n not in self.foreign | self.deleted)
        return msgspec.structs.replace(self.held[number - 1], id=number, subject="s", version=number)

    def first(self, subject):
        return self.held[0]


def avro_bytes(schema_id, resolved, row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(resolved.schema.text)), row)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def proto(body, references=()):
    return Resolved(Schema(f'syntax = "proto3"; package p; {body}', "PROTOBUF"), references)


def message_class(resolved, name):
    from google.protobuf import message_factory

    pool = pool_of(parse_protobuf(resolved.schema.text, resolved.references))
    assert pool.FindFileByName(ROOT)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def json_schema(properties, *, references=(), **more):
    return Resolved(Schema(json.dumps({"type": "object", "properties": properties, **more}), "JSON"), references)


def json_bytes(schema_id, row):
    return b"\0" + schema_id.to_bytes(4, "big") + (row if isinstance(row, bytes) else json.dumps(row).encode())
