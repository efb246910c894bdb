"""The vocabulary for declaring Kafka's messages.

A message is a ``msgspec.Struct`` whose annotations define its bytes completely::

    class SyncGroupRequest(Request, api_key=14, versions=(0, 5), flexible=4):
        group_id: str = ""
        generation_id: Int32 = 0
        group_instance_id: Annotated[str | None, F("3+", nullable="3+")] = None

Fields stand in wire order. A field without ``F`` is in every version; ``F("3+")`` and ``F("0-3")`` limit its versions.
``| None`` makes a type nullable, in every version unless ``nullable`` limits that. ``tag`` moves a field into the
tagged section of the flexible versions. Defaults are Kafka's: a decoder uses them for a field that the version lacks,
and an encoder omits a tagged field that has its default.

The encoder drops a field that the version lacks, with any value, because answering an older client is normal. One
struct serves all versions, so handlers do not depend on the version.

``fields_of`` returns the fields of a class at one version, for the code generators. An invalid declaration (an unknown
type, a tag in a version that is not flexible) raises ``TypeError`` there.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Protocol,
    TypeAlias,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import StructMeta

FOREVER = 32767
"""Upper end of an open version range. Versions are int16."""


class Kind(Enum):
    """Wire layout of a value. For fixed-size kinds the enum value is the ``struct`` code."""

    INT8 = "b"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
    UINT32 = "I"
    INT64 = "q"
    FLOAT64 = "d"
    BOOL = "?"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    STRUCT = "struct"
    ARRAY = "array"

    @property
    def size(self) -> int:
        """Size of a fixed-size kind in bytes; 0 for the others."""
        return _SIZES.get(self, 0)


_SIZES = {
    Kind.INT8: 1,
    Kind.INT16: 2,
    Kind.UINT16: 2,
    Kind.INT32: 4,
    Kind.UINT32: 4,
    Kind.INT64: 8,
    Kind.FLOAT64: 8,
    Kind.BOOL: 1,
    Kind.UUID: 16,
}


class ViewChain(Protocol):
    """A byte run in pieces, such as ``millstream.iobuf.IoBuf``."""

    def views(self) -> Sequence[memoryview]:
        """The pieces in order. The caller of the encoder keeps them alive until they are sent."""
        ...


Piece: TypeAlias = bytes | bytearray | memoryview

Int8: TypeAlias = Annotated[int, Kind.INT8]
Int16: TypeAlias = Annotated[int, Kind.INT16]
UInt16: TypeAlias = Annotated[int, Kind.UINT16]
Int32: TypeAlias = Annotated[int, Kind.INT32]
UInt32: TypeAlias = Annotated[int, Kind.UINT32]
Int64: TypeAlias = Annotated[int, Kind.INT64]
Uuid: TypeAlias = Annotated[bytes, Kind.UUID]
Records: TypeAlias = Annotated[bytes | bytearray | memoryview | Sequence[Piece] | ViewChain, Kind.RECORDS]
"""Record batches. Decoders return a ``memoryview`` into the frame, or a chain; encoders accept any of these types."""

ZERO_UUID = bytes(16)
"""Kafka's "no id"."""

_SCALARS: Mapping[Any, Kind] = {str: Kind.STRING, bytes: Kind.BYTES, bool: Kind.BOOL, float: Kind.FLOAT64}


class F(msgspec.Struct, frozen=True):
    """Limits of a field: versions that carry it, versions in which it may be null, and its tag."""

    versions: str = "0+"
    nullable: str | None = None
    tag: int | None = None


class Type(msgspec.Struct, frozen=True):
    """A resolved type. ``element`` is set for arrays, ``struct`` for structs."""

    kind: Kind
    struct: "type[Message] | None" = None
    element: "Type | None" = None


