"""Avro records by fastavro, each read with the schema that it was written with.

Arrow types: a union of null and one type is that type, nullable; ``int`` and ``long`` in a union are ``long``,
``float`` and ``double`` are ``double``. Enums and UUIDs are strings. Dates, timestamps and decimals are themselves, the
other logical types are their plain types. Any other union, a record within itself, and a record without fields have no
column type: their values are JSON text. In a union of several records the text names the branch, ``{"Name": {…}}``, as
Avro's JSON encoding does. A schema that is no record has one column, ``value``.

fastavro's compiled reader ends the process on a record that is nested some ten thousand times, so schemas with a record
within itself are read by its Python reader, which stops at Python's limit. Arrays whose items take no bytes are
refused: a few bytes could claim any number of them.
"""

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro._read_py import (  # pyright: ignore[reportMissingTypeStubs] (see the opening prose)
    schemaless_reader as schemaless_python_reader,
)
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from millstream.errors import Rejected
from millstream.spark.fitting import (
    JSON_TEXT,
    MISSING,
    Fault,
    Member,
    Within,
    built,
    fault_of,
    has_json_text,
    json_text,
    list_of,
    stored,
    struct_of,
)
from millstream.spark.schemas.decoded import (
    VALUE,
    Array,
    Columns,
    Undecodable,
    WireDecoder,
    Written,
    columns_of,
)
from millstream.spark.schemas.source import Resolved, SchemaSource

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
    """See the opening prose."""

    def __init__(
        self,
        source: SchemaSource,
        reader: Resolved,
        *,
        columns: Columns | None = None,
        stop_at_boundary: bool = True,
        subjects: Sequence[str] = (),
        fail_on_schema: bool = False,
    ) -> None:
        super().__init__(
            source,
            reader,
            columns or columns_of(avro_members(reader)),
            stop_at_boundary=stop_at_boundary,
            subjects=subjects,
            fail_on_schema=fail_on_schema,
        )

    def _written(self, schema_id: int, key: Any, writer: Resolved) -> Written:  # noqa: ARG002
        return _AvroWritten(schema_id, writer)


class _AvroWritten(Written):
    def __init__(self, schema_id: int, writer: Resolved) -> None:
        names: dict[str, Any] = {}
        self._schema = _parsed(writer, names)
        self.members = _members_of(self._schema, names)
        self._id = schema_id
        self._is_record = _is_record(self._schema)
        self._weightless = _has_weightless_items(self._schema, names)
        self._read: Any = (
            schemaless_python_reader if _is_within_itself(self._schema, names, ()) else fastavro.schemaless_reader
        )
        whole = struct_of(self.members)
        self._convert = _converter(whole) if has_json_text(whole) else None

    def decode(self, contents: Sequence[memoryview], faults: dict[int, Fault]) -> Array:
        rows: list[Any] = []
        for index, content in enumerate(contents):
            row = None
            try:
                row = self._row(content)
            except Exception as error:  # noqa: BLE001 (fastavro raises what its inner workings do)
                faults[index] = fault_of(error)
            rows.append(row)
        return built(rows, stored(struct_of(self.members)), faults)

    def _row(self, content: memoryview) -> Any:
        if self._weightless:
            raise Undecodable(f"schema {self._id} has an array whose items take no bytes")
        data = io.BytesIO(content)
        try:
            row = self._read(data, self._schema, None, return_record_name=True, return_record_name_override=True)
        except Exception as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error or type(error).__name__
            raise Undecodable(f"not readable with schema {self._id}: {reason}") from error
        if (left := len(content) - data.tell()) > 0:
            raise Undecodable(f"{left} bytes are left after the record of schema {self._id}")
        row = row if self._is_record else {VALUE: row}
        return row if self._convert is None else self._convert(row)


def avro_members(resolved: Resolved) -> tuple[Member, ...]:
    """The columns of an Avro schema.

    Raises:
        Rejected: it is no valid Avro schema.
    """
    names: dict[str, Any] = {}
    return _members_of(_parsed(resolved, names), names)


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
    precision, scale = node.get("precision"), node.get("scale", 0)
    sound = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision
    return node.get("logicalType") == "decimal" and sound and 0 < precision <= _DECIMAL_DIGITS_MAX


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") in ("record", "error")


