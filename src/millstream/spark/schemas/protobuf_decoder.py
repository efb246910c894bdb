"""Protobuf records: message indexes, then the message, each read with the schema that it was written with.

Arrow types: messages are structs, repeated fields lists, maps maps, enums strings (a number without a name is that
number). ``google.protobuf.Timestamp`` is a timestamp in UTC, its nanoseconds cut to microseconds, and the wrappers are
their values. A field that knows whether it was set is null where it was not; every other one has its default. Fields
are matched by number, so a field that was renamed stays the same column.

``Struct``, ``Value``, ``ListValue``, ``Any``, a message within itself and one without fields are JSON text, in
Protobuf's own JSON form. The columns are the fields of one message, named in full; message indexes say which message a
record is, and a record of another message is an error. Without a name it is the first message of the reader schema.
"""

import base64
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor

from millstream.errors import Rejected
from millstream.registry.formats.parsed import InvalidSchema
from millstream.registry.formats.protobuf_format import ROOT, parse_protobuf, pool_of
from millstream.spark.fitting import (
    JSON_TEXT,
    MISSING,
    Fault,
    Member,
    Within,
    built,
    fault_of,
    list_of,
    stored,
    struct_of,
)
from millstream.spark.schemas.decoded import (
    VALUE,
    Array,
    Columns,
    ForeignSchema,
    Undecodable,
    WireDecoder,
    Written,
    columns_of,
)
from millstream.spark.schemas.source import Resolved, SchemaSource

_INDEXES_MAX: Final = 64
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_ANY_JSON: Final = frozenset(f"google.protobuf.{kind}" for kind in ("Struct", "Value", "ListValue", "Any"))
_SCALARS: Final[dict[int, Any]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(), FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(), FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(), FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(), FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}  # fmt: skip


class ProtobufDecoder(WireDecoder):
    """See the opening prose. The columns are the fields of ``message``."""

    def __init__(
        self,
        source: SchemaSource,
        reader: Resolved,
        *,
        message: str | None = None,
        columns: Columns | None = None,
        stop_at_boundary: bool = True,
        subjects: Sequence[str] = (),
        fail_on_schema: bool = False,
    ) -> None:
        self._message = message or first_message(reader)
        super().__init__(
            source,
            reader,
            columns or columns_of(protobuf_members(reader, self._message)),
            stop_at_boundary=stop_at_boundary,
            subjects=subjects,
            fail_on_schema=fail_on_schema,
        )
        self._files: dict[int, Any] = {}

    def _key(self, content: memoryview, schema_id: int) -> tuple[Any, memoryview]:
        indexes, start = _indexes(content)
        return (schema_id, *indexes), content[start:]

    def _written(self, schema_id: int, key: Any, writer: Resolved) -> Written:
        if schema_id not in self._files:
            self._files[schema_id] = _file(writer)
        found: Any = None
        known = list(self._files[schema_id].message_types_by_name.values())
        for index in key[1:]:
            if not 0 <= index < len(known):
                raise ForeignSchema(f"schema {schema_id} has no message {list(key[1:])}")
            found = known[index]
            known = list(found.nested_types)
        if found.full_name != self._message:
            raise ForeignSchema(f"the record is a {found.full_name}, and the columns are of {self._message}")
        return _ProtobufWritten(schema_id, found)


class _ProtobufWritten(Written):
    def __init__(self, schema_id: int, message: Any) -> None:
        self.members = _members_of(message)
        self._id = schema_id
        self._class: Any = message_factory.GetMessageClass(message)
        self._convert: Callable[[Any], Any] = (
            _converter(message, self.members) if message.fields else lambda value: {VALUE: _json_of(value)}
        )

    def decode(self, contents: Sequence[memoryview], faults: dict[int, Fault]) -> Array:
        rows: list[Any] = []
        for index, content in enumerate(contents):
            row = None
            try:
                row = self._convert(self._message(content))
            except Exception as error:  # noqa: BLE001 (of any kind: a record never ends its batch)
                faults[index] = fault_of(Undecodable(f"not readable with schema {self._id}: {error}"))
            rows.append(row)
        return built(rows, stored(struct_of(self.members)), faults)

    def _message(self, content: memoryview) -> Any:
        """The message in these bytes.

        Raises:
            ValueError: it has what the schema does not have, which would be left out silently.
        """
        message = self._class.FromString(content.tobytes())
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            raise ValueError("it has a field, or a number of an enum, that the schema does not have")
        return message


def first_message(resolved: Resolved) -> str:
    """The full name of the first message of a schema.

    Raises:
        Rejected: it is no valid Protobuf schema, or has no message.
    """
    found = next(iter(_file(resolved).message_types_by_name.values()), None)
    if found is None:
        raise Rejected("the Protobuf schema has no message, so it has no columns")
    return found.full_name


