"""Values into columns: what does not fit is a fault of its record, never of its neighbours.

``built`` makes an Arrow array of Python values, ``fitters.fitter`` a function from an array of one type to an array of
another one. ``isolated`` calls either over a whole batch and, where that raises, over halves of it, down to the records
at fault. So a batch without faults costs one call, and a fault of any kind costs a few calls more.

``JSON_TEXT`` is the type of values that have no column type: any JSON value, kept as its text in a string column.
"""

import base64
import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec
import pyarrow as pa

ArrowType: TypeAlias = Any
"""A ``pyarrow.DataType``; pyarrow ships no types."""
Array: TypeAlias = Any
"""A ``pyarrow.Array``."""

JSON_TEXT: Final[ArrowType] = pa.json_(pa.string())
REASON_MAX: Final = 500
"""Longest reason of a fault, in characters."""
DEPTH_MAX: Final = 16
"""Structs, lists and maps within each other; what is deeper is JSON text."""
COLUMNS_MAX: Final = 5000
"""Members of all structs of a schema together; what is more is JSON text."""
MISSING: Final[Any] = msgspec.UNSET
"""A member without a default."""


class Member(msgspec.Struct, frozen=True):
    """A column, or a member of a nested one, as a schema declares it.

    ``type`` may have ``JSON_TEXT`` within. ``members`` are those of the struct that ``type`` is, or that its elements
    or its map's values are; of ``JSON_TEXT``, what its text does not tell apart. ``default`` is the value of a record
    that was written without this member.
    """

    name: str
    type: ArrowType
    members: tuple["Member", ...] = ()
    aliases: tuple[str, ...] = ()
    number: int | None = None
    default: Any = MISSING


class Within:
    """Where a schema's walk is: the names of the types around it. A type within itself, one that is nested too deeply,
    and all of them once there are too many columns, have no column type; else a schema could ask for any number.
    """

    def __init__(self, names: tuple[Any, ...] = (), count: list[int] | None = None) -> None:
        self._names = names
        self._count = count if count is not None else [0]

    def holds(self, name: Any) -> bool:
        """Whether a type of this name has no column type here."""
        return name in self._names or len(self._names) >= DEPTH_MAX or self._count[0] >= COLUMNS_MAX

    def into(self, name: Any) -> "Within":
        """The walk within a type."""
        return Within((*self._names, name), self._count)

    def count(self, columns: int) -> None:
        """Note that a type has so many members."""
        self._count[0] += columns