def _members_of(schema: Any, names: dict[str, Any]) -> tuple[Member, ...]:
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if _is_record(schema) and schema["fields"]:
        return _fields(schema, names, Within((schema["name"],)))
    kind, members = _type(schema, names, Within())
    return (Member(VALUE, kind, members),)


def _fields(schema: Any, names: dict[str, Any], above: Within) -> tuple[Member, ...]:
    found: list[Member] = []
    above.count(len(schema["fields"]))
    for field in schema["fields"]:
        kind, members = _type(field["type"], names, above)
        default = _default(field, names) if "default" in field else MISSING
        found.append(Member(field["name"], kind, members, tuple(field.get("aliases") or ()), None, default))
    return tuple(found)


_Typed = tuple[Any, tuple[Member, ...]]
"""An Arrow type, and the members of the struct within it."""
_ANY: Final[_Typed] = (JSON_TEXT, ())
_TEXTS_OR_BYTES: Final = (Member("", pa.string()), Member("", pa.binary()))
"""Members of a union whose JSON text does not tell texts from bytes."""


def _type(schema: Any, names: dict[str, Any], above: Within) -> _Typed:
    if isinstance(schema, list):
        return _union(schema, names, above)
    if isinstance(schema, str):
        return (_PLAIN[schema], ()) if schema in _PLAIN else _type(names[schema], names, above)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _type(kind, names, above)
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]], ()
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), ()
    if kind in ("record", "error"):
        if not schema["fields"] or above.holds(schema["name"]):
            return _ANY
        members = _fields(schema, names, above.into(schema["name"]))
        return struct_of(members), members
    if kind in ("array", "map"):
        if above.holds(kind):
            return _ANY
        inner, members = _type(schema["items" if kind == "array" else "values"], names, above.into(None))
        if inner == pa.null():
            inner = JSON_TEXT
        return (list_of(inner) if kind == "array" else pa.map_(pa.string(), inner)), members
    return (_PLAIN[kind], ()) if kind in _PLAIN else _type(names[kind], names, above)


def _union(branches: list[Any], names: dict[str, Any], above: Within) -> _Typed:
    kinds = [_type(branch, names, above) for branch in branches if branch != "null"]
    records = sum(1 for branch in branches if _is_record(names.get(branch) if isinstance(branch, str) else branch))
    distinct = {str(kind) for kind, _ in kinds}
    if records <= 1:
        if len(kinds) == 1:
            return kinds[0]
        if len(distinct) == 1 and not records:
            return kinds[0]
        if distinct == {"int32", "int64"}:
            return pa.int64(), ()
        if distinct == {"float", "double"}:
            return pa.float64(), ()
        if not kinds:
            return pa.null(), ()
    return (JSON_TEXT, _TEXTS_OR_BYTES) if {"string", "binary"} <= distinct else _ANY


def _default(field: Any, names: dict[str, Any]) -> Any:
    """A default as fastavro would have read it; None where it cannot be written."""
    out = io.BytesIO()
    try:
        plain = json.loads(json.dumps(field["type"]), object_hook=_without_logic)
        fastavro.schemaless_writer(out, {"type": "record", "name": "_D", "fields": [{"name": "v", "type": plain}]},
                                   {"v": _datum(field["default"], field["type"], names)})  # fmt: skip
        whole = {"type": "record", "name": "_D", "fields": [{"name": "v", "type": field["type"]}]}
        out.seek(0)
        value: Any = fastavro.schemaless_reader(out, whole, None)
        kind, _ = _type(field["type"], names, Within())
        return _converter(kind)(value["v"]) if has_json_text(kind) else value["v"]
    except Exception:  # noqa: BLE001 (a schema that another registry took: the member is null then)
        return None


def _without_logic(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "logicalType"}