def protobuf_members(resolved: Resolved, message: str) -> tuple[Member, ...]:
    """The columns of a message.

    Raises:
        Rejected: it is no valid Protobuf schema, or has no such message.
    """
    file = _file(resolved)
    try:
        return _members_of(file.pool.FindMessageTypeByName(message))
    except KeyError:
        known = ", ".join(each.full_name for each in file.message_types_by_name.values())
        raise Rejected(f"the Protobuf schema has no message {message}; it has {known}") from None


def _members_of(message: Any) -> tuple[Member, ...]:
    if not message.fields:
        return (Member(VALUE, JSON_TEXT),)
    return _fields(message, Within((message.full_name,)))


def _file(resolved: Resolved) -> Any:
    if resolved.schema.type != "PROTOBUF":
        raise Rejected(f"a schema of type {resolved.schema.type} is no Protobuf schema")
    try:
        parsed = parse_protobuf(resolved.schema.text, resolved.references)
        return pool_of(parsed).FindFileByName(ROOT)
    except (InvalidSchema, TypeError) as error:
        raise Rejected(f"not a valid Protobuf schema: {error}") from error


def _indexes(content: memoryview) -> tuple[tuple[int, ...], int]:
    """The message indexes before a message, and where they end: zigzag varints, their number first; 0 is ``[0]``."""
    count, at = _varint(content, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _INDEXES_MAX:
        raise Undecodable(f"the record names {count} message indexes")
    found: list[int] = []
    for _ in range(count):
        index, at = _varint(content, at)
        found.append(index)
    return tuple(found), at


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(5):
        if at + place >= len(content):
            raise Undecodable("the record ends within its message indexes")
        byte = content[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise Undecodable("a message index is longer than five bytes")


_Typed = tuple[Any, tuple[Member, ...]]
"""An Arrow type, and the members of the struct within it."""


def _fields(message: Any, above: Within) -> tuple[Member, ...]:
    found: list[Member] = []
    above.count(len(message.fields))
    for field in message.fields:
        kind, members = _field_type(field, above)
        found.append(Member(field.name, kind, members, number=field.number, default=_default(field)))
    return tuple(found)


def _default(field: Any) -> Any:
    """What a record without the field says of it: nothing, if it would know that it has none."""
    if field.has_presence:
        return MISSING
    if field.is_repeated:
        return []
    if field.enum_type is not None:
        return field.enum_type.values_by_number[field.default_value].name
    return field.default_value


def _field_type(field: Any, above: Within) -> _Typed:
    if _is_map(field):
        key, value = field.message_type.fields
        inner, members = _single_type(value, above)
        return pa.map_(_single_type(key, above)[0], inner), members
    single, members = _single_type(field, above)
    return (list_of(single) if field.is_repeated else single), members


def _single_type(field: Any, above: Within) -> _Typed:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()), ()
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _SCALARS[field.cpp_type], ()
    message = field.message_type
    if message.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC"), ()
    if message.full_name in _WRAPPERS:
        return _single_type(message.fields_by_name["value"], above)
    if message.full_name in _ANY_JSON or not message.fields or above.holds(message.full_name):
        return JSON_TEXT, ()
    members = _fields(message, above.into(message.full_name))
    return struct_of(members), members


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _converter(message: Any, members: Sequence[Member]) -> Callable[[Any], dict[str, Any]]:
    """A function from a message to a dict of its members that pyarrow takes."""
    pairs = zip(message.fields, members, strict=True)
    fields = [(field.name, field.has_presence, _field_converter(field, member)) for field, member in pairs]

    def convert(value: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not value.HasField(name) else member(getattr(value, name))
            for name, has_presence, member in fields
        }

    return convert


def _field_converter(field: Any, member: Member) -> Callable[[Any], Any]:
    if _is_map(field):
        single = _single_converter(field.message_type.fields_by_name["value"], member.type.item_type, member)
        return lambda value: [(key, single(value[key])) for key in value]
    kind = member.type.value_type if field.is_repeated else member.type
    single = _single_converter(field, kind, member)
    return (lambda values: [single(value) for value in values]) if field.is_repeated else single


def _single_converter(field: Any, kind: Any, member: Member) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return lambda value: _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if field.message_type.full_name in _WRAPPERS:
        return lambda value: value.value
    return _json_of if kind == JSON_TEXT else _converter(field.message_type, member.members)


def _json_of(value: Any) -> str:
    """A message in Protobuf's JSON form. An ``Any`` of an unknown type keeps its bytes as base64."""
    try:
        found = json_format.MessageToDict(
            value, preserving_proto_field_name=True, descriptor_pool=value.DESCRIPTOR.file.pool
        )
    except (TypeError, json_format.Error):
        if value.DESCRIPTOR.full_name != "google.protobuf.Any":
            raise
        found = {"@type": value.type_url, "value": base64.b64encode(value.value).decode()}
    return msgspec.json.encode(found).decode()
