"""JSON records of a JSON Schema, behind a schema id, to typed columns.

Columns come from the schema's ``properties``: ``integer`` is a bigint, ``number`` a double, ``string`` with format
``date-time`` a timestamp and with ``date`` a date, an object with properties a struct, one with only
``additionalProperties`` a map, an array a list of its ``items``. A union with ``null`` is that type, nullable. Other
unions, schemas within themselves and values of any type have no column type and are refused when the decoder is made.

Records are read strictly: a value of another type and a missing required member of the record itself make an error of
the record. Keywords that narrow a type (``minimum``, ``pattern`` …) are the producer's and are not checked again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa

from millstream.errors import Rejected
from millstream.spark.declared import Field
from millstream.spark.schemas.decoded import Array, Boundary, Decoded, Undecodable, WireDecoder
from millstream.spark.schemas.source import Resolved, SchemaSource
from millstream.spark.values import JsonDecoder

_FORMATS: Final[Mapping[str, Any]] = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}
_PLAIN: Final[Mapping[str, Any]] = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_DEPTH_MAX: Final = 16


class JsonSchemaDecoder(WireDecoder):
    """See the opening prose. ``reader`` is an object."""

    def __init__(self, source: SchemaSource, reader: Resolved, *, stop_at_boundary: bool = True) -> None:
        fields = json_schema_fields(reader)
        super().__init__(source, _struct(fields), stop_at_boundary=stop_at_boundary)
        self._values = JsonDecoder(fields)

    def decode(self, values: Array) -> Decoded:
        """As ``WireDecoder.decode``; all records of a batch are read at once."""
        contents: list[bytes | None] = []
        errors: list[str | None] = []
        boundary: Boundary | None = None
        for index, value in enumerate(values.to_pylist()):
            content, error = None, None
            if value is not None:
                try:
                    opened, schema_id, writer = self._opened(value)
                    if self._stop and (wider := self._wider_fields(opened, schema_id, writer)) is not None:
                        boundary = Boundary(index, schema_id, wider)
                        break
                    content = bytes(opened)
                except Undecodable as problem:
                    error = str(problem)
            contents.append(content)
            errors.append(error)
        decoded = self._values.decode(pa.array(contents, pa.binary()))
        found = [
            error if content is None else inner
            for content, error, inner in zip(contents, errors, decoded.errors.to_pylist(), strict=True)
        ]
        return Decoded(decoded.columns, pa.array(found, pa.string()), boundary)

    def _row(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:
        raise NotImplementedError("decode() reads whole batches")

    def _type_of(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:  # noqa: ARG002
        try:
            return _struct(json_schema_fields(writer))
        except Rejected as error:
            raise Undecodable(f"schema {schema_id}: {error.message}") from error

    def _key(self, content: memoryview, schema_id: int) -> Any:  # noqa: ARG002
        return schema_id


def json_schema_fields(resolved: Resolved) -> tuple[Field, ...]:
    """The columns of a JSON Schema.

    Raises:
        Rejected: it is no JSON Schema of an object whose members have column types.
    """
    if resolved.schema.type != "JSON":
        raise Rejected(f"a schema of type {resolved.schema.type} is no JSON Schema")
    return _Reader(resolved).fields()


def _struct(fields: Sequence[Field]) -> Any:
    return pa.struct([pa.field(field.name, field.type) for field in fields])


class _Reader:
    """Walks one schema document and those that it refers to."""

    def __init__(self, resolved: Resolved) -> None:
        self._root = _document(resolved.schema.text)
        self._others = {named.name: _document(named.schema.text) for named in resolved.references}

    def fields(self) -> tuple[Field, ...]:
        node, root, _ = self._open(self._root, self._root, 0)
        members = _mapping(node.get("properties"))
        if not members:
            raise Rejected("the JSON Schema is of no object with properties, so it has no columns")
        required = node.get("required")
        needed = set(map(str, cast("list[Any]", required))) if isinstance(required, list) else set[str]()
        found: list[Field] = []
        for name, member in members.items():
            kind, nullable = self._type(member, root, 1, name)
            found.append(Field(name, kind, name in needed and not nullable))
        return tuple(found)

    def _open(self, node: Any, root: Any, depth: int) -> tuple[dict[str, Any], Any, bool]:
        """A node without references and without the null of a union; its document, and whether null was there."""
        nullable = False
        while True:
            depth += 1
            if depth > _DEPTH_MAX:
                raise Rejected(f"the JSON Schema is nested deeper than {_DEPTH_MAX}, or within itself")
            if node is True or not isinstance(node, dict):
                raise Rejected("a value of any type has no column type")
            held = cast("dict[str, Any]", node)
            if isinstance(held.get("$ref"), str):
                node, root = self._target(held["$ref"], root)
                continue
            branches = held.get("oneOf") or held.get("anyOf")
            if not isinstance(branches, list):
                return held, root, nullable
            kept = [branch for branch in cast("list[Any]", branches) if not _is_null(branch)]
            nullable = nullable or len(kept) < len(cast("list[Any]", branches))
            if len(kept) != 1:
                raise Rejected("a union of several types has no column type")
            node = kept[0]

    def _type(self, node: Any, root: Any, depth: int, name: str) -> tuple[Any, bool]:
        """The Arrow type of a node, and whether it may be null."""
        try:
            held, root, nullable = self._open(node, root, depth)
            kinds = held.get("type")
            names = [str(kind) for kind in cast("list[Any]", kinds)] if isinstance(kinds, list) else [str(kinds)]
            nullable = nullable or "null" in names
            names = [kind for kind in names if kind != "null"]
            if kinds is None:
                names = [_implied(held)]
            if set(names) == {"integer", "number"}:
                names = ["number"]
            if len(names) != 1:
                raise Rejected("a union of several types has no column type")
            return self._single(names[0], held, root, depth), nullable
        except Rejected as error:
            inner = error.message.startswith("member ")
            raise Rejected(error.message if inner else f"member {name}: {error.message}") from None

    def _single(self, kind: str, node: dict[str, Any], root: Any, depth: int) -> Any:
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "string":
            return (
                pa.binary()
                if node.get("contentEncoding") == "base64"
                else _FORMATS.get(str(node.get("format")), pa.string())
            )
        if kind == "array":
            element, _ = self._type(node.get("items"), root, depth + 1, "items")
            return pa.list_(pa.field("element", element))
        if kind == "object":
            members = _mapping(node.get("properties"))
            if members:
                inner = [(name, self._type(member, root, depth + 1, name)[0]) for name, member in members.items()]
                return pa.struct([pa.field(name, found) for name, found in inner])
            value, _ = self._type(node.get("additionalProperties"), root, depth + 1, "additionalProperties")
            return pa.map_(pa.string(), value)
        raise Rejected(f"type {kind} has no column type")

    def _target(self, reference: str, root: Any) -> tuple[Any, Any]:
        place, _, pointer = reference.partition("#")
        if place:
            if place not in self._others:
                raise Rejected(f"the JSON Schema refers to {place}, which is not among its references")
            root = self._others[place]
        node = root
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            node = cast("dict[str, Any]", node).get(step) if isinstance(node, dict) else None
            if node is None:
                raise Rejected(f"the JSON Schema refers to {reference}, which is not there")
        return node, root


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Rejected(f"not a valid JSON Schema: {error}") from error


def _mapping(node: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", node) if isinstance(node, dict) else {}


def _is_null(node: Any) -> bool:
    return _mapping(node).get("type") == "null"


def _implied(node: dict[str, Any]) -> str:
    """The type of a node that names none."""
    if "properties" in node or "additionalProperties" in node:
        return "object"
    values = node.get("enum", [node["const"]] if "const" in node else None)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in cast("list[Any]", values)):
        return "string"
    raise Rejected("a value of any type has no column type")
