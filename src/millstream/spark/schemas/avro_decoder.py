"""Avro records by fastavro, written with any schema, read with one.

Arrow types: a union of null and one type is that type, nullable; ``int`` and ``long`` in a union are ``long``,
``float`` and ``double`` are ``double``. Enums and UUIDs are strings. Dates, timestamps and decimals are themselves, the
other logical types are their plain types. A union of other types, and a record within itself, have no column type.
"""

import io
import json
import struct
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from millstream.errors import Rejected
from millstream.spark.schemas.decoded import Undecodable, WireDecoder
from millstream.spark.schemas.source import Resolved, SchemaSource

_FAILURES: Final = (
    SchemaResolutionError, ArithmeticError, AssertionError, AttributeError, EOFError, LookupError,
    RecursionError, TypeError, ValueError, struct.error,
)  # fmt: skip
_PLAIN: Final[dict[str, Any]] = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
_LOGICAL: Final[dict[str, Any]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"), "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"), "local-timestamp-micros": pa.timestamp("us"),
}  # fmt: skip
_DECIMAL_DIGITS_MAX: Final = 38


class AvroDecoder(WireDecoder):
    """See the opening prose. ``reader`` is a record."""

    def __init__(self, source: SchemaSource, reader: Resolved, *, stop_at_boundary: bool = True) -> None:
        self._names: dict[str, Any] = {}
        self._reader = _parsed(reader, self._names)
        super().__init__(source, _record_type(self._reader, self._names), stop_at_boundary=stop_at_boundary)
        self._writers: dict[int, Any] = {}

    def _row(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:
        data = io.BytesIO(content)
        try:
            row = fastavro.schemaless_reader(data, self._writer(schema_id, writer), self._reader)
        except _FAILURES as error:
            raise Undecodable(f"not readable with schema {schema_id}: {error or type(error).__name__}") from error
        if (left := len(content) - data.tell()) > 0:
            raise Undecodable(f"{left} bytes are left behind the record of schema {schema_id}")
        return row

    def _type_of(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:  # noqa: ARG002
        names: dict[str, Any] = {}
        try:
            return _record_type(_parsed(writer, names), names)
        except Rejected as error:
            raise Undecodable(f"schema {schema_id}: {error.message}") from error

    def _key(self, content: memoryview, schema_id: int) -> Any:  # noqa: ARG002
        return schema_id

    def _writer(self, schema_id: int, writer: Resolved) -> Any:
        if schema_id not in self._writers:
            try:
                self._writers[schema_id] = _parsed(writer, {})
            except Rejected as error:
                raise Undecodable(f"schema {schema_id}: {error.message}") from error
        return self._writers[schema_id]


def _parsed(resolved: Resolved, names: dict[str, Any]) -> Any:
    if resolved.schema.type != "AVRO":
        raise Rejected(f"a schema of type {resolved.schema.type} is no Avro schema")
    try:
        for reference in resolved.references:
            parse_schema(_without_other_logic(json.loads(reference.schema.text)), named_schemas=names)
        return parse_schema(_without_other_logic(json.loads(resolved.schema.text)), named_schemas=names)
    except (SchemaParseException, UnknownType, ValueError, LookupError, TypeError, RecursionError) as error:
        raise Rejected(f"not a valid Avro schema: {error!r}") from error


def _without_other_logic(node: Any) -> Any:
    """The schema without logical types that have no column type."""
    if isinstance(node, list):
        return [_without_other_logic(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {name: value if name == "default" else _without_other_logic(value) for name, value in node.items()}
    if "logicalType" in kept and kept["logicalType"] not in _LOGICAL and not _is_decimal(kept):
        del kept["logicalType"]
    return kept


def _is_decimal(node: Any) -> bool:
    precision = node.get("precision")
    return node.get("logicalType") == "decimal" and isinstance(precision, int) and 0 < precision <= _DECIMAL_DIGITS_MAX


def _record_type(schema: Any, names: dict[str, Any]) -> Any:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise Rejected("the Avro schema is no record, so it has no columns")
    return _type(schema, names, ())


def _type(schema: Any, names: dict[str, Any], above: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return _union(schema, names, above)
    if isinstance(schema, str):
        return _PLAIN[schema] if schema in _PLAIN else _type(names[schema], names, above)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _type(kind, names, above)
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind == "record":
        if schema["name"] in above:
            raise Rejected(f"record {schema['name']} is within itself, which has no column type")
        inside = (*above, schema["name"])
        return pa.struct([pa.field(field["name"], _type(field["type"], names, inside)) for field in schema["fields"]])
    if kind == "array":
        return pa.list_(_type(schema["items"], names, above))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], names, above))
    return _PLAIN[kind] if kind in _PLAIN else _type(names[kind], names, above)


def _union(branches: list[Any], names: dict[str, Any], above: tuple[str, ...]) -> Any:
    kinds = [_type(branch, names, above) for branch in branches if branch != "null"]
    distinct = {str(kind) for kind in kinds}
    if len(distinct) <= 1:
        return kinds[0] if kinds else pa.null()
    if distinct == {"int32", "int64"}:
        return pa.int64()
    if distinct == {"float", "double"}:
        return pa.float64()
    raise Rejected(f"a union of {', '.join(sorted(distinct))} has no column type")