def _datum(default: Any, schema: Any, names: dict[str, Any]) -> Any:
    """A default of a schema's JSON as fastavro writes it: bytes stand as text, a union's is of its first branch."""
    if isinstance(schema, list):
        return _datum(default, schema[0], names)
    if isinstance(schema, str) and schema not in _PLAIN:
        return _datum(default, names[schema], names)
    held: dict[str, Any] = {"type": schema} if isinstance(schema, str) else schema
    schema, kind = held, held["type"]
    if kind in ("bytes", "fixed"):
        return default.encode("latin-1")
    if kind in ("record", "error"):
        fields = {field["name"]: field for field in schema["fields"]}
        return {
            name: _datum(default.get(name, field.get("default")), field["type"], names)
            for name, field in fields.items()
        }
    if kind == "array":
        return [_datum(item, schema["items"], names) for item in default]
    if kind == "map":
        return {name: _datum(item, schema["values"], names) for name, item in default.items()}
    return default


def _converter(kind: Any) -> Callable[[Any], Any]:
    """A function from what fastavro reads to what pyarrow takes, for a type with ``JSON_TEXT`` within."""
    if kind == JSON_TEXT:
        return json_text
    if not has_json_text(kind):
        return _as_it_is
    if pa.types.is_struct(kind):
        members = [(field.name, _converter(field.type)) for field in kind]

        def struct(value: Any) -> Any:
            return None if value is None else {name: convert(value[name]) for name, convert in members}

        return struct
    inner = _converter(kind.item_type if pa.types.is_map(kind) else kind.value_type)

    def mapping(value: Any) -> Any:
        return None if value is None else {name: inner(each) for name, each in value.items()}

    def sequence(value: Any) -> Any:
        return None if value is None else [inner(each) for each in value]

    return mapping if pa.types.is_map(kind) else sequence


def _as_it_is(value: Any) -> Any:
    return value


def _is_within_itself(schema: Any, names: dict[str, Any], above: tuple[str, ...]) -> bool:
    return any(_is_within_itself(*inner) for inner in _inner(schema, names, above)) or _repeats(schema, above)


def _repeats(schema: Any, above: tuple[str, ...]) -> bool:
    name = schema if isinstance(schema, str) else schema.get("name") if isinstance(schema, dict) else None
    return name in above


def _inner(schema: Any, names: dict[str, Any], above: tuple[str, ...]) -> list[tuple[Any, dict[str, Any], Any]]:
    """The schemas right within a schema, each with the names of the records around it."""
    if isinstance(schema, list):
        return [(branch, names, above) for branch in schema]
    if isinstance(schema, str):
        return [] if schema in _PLAIN or schema in above else [(names[schema], names, above)]
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return [(kind, names, above)]
    if kind in ("record", "error"):
        if schema["name"] in above:
            return []
        return [(field["type"], names, (*above, schema["name"])) for field in schema["fields"]]
    if kind in ("array", "map"):
        return [(schema["items" if kind == "array" else "values"], names, above)]
    return [] if kind in _PLAIN or kind in above else [(names[kind], names, above)]


def _has_weightless_items(schema: Any, names: dict[str, Any], above: tuple[str, ...] = ()) -> bool:
    """Whether an array in the schema has items that take no bytes."""
    if isinstance(schema, dict) and schema["type"] == "array" and _is_weightless(schema["items"], names, ()):
        return True
    return any(_has_weightless_items(*inner) for inner in _inner(schema, names, above))


def _is_weightless(schema: Any, names: dict[str, Any], above: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        if schema in _PLAIN or schema in above:
            return schema == "null"
        return _is_weightless(names[schema], names, above)
    if isinstance(schema, list):
        return False  # a branch's number is a byte
    kind = schema["type"]
    if kind == "fixed":
        return schema.get("size") == 0
    if kind in ("record", "error"):
        inside = (*above, schema["name"])
        return all(_is_weightless(field["type"], names, inside) for field in schema["fields"])
    return (
        kind == "null"
        if isinstance(kind, str) and kind in (*_PLAIN, "array", "map")
        else _is_weightless(kind, names, above)
    )