class Misfit(ValueError):
    """A value does not fit its column. ``column`` is the path of the member."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column


class Fault(msgspec.Struct, frozen=True):
    """Why a record is no row. ``column`` is the path of the member at fault, None if it is the record as a whole."""

    reason: str
    column: str | None = None


def fault_of(error: Exception, column: str | None = None) -> Fault:
    """The fault that an exception stands for."""
    if isinstance(error, Misfit):
        column = error.column
    reason = (str(error).strip() or type(error).__name__)[:REASON_MAX]
    return Fault(f"{reason} - at `$.{column}`" if column else reason, column or None)


def isolated(length: int, make: Callable[[int, int], Array], empty: Array, faults: dict[int, Fault]) -> Array:
    """The array of all rows. Rows that ``make`` raises for are ``empty``, an array of one row, and in ``faults``."""
    parts: list[Array] = []
    todo = [(0, length)]
    while todo:
        start, end = todo.pop()
        try:
            part = make(start, end)
            if isinstance(part, pa.ChunkedArray):
                raise OverflowError("the values are larger than a column's batch can be")
            parts.append(part)
        except Exception as error:  # noqa: BLE001 (of any kind: a record never ends its batch)
            if end - start > 1:
                middle = (start + end) // 2
                todo += [(middle, end), (start, middle)]
            else:
                faults.setdefault(start, fault_of(error))
                parts.append(empty)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def built(values: Sequence[Any], kind: ArrowType, faults: dict[int, Fault], column: str = "") -> Array:
    """An array of Python values; those that ``kind`` cannot hold are null and in ``faults``."""

    def make(start: int, end: int) -> Array:
        try:
            return pa.array(values[start:end], kind)
        except Exception as error:
            if end - start > 1:
                raise
            place, reason = _misfit(values[start], kind, column) or (column, str(error))
            raise Misfit(place, reason) from error

    return isolated(len(values), make, pa.nulls(1, kind), faults)


def _misfit(value: Any, kind: ArrowType, path: str) -> tuple[str, str] | None:
    """The place within a value that its type cannot hold, and why."""
    if value is None:
        return None
    inner: list[tuple[str, Any, ArrowType]] = []
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        inner = [(joined(path, field.name), members.get(field.name), field.type) for field in kind]
    elif pa.types.is_map(kind):
        pairs = cast("list[tuple[Any, Any]]", list(value))
        inner = [(f"{path} (key)", key, kind.key_type) for key, _ in pairs]
        inner += [(f"{path}[{key!r}]", item, kind.item_type) for key, item in pairs]
    elif pa.types.is_list(kind):
        inner = [(f"{path}[{index}]", item, kind.value_type) for index, item in enumerate(value)]
    for place, item, wanted in inner:
        if (found := _misfit(item, wanted, place)) is not None:
            return found
    try:
        pa.array([value], kind)
    except Exception as error:  # noqa: BLE001 (the one that is looked for)
        return path, str(error) or type(error).__name__
    return None


def joined(path: str, name: str) -> str:
    """The path of a member within another one."""
    return f"{path}.{name}" if path else name


# Types


def is_json_text(kind: ArrowType) -> bool:
    """Whether values of a type are kept as JSON text."""
    return kind == JSON_TEXT


def stored(kind: ArrowType) -> ArrowType:
    """The type that a column has: without ``JSON_TEXT``, and with elements named as Spark names them."""
    if is_json_text(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, stored(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(stored(kind.key_type), stored(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", stored(kind.value_type)))
    return kind


def list_of(element: ArrowType) -> ArrowType:
    """A list type, its element named as Spark names it."""
    return pa.list_(pa.field("element", element))


def struct_of(members: Sequence[Member]) -> ArrowType:
    """The struct of these members."""
    return pa.struct([pa.field(member.name, member.type) for member in members])


def has_json_text(kind: ArrowType) -> bool:
    """Whether a type is ``JSON_TEXT``, or has it within."""
    return has(kind, is_json_text)


def has(kind: ArrowType, wanted: Callable[[ArrowType], bool]) -> bool:
    """Whether a type is one, or has one within."""
    if pa.types.is_nested(kind):
        return any(has(kind.field(index).type, wanted) for index in range(kind.num_fields))
    return wanted(kind)


_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def is_wider(new: ArrowType, old: ArrowType) -> bool:
    """Whether a column of type ``old`` may become one of type ``new`` and keep all its values; not if they are equal.

    Of nested types: whether a member may, or one is new, and all others stay.
    """
    new, old = stored(new), stored(old)
    if new == old:
        return False
    if pa.types.is_struct(new) and pa.types.is_struct(old):
        pairs = [(field.type, found.type) for field in new if (found := field_of(old, field.name)) is not None]
        return all(a == b or is_wider(a, b) for a, b in pairs)
    if pa.types.is_list(new) and pa.types.is_list(old):
        return is_wider(new.value_type, old.value_type)
    if pa.types.is_map(new) and pa.types.is_map(old):
        return new.key_type == old.key_type and is_wider(new.item_type, old.item_type)
    if new in _INTEGERS and old in _INTEGERS:
        return _INTEGERS.index(new) > _INTEGERS.index(old)
    if pa.types.is_decimal(new) and pa.types.is_decimal(old):
        digits = new.precision - new.scale, old.precision - old.scale
        return new.scale >= old.scale and digits[0] >= digits[1]
    return (new, old) == (pa.float64(), pa.float32()) or (pa.types.is_date32(old) and pa.types.is_timestamp(new))


def field_of(struct: Iterable[Any], name: str) -> Any:
    """The field of a struct or schema, or the one of several members, with this name, or with one that differs from it
    by case alone; None without.
    """
    folded = [field for field in struct if field.name.lower() == name.lower()]
    return next((field for field in folded if field.name == name), folded[0] if len(folded) == 1 else None)


# JSON text


def json_text(value: Any, kind: ArrowType | None = None) -> str | None:
    """A value as JSON text; null stays null. Bytes are base64, times RFC 3339, numbers that JSON lacks are texts.

    ``kind`` is the value's Arrow type, where a value stands as pyarrow gives it: maps as pairs, ``JSON_TEXT`` as text.
    """
    return None if value is None else msgspec.json.encode(_json_value(value, kind)).decode()


def _json_value(value: Any, kind: ArrowType | None) -> Any:
    if value is None:
        return None
    if kind is not None and is_json_text(kind):
        return msgspec.Raw(value.encode())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if kind is not None and pa.types.is_map(kind):
        pairs = cast("list[tuple[Any, Any]]", value)
        return {str(key): _json_value(item, kind.item_type) for key, item in pairs}
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        types: dict[str, Any] = {} if kind is None else {field.name: field.type for field in kind}
        return {str(name): _json_value(member, types.get(str(name))) for name, member in members.items()}
    if isinstance(value, tuple):  # fastavro: a union's branch by name
        name, member = cast("tuple[Any, Any]", value)
        return {str(name): _json_value(member, None)}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        element = None if kind is None else kind.value_type
        return [_json_value(item, element) for item in items]
    return value
