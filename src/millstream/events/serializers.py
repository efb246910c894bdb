"""Serializers: metadata as bytes.

``{"type": "default"}`` writes JSON text. ``{"type": "schema", "schema": {…}}`` writes what a JSON Schema does not say
already: values by their position instead of their name, each with its type, in MessagePack. An object with
``properties`` becomes a list: one value for each property in the order of their names, a mark for one that is missing,
and at the end an object with all other fields. Objects and lists nest. What the schema does not describe is written
as it is.

A schema must not change for the life of a topic: readers of old events take the positions from it. A program may
bring a serializer of its own: an object with ``serialize`` and ``deserialize``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from millstream.errors import Corruption, Rejected
from millstream.events.descriptions import choose, object_of

Buffer: TypeAlias = bytes | bytearray | memoryview

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_msgpack = msgspec.msgpack.Decoder(ext_hook=msgspec.msgpack.Ext).decode

DEPTH_MAX: Final = 64
_MISSING_CODE: Final = 1
_MISSING: Final = msgspec.msgpack.Ext(_MISSING_CODE, b"")


class Serializer(Protocol):
    """Metadata ↔ bytes."""

    @property
    def description(self) -> dict[str, Any]:
        """The JSON object that makes this serializer again."""
        ...

    def serialize(self, metadata: Any) -> bytes:
        """The bytes of metadata. Raises Rejected if the metadata cannot be written."""
        ...

    def deserialize(self, data: Buffer) -> Any:
        """The metadata of bytes. Raises Corruption if these are not metadata."""
        ...


class JsonSerializer:
    """JSON text."""

    def __init__(self, description: Mapping[str, Any] | None = None) -> None:
        self.description = dict(description or {"type": "default"})

    def serialize(self, metadata: Any) -> bytes:
        """JSON text in UTF-8, without white space."""
        try:
            return _encode_json(metadata)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise Rejected(f"metadata that JSON cannot express: {error}") from error

    def deserialize(self, data: Buffer) -> Any:
        """The value of a JSON text."""
        try:
            return _decode_json(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Corruption(f"metadata that are no JSON: {error}") from error


class SchemaSerializer:
    """MessagePack by the positions that a JSON Schema gives to names."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._shape = _shape(object_of(description, "schema"), DEPTH_MAX)
        self.description = dict(description)

    def serialize(self, metadata: Any) -> bytes:
        """The typed bytes. Rejected if a value does not have the type that the schema gives it."""
        try:
            return _encode_msgpack(self._shape.pack(metadata))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise Rejected(f"metadata that the schema cannot express: {error}") from error

    def deserialize(self, data: Buffer) -> Any:
        """The metadata of typed bytes."""
        try:
            return self._shape.unpack(_decode_msgpack(data))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise Corruption(f"metadata that are not of the schema: {error}") from error


class _Plain:
    """A value that is written as it is; ``types`` are those that it may have."""

    def __init__(self, name: str = "", types: tuple[type, ...] = ()) -> None:
        self._name = name
        self._types = types

    def pack(self, value: Any) -> Any:
        if self._types and (type(value) not in self._types):
            raise TypeError(f"{value!r} is no {self._name}")
        return value

    def unpack(self, value: Any) -> Any:
        if isinstance(value, msgspec.msgpack.Ext):
            raise ValueError("a mark where a value is due")  # noqa: TRY004 (bytes of a foreign hand, no wrong call)
        return value


class _List:
    """A list whose elements have a shape."""

    def __init__(self, element: "_Shape") -> None:
        self._element = element

    def pack(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is no array")
        return [self._element.pack(one) for one in value]

    def unpack(self, value: Any) -> Any:
        if not isinstance(value, list):
            raise TypeError("no array")
        return [self._element.unpack(one) for one in value]


class _Object:
    """An object as a list of values and an object with the rest."""

    def __init__(self, properties: Mapping[str, "_Shape"]) -> None:
        self._properties = sorted(properties.items())
        self._names = frozenset(properties)

    def pack(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} is no object")
        packed = [shape.pack(value[name]) if name in value else _MISSING for name, shape in self._properties]
        packed.append({name: one for name, one in value.items() if name not in self._names})
        return packed

    def unpack(self, value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(self._properties) + 1 or not isinstance(value[-1], dict):
            raise TypeError("no object of the schema")
        pairs = zip(self._properties, value, strict=False)
        unpacked = {name: shape.unpack(one) for (name, shape), one in pairs if one != _MISSING}
        return {**unpacked, **value[-1]}


_Shape: TypeAlias = _Plain | _List | _Object

_SCALARS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def _shape(schema: Any, depth_max: int) -> _Shape:
    """The shape that a schema gives to a value. Only a single ``type`` decides; all else is written as it is."""
    kind = schema.get("type") if isinstance(schema, Mapping) and depth_max else None
    if kind == "object" and isinstance(schema.get("properties"), Mapping):
        return _Object({name: _shape(one, depth_max - 1) for name, one in schema["properties"].items()})
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return _List(_shape(schema["items"], depth_max - 1))
    if isinstance(kind, str) and kind in _SCALARS:
        return _Plain(kind, _SCALARS[kind])
    return _Plain()


_BY_TYPE: Mapping[str, Callable[[Mapping[str, Any]], Serializer]] = {
    "default": JsonSerializer,
    "schema": SchemaSerializer,
}


def make_serializer(wanted: Mapping[str, Any] | Serializer | None) -> Serializer:
    """The serializer of a description, or itself.

    Raises:
        InvalidDescription: the description has an unknown type or lacks something.
    """
    if wanted is not None and hasattr(wanted, "serialize"):
        made: Any = wanted
        return made
    return choose("serializer", _BY_TYPE, wanted)
