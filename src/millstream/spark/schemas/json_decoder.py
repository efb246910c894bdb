"""JSON records of a JSON Schema, after a schema id, each read with the schema that it was written with.

Columns come from the schema's ``properties``: ``integer`` is a bigint, ``number`` a double, ``string`` with format
``date-time`` a timestamp and with ``date`` a date, an object with properties a struct, one with only
``additionalProperties`` a map, an array a list of its ``items``. A union with ``null`` is that type, nullable. An
object has the properties of its ``allOf`` and of a ``$ref`` beside them, too; one of two types is kept as JSON text.
Other unions, objects that have a property only under a condition (``oneOf``, ``if`` …), schemas within themselves, free
objects and values of any type have no column type: they are kept as the JSON text that the record has. A schema of no
object with properties has one column, ``value``.

Records are read strictly: a value of another type and a missing required member of the record itself make an error of
the record. Keywords that narrow a type (``minimum``, ``pattern`` …) are the producer's and are not checked again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa

from millstream.errors import Rejected
from millstream.spark.declared import Field
from millstream.spark.fitting import JSON_TEXT, Fault, Member, Within, list_of, struct_of
from millstream.spark.schemas.decoded import VALUE, Array, Columns, WireDecoder, Written, columns_of
from millstream.spark.schemas.source import Resolved, SchemaSource
from millstream.spark.values import JsonDecoder

_FORMATS: Final[Mapping[str, Any]] = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}
_PLAIN: Final[Mapping[str, Any]] = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_REFS_MAX: Final = 64
_STEPS_MAX: Final = 20_000
"""Schemas that are looked into for properties; a few lines could ask for any number."""
_OBJECTS: Final = frozenset({"properties", "allOf"})
"""Keywords of an object with properties."""
_OTHERS: Final = frozenset({"properties", "type", "anyOf", "oneOf", "if", "additionalProperties", "patternProperties"})
"""Keywords beside an ``allOf`` that say something of the value's form, too."""
_Members: TypeAlias = dict[str, tuple[Any, Any]]
"""Properties, each with its document, by name."""


class JsonSchemaDecoder(WireDecoder):
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
            columns or columns_of(json_members(reader)),
            stop_at_boundary=stop_at_boundary,
            subjects=subjects,
            fail_on_schema=fail_on_schema,
        )

    def _written(self, schema_id: int, key: Any, writer: Resolved) -> Written:  # noqa: ARG002
        return _JsonWritten(writer)


class _JsonWritten(Written):
    def __init__(self, writer: Resolved) -> None:
        fields = json_schema_fields(writer)
        self.members = json_members(writer)
        self._values = JsonDecoder(fields)
        self._is_object = bool(_Reader(writer).properties())

    def decode(self, contents: Sequence[memoryview], faults: dict[int, Fault]) -> Array:
        texts = [bytes(content) for content in contents]
        if not self._is_object:
            texts = [b'{"value":%b}' % text for text in texts]
        decoded = self._values.decode(pa.array(texts, pa.binary()))
        if decoded.errors.null_count == len(texts):
            return decoded.columns
        pairs = zip(decoded.errors.to_pylist(), decoded.places.to_pylist(), strict=True)
        for index, (error, place) in enumerate(pairs):
            if error is not None:
                faults[index] = Fault(error, place)
        kept = [None if index in faults else index for index in range(len(texts))]
        return decoded.columns.take(pa.array(kept, pa.int64()))


def json_members(resolved: Resolved) -> tuple[Member, ...]:
    """The columns of a JSON Schema.

    Raises:
        Rejected: it is no valid JSON Schema.
    """
    return tuple(_member(field.name, field.type) for field in json_schema_fields(resolved))


def _member(name: str, kind: Any) -> Member:
    inner = kind
    while pa.types.is_list(inner) or pa.types.is_map(inner):
        inner = inner.item_type if pa.types.is_map(inner) else inner.value_type
    members = tuple(_member(field.name, field.type) for field in inner) if pa.types.is_struct(inner) else ()
    return Member(name, kind, members)


def json_schema_fields(resolved: Resolved) -> tuple[Field, ...]:
    """The columns of a JSON Schema, and which of them a record must have.

    Raises:
        Rejected: it is no valid JSON Schema.
    """
    if resolved.schema.type != "JSON":
        raise Rejected(f"a schema of type {resolved.schema.type} is no JSON Schema")
    return _Reader(resolved).fields()


class _NoType(Exception):
    """A schema whose values have no column type."""


