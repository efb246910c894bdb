"""An encoder that puts wrong bytes in the place of a chosen field.

It walks the declarations like the generated encoders do, shares no code with them, and is slow. ``encode`` without
poison must give the very bytes that ``millstream.wire`` writes; a test holds it to that, so it also checks those.
Fields are named by a path such as ``topics.0.name``; ``places`` lists what a message has to poison.
"""

import struct
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from millstream.wire import schema
from millstream.wire.schema import Field, Kind, Message, Type

fields_of = cache(schema.fields_of)
"""Worked out once: each value that is written or shown asks for them."""


class Place(NamedTuple):
    """A field of a message at one version, and how it is laid out there."""

    path: str
    kind: Kind
    nullable: bool
    compact: bool
    value: object


def uvarint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def encode(message: Message, version: int, poison: Mapping[str, bytes] | None = None) -> bytes:
    """The body; fields named in ``poison`` are replaced by those bytes."""
    return b"".join(_struct(message, version, version >= type(message).FLEXIBLE, "", poison or {}))


def places(message: Message, version: int) -> list[Place]:
    """Every field on the way through the first element of each array."""
    found: list[Place] = []
    _places(message, version, version >= type(message).FLEXIBLE, "", found)
    return found


def _places(message: Message, version: int, compact: bool, prefix: str, found: list[Place]) -> None:
    for field in fields_of(type(message), version):
        if not field.present or field.tag is not None:
            continue
        value, path = getattr(message, field.name), prefix + field.name
        found.append(Place(path, field.type.kind, field.nullable, compact, value))
        if field.type.kind is Kind.STRUCT and value is not None:
            _places(value, version, compact, path + ".", found)
        elif field.type.kind is Kind.ARRAY and value and isinstance(value[0], Message):
            _places(value[0], version, compact, f"{path}.0.", found)


def _struct(message: Message, version: int, compact: bool, prefix: str, poison: Mapping[str, bytes]) -> list[bytes]:
    out: list[bytes] = []
    tagged: list[Field] = []
    for field in fields_of(type(message), version):
        if not field.present:
            continue
        if field.tag is not None:
            tagged.append(field)
            continue
        out += _value(
            getattr(message, field.name), field.type, field.nullable, version, compact, prefix + field.name, poison
        )
    if compact:
        out.append(poison.get(prefix + "tags", _tags(message, tagged, version, prefix, poison)))
    return out


def _tags(message: Message, tagged: list[Field], version: int, prefix: str, poison: Mapping[str, bytes]) -> bytes:
    written = [field for field in tagged if getattr(message, field.name) != field.default]
    out = uvarint(len(written))
    for field in sorted(written, key=lambda one: one.tag or 0):
        data = b"".join(
            _value(getattr(message, field.name), field.type, field.nullable, version, True, prefix + field.name, poison)
        )
        out += uvarint(field.tag or 0) + uvarint(len(data)) + data
    return out


def _value(
    value: object, kind: Type, nullable: bool, version: int, compact: bool, path: str, poison: Mapping[str, bytes]
) -> list[bytes]:
    if path in poison:
        return [poison[path]]
    if kind.kind is Kind.STRUCT:
        if value is None:
            return [b"\xff"]
        assert isinstance(value, Message)
        return [b"\1" if nullable else b"", *_struct(value, version, compact, path + ".", poison)]
    if kind.kind is Kind.ARRAY:
        assert kind.element is not None
        if value is None:
            return [b"\0" if compact else b"\xff\xff\xff\xff"]
        assert isinstance(value, list)
        out = [uvarint(len(value) + 1) if compact else struct.pack(">i", len(value))]
        for at, element in enumerate(value):
            out += _value(element, kind.element, False, version, compact, f"{path}.{at}", poison)
        return out
    if kind.kind in (Kind.STRING, Kind.BYTES, Kind.RECORDS):
        return [_run(value, kind.kind, compact)]
    return [struct.pack(">" + kind.kind.value, value)]


def _run(value: object, kind: Kind, compact: bool) -> bytes:
    short = kind is Kind.STRING and not compact
    if value is None:
        return b"\0" if compact else b"\xff\xff" if short else b"\xff\xff\xff\xff"
    data = value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]
    return (uvarint(len(data) + 1) if compact else struct.pack(">h" if short else ">i", len(data))) + data