class Field(msgspec.Struct, frozen=True):
    """One field at one version of a message. ``present`` is False if the version lacks it."""

    name: str
    type: Type
    default: Any
    present: bool
    nullable: bool
    tag: int | None


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class MessageMeta(StructMeta):
    """Reads the facts about an API from the class header: ``class X(Request, api_key=…, versions=…, flexible=…)``."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int = -1,
        versions: tuple[int, int] = (0, 0),
        flexible: int | None = None,
        **config: Any,
    ) -> Any:
        made: Any = super().__new__(mcs, name, bases, namespace, **config)
        made.API_KEY = api_key
        made.VERSIONS = versions
        made.FLEXIBLE = FOREVER + 1 if flexible is None else flexible
        return made


class Message(msgspec.Struct, metaclass=MessageMeta, frozen=True, gc=False):
    """Root of every declaration, and base of the structs nested in messages.

    Messages are values without garbage-collector tracking: a reference cycle through one would leak.
    """

    API_KEY: ClassVar[int]
    """Kafka's number of the API; -1 for nested structs; the record type for keys of stored records."""
    VERSIONS: ClassVar[tuple[int, int]]
    """Lowest and highest declared version, both inclusive."""
    FLEXIBLE: ClassVar[int]
    """First version with compact lengths and tagged fields; above every version if no version has it."""


class Request(Message):
    """A message that a client sends."""


class Response(Message):
    """A message that the broker sends."""


class Stored(Message):
    """The value of a stored record, after an int16 with its version."""


class StoredKey(Message):
    """The key of a stored record, after an int16 with its type (the class's ``API_KEY``)."""


class Embedded(Message):
    """A message between clients, after an int16 with its version. Readers ignore the additions of newer versions."""


def version_range(text: str) -> tuple[int, int]:
    """Parse ``"3+"``, ``"0-3"`` or ``"2"`` into inclusive bounds."""
    if text.endswith("+"):
        return int(text[:-1]), FOREVER
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def fields_of(cls: type[Message], version: int) -> list[Field]:
    """The fields of ``cls`` in wire order, at ``version`` of the enclosing message."""
    hints = get_type_hints(cls, include_extras=True)
    defaults = cls.__struct_defaults__
    names = cls.__struct_fields__
    if len(defaults) != len(names):
        raise TypeError(f"{cls.__name__}: every field needs a default")
    return [_field(cls, name, hints[name], default, version) for name, default in zip(names, defaults, strict=True)]


def _field(cls: type[Message], name: str, hint: Any, default: Any, version: int) -> Field:
    facts = F()
    if get_origin(hint) is Annotated:
        base, *extras = get_args(hint)
        facts = next((extra for extra in extras if isinstance(extra, F)), facts)
        kind = next((extra for extra in extras if isinstance(extra, Kind)), None)
        hint = Annotated[base, kind] if kind is not None else base
    optional = _is_optional(hint)
    low, high = version_range(facts.versions)
    present = low <= version <= high
    nullable = optional and present
    if nullable and facts.nullable is not None:
        null_low, null_high = version_range(facts.nullable)
        nullable = null_low <= version <= null_high
    if facts.nullable is not None and not optional:
        raise TypeError(f"{cls.__name__}.{name}: nullable without '| None'")
    return Field(name, _resolve(cls, name, hint), _plain_default(default), present, nullable, facts.tag)


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)


def _resolve(cls: type[Message], name: str, hint: Any) -> Type:
    if _is_optional(hint):
        rest = [arg for arg in get_args(hint) if arg is not NoneType]
        if len(rest) != 1:
            raise TypeError(f"{cls.__name__}.{name}: only one type beside None")
        hint = rest[0]
    if get_origin(hint) is Annotated:
        kinds = [extra for extra in get_args(hint)[1:] if isinstance(extra, Kind)]
        if len(kinds) != 1:
            raise TypeError(f"{cls.__name__}.{name}: {hint} has no kind")
        return Type(kinds[0])
    if get_origin(hint) is list:
        return Type(Kind.ARRAY, element=_resolve(cls, name, get_args(hint)[0]))
    if isinstance(hint, type) and issubclass(hint, Message):
        return Type(Kind.STRUCT, struct=hint)
    if hint in _SCALARS:
        return Type(_SCALARS[hint])
    raise TypeError(f"{cls.__name__}.{name}: no wire type for {hint}")


def _plain_default(default: Any) -> Any:
    """The plain default, for the factory that msgspec keeps for an empty list."""
    if isinstance(default, msgspec.structs.FieldInfo) or default is msgspec.NODEFAULT:
        raise TypeError("a field of a message needs a plain default")
    factory = getattr(default, "factory", None)
    return factory() if callable(factory) else default