class _Reader:
    """Walks one schema document and those that it refers to."""

    def __init__(self, resolved: Resolved) -> None:
        self._root = _document(resolved.schema.text)
        self._steps = _STEPS_MAX
        self._others = {named.name: _document(named.schema.text) for named in resolved.references}

    def fields(self) -> tuple[Field, ...]:
        try:
            node, root, _ = self._open(self._root, self._root)
            members = self._members(node, root)
        except _NoType:
            return (Field(VALUE, JSON_TEXT),)
        if not members:
            return (Field(VALUE, self._type(self._root, self._root, Within())[0]),)
        required = node.get("required")
        needed = set(map(str, cast("list[Any]", required))) if isinstance(required, list) else set[str]()
        within = Within((id(node),))
        within.count(len(members))
        found: list[Field] = []
        for name, member in members.items():
            kind, nullable = self._type(*member, within)
            found.append(Field(name, kind, name in needed and not nullable and kind != JSON_TEXT))
        return tuple(found)

    def properties(self) -> _Members:
        """The properties of the record itself."""
        try:
            return self._members(*self._open(self._root, self._root)[:2])
        except _NoType:
            return {}

    def _members(self, node: dict[str, Any], root: Any) -> _Members:
        """The properties of an object; none if it is something else.

        Raises:
            _NoType: it has others under a condition.
        """
        kinds = node.get("type", "object")
        names = {str(kind) for kind in cast("list[Any]", kinds)} if isinstance(kinds, list) else {str(kinds)}
        if names - {"null"} != {"object"}:
            return {}
        found = self._always(node, root)
        if found and any(self._named(*part) - found.keys() for part in _conditional(node, root)):
            raise _NoType
        return found

    def _always(self, node: Any, root: Any, depth: int = 0) -> _Members:
        """The properties that a schema names unconditionally, each with its document."""
        self._steps -= 1
        if self._steps < 0 or depth > _REFS_MAX:
            raise _NoType  # within itself
        held = _mapping(node)
        found: _Members = {name: (member, root) for name, member in _mapping(held.get("properties")).items()}
        parts = [(part, root) for part in _list(held.get("allOf"))]
        if isinstance(held.get("$ref"), str):
            parts.append(self._target(held["$ref"], root))
        for part in parts:
            for name, member in self._always(*part, depth + 1).items():
                found[name] = member if found.get(name, member) == member else ({}, root)
            if any(self._named(*one, depth + 1) - found.keys() for one in _conditional(*part)):
                raise _NoType
        return found

    def _named(self, node: Any, root: Any, depth: int = 0) -> set[str]:
        """All names of properties in a schema, under any condition."""
        found = set(self._always(node, root, depth))
        return found.union(*(self._named(*part, depth + 1) for part in _conditional(node, root)))

    def _open(self, node: Any, root: Any) -> tuple[dict[str, Any], Any, bool]:
        """A node without references and without the null of a union; its document, and whether null was there."""
        nullable = False
        for _ in range(_REFS_MAX):
            if not isinstance(node, dict):
                break
            held = cast("dict[str, Any]", node)
            if isinstance(held.get("$ref"), str) and not _OBJECTS.intersection(held):
                node, root = self._target(held["$ref"], root)
                continue
            parts = _list(held.get("allOf"))
            if len(parts) == 1 and not _OTHERS.intersection(held):
                node = parts[0]
                continue
            if _OBJECTS.intersection(held):
                return held, root, nullable
            branches = held.get("oneOf") or held.get("anyOf")
            if not isinstance(branches, list):
                return held, root, nullable
            kept = [branch for branch in cast("list[Any]", branches) if not _is_null(branch)]
            nullable = nullable or len(kept) < len(cast("list[Any]", branches))
            if len(kept) != 1:
                break
            node = kept[0]
        raise _NoType

    def _type(self, node: Any, root: Any, within: Within) -> tuple[Any, bool]:
        """The Arrow type of a node, and whether it may be null."""
        try:
            held, root, nullable = self._open(node, root)
            kinds = held.get("type")
            names = [str(kind) for kind in cast("list[Any]", kinds)] if isinstance(kinds, list) else [str(kinds)]
            nullable = nullable or "null" in names
            names = [kind for kind in names if kind != "null"]
            if kinds is None:
                names = [_implied(held)]
            if set(names) == {"integer", "number"}:
                names = ["number"]
            if len(names) != 1:
                raise _NoType
            return self._single(names[0], held, root, within), nullable
        except _NoType:
            return JSON_TEXT, True

    def _single(self, kind: str, node: dict[str, Any], root: Any, within: Within) -> Any:
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "string":
            is_bytes = node.get("contentEncoding") == "base64"
            return pa.binary() if is_bytes else _FORMATS.get(str(node.get("format")), pa.string())
        if within.holds(id(node)):
            raise _NoType
        within = within.into(id(node))
        if kind == "array":
            return list_of(self._type(node.get("items"), root, within)[0])
        members = self._members(node, root) if kind == "object" else {}
        if members:
            within.count(len(members))
            return struct_of([Member(name, self._type(*member, within)[0]) for name, member in members.items()])
        if kind == "object" and isinstance(node.get("additionalProperties"), dict) and "patternProperties" not in node:
            return pa.map_(pa.string(), self._type(node["additionalProperties"], root, within)[0])
        raise _NoType

    def _target(self, reference: str, root: Any) -> tuple[Any, Any]:
        place, _, pointer = reference.partition("#")
        if place:
            if place not in self._others:
                raise _NoType
            root = self._others[place]
        node = root
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            node = cast("dict[str, Any]", node).get(step) if isinstance(node, dict) else None
            if node is None:
                raise _NoType
        return node, root


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Rejected(f"not a valid JSON Schema: {error}") from error


def _mapping(node: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", node) if isinstance(node, dict) else {}


def _list(node: Any) -> list[Any]:
    return cast("list[Any]", node) if isinstance(node, list) else []


def _conditional(node: Any, root: Any) -> list[tuple[Any, Any]]:
    """The schemas that a schema applies under a condition, each with its document."""
    held = _mapping(node)
    found = [*_list(held.get("anyOf")), *_list(held.get("oneOf")), *_mapping(held.get("dependentSchemas")).values()]
    return [(each, root) for each in (*found, *(held[name] for name in ("if", "then", "else") if name in held))]


def _is_null(node: Any) -> bool:
    return _mapping(node).get("type") == "null"


def _implied(node: dict[str, Any]) -> str:
    """The type of a node that names none."""
    if "additionalProperties" in node or _OBJECTS.intersection(node):
        return "object"
    values = node.get("enum", [node["const"]] if "const" in node else None)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in cast("list[Any]", values)):
        return "string"
    raise _NoType
