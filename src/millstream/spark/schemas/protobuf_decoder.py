"""Protobuf records: message indexes, then the message, read with the reader schema's message of the same name.

Arrow types: messages are structs, repeated fields lists, maps maps, enums strings (a number without a name is that
number). ``google.protobuf.Timestamp`` is a timestamp in UTC, and the wrappers are their values. A field that knows
whether it was set is null where it was not; every other one has its default. A message within itself has no column
type. Fields that the reader schema does not have are skipped, as Protobuf has it.
"""

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from millstream.errors import Rejected
from millstream.registry.formats.parsed import InvalidSchema
from millstream.registry.formats.protobuf_format import ROOT, parse_protobuf, pool_of
from millstream.spark.schemas.decoded import Undecodable, WireDecoder
from millstream.spark.schemas.source import Resolved, SchemaSource

_INDEXES_MAX: Final = 64
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_SCALARS: Final[dict[int, Any]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(), FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(), FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(), FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(), FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}  # fmt: skip


class ProtobufDecoder(WireDecoder):
    """See the opening prose. The columns are the fields of ``message``, by default the first of the reader schema."""

    def __init__(
        self, source: SchemaSource, reader: Resolved, *, message: str | None = None, stop_at_boundary: bool = True
    ) -> None:
        file = _file(reader)
        if message is None:
            if not file.message_types_by_name:
                raise Rejected("the Protobuf schema has no message, so it has no columns")
            self._message = next(iter(file.message_types_by_name.values()))
        else:
            self._message = file.pool.FindMessageTypeByName(message)
        super().__init__(source, _struct(self._message, ()), stop_at_boundary=stop_at_boundary)
        self._class: Any = message_factory.GetMessageClass(self._message)
        self._convert = _converter(self._message)
        self._files: dict[int, Any] = {}

    def _row(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:
        message, start = self._written(content, schema_id, writer)
        if message.full_name != self._message.full_name:
            raise Undecodable(f"the record is a {message.full_name}, and the columns are of {self._message.full_name}")
        try:
            return self._convert(self._class.FromString(content[start:].tobytes()))
        except (DecodeError, OverflowError, ValueError) as error:
            raise Undecodable(f"not readable with schema {schema_id}: {error}") from error

    def _type_of(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:
        message, _ = self._written(content, schema_id, writer)
        if message.full_name != self._message.full_name:
            return ()  # an error of the record, not a wider table
        try:
            return _struct(message, ())
        except Rejected as error:
            raise Undecodable(f"schema {schema_id}: {error.message}") from error

    def _key(self, content: memoryview, schema_id: int) -> Any:
        indexes, _ = _indexes(content)
        return schema_id, *indexes

    def _written(self, content: memoryview, schema_id: int, writer: Resolved) -> tuple[Any, int]:
        """The message type of a record, and where the message begins."""
        if schema_id not in self._files:
            try:
                self._files[schema_id] = _file(writer)
            except Rejected as error:
                raise Undecodable(f"schema {schema_id}: {error.message}") from error
        indexes, start = _indexes(content)
        found: Any = None
        known = list(self._files[schema_id].message_types_by_name.values())
        for index in indexes:
            if not 0 <= index < len(known):
                raise Undecodable(f"schema {schema_id} has no message {list(indexes)}")
            found = known[index]
            known = list(found.nested_types)
        return found, start


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


def _struct(message: Any, above: tuple[str, ...]) -> Any:
    if message.full_name in above:
        raise Rejected(f"message {message.full_name} is within itself, which has no column type")
    inside = (*above, message.full_name)
    return pa.struct([pa.field(field.name, _field_type(field, inside)) for field in message.fields])


def _field_type(field: Any, above: tuple[str, ...]) -> Any:
    if _is_map(field):
        key, value = field.message_type.fields
        return pa.map_(_single_type(key, above), _single_type(value, above))
    single = _single_type(field, above)
    return pa.list_(single) if field.is_repeated else single


def _single_type(field: Any, above: tuple[str, ...]) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _SCALARS[field.cpp_type]
    if field.message_type.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if field.message_type.full_name in _WRAPPERS:
        return _single_type(field.message_type.fields_by_name["value"], above)
    return _struct(field.message_type, above)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _converter(message: Any) -> Callable[[Any], dict[str, Any]]:
    """A function from a message to a dict that pyarrow takes."""
    members = [(field.name, field.has_presence, _field_converter(field)) for field in message.fields]

    def convert(value: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not value.HasField(name) else member(getattr(value, name))
            for name, has_presence, member in members
        }

    return convert


def _field_converter(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        single = _single_converter(field.message_type.fields_by_name["value"])
        return lambda value: [(key, single(value[key])) for key in value]
    single = _single_converter(field)
    return (lambda values: [single(value) for value in values]) if field.is_repeated else single


def _single_converter(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return lambda value: _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if field.message_type.full_name in _WRAPPERS:
        return lambda value: value.value
    return _converter(field.message_type)
