"""Values of records to typed columns: raw bytes, text, and JSON of a declared schema.

A decoder takes the values of a batch of records and gives a column for each field and, for each record that does not
decode, the reason. Whether a record decodes depends on that record alone, never on its neighbours. An undecodable
record never ends the batch: what becomes of it is the pipeline's decision.

JSON is decoded strictly by msgspec. A field of the wrong type, a number outside its type, a missing required field, and
anything that is no JSON object are errors. Fields that the schema does not name are ignored. A missing field is null. A
timestamp is text in RFC 3339; without a zone it is UTC. A record without a value (a tombstone) is a row of nulls,
unless a field is required.
"""

import base64
import binascii
import datetime as dt
import decimal
from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.spark.declared import ArrowType, Field

Array: TypeAlias = Any
"""A ``pyarrow.Array``."""


class Decoded(msgspec.Struct, frozen=True):
    """``columns`` is a StructArray with a field for each column; ``errors`` is a StringArray, null where it decoded."""

    columns: Array
    errors: Array


class Decoder(Protocol):
    """Turns values of one format into columns."""

    @property
    def fields(self) -> Sequence[Field]:
        """The columns, in order."""
        ...

    def decode(self, values: Array) -> Decoded:
        """Columns and errors, as long as ``values``, a BinaryArray."""
        ...


class RawDecoder:
    """The bytes as they are, in the column ``value``."""

    fields: Sequence[Field] = (Field("value", pa.binary()),)

    def decode(self, values: Array) -> Decoded:
        columns = pa.StructArray.from_arrays([values], ["value"])
        return Decoded(columns, pa.nulls(len(values), pa.string()))


class StringDecoder:
    """The bytes as UTF-8 text, in the column ``value``."""

    fields: Sequence[Field] = (Field("value", pa.string()),)

    def decode(self, values: Array) -> Decoded:
        try:
            texts, errors = pc.cast(values, pa.string()), pa.nulls(len(values), pa.string())
        except pa.ArrowInvalid:
            pairs = [_text(value) for value in values.to_pylist()]
            texts = pa.array([text for text, _ in pairs], pa.string())
            errors = pa.array([error for _, error in pairs], pa.string())
        return Decoded(pa.StructArray.from_arrays([texts], ["value"]), errors)


class JsonDecoder:
    """JSON objects of a declared schema."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self._names = [f"f{index}" for index in range(len(self.fields))]
        self._record = _record_type(self.fields)
        self._decoder = msgspec.json.Decoder(self._record)
        self._tombstone_error = next((f"no value, and {f.name} is required" for f in self.fields if f.required), None)

    def decode(self, values: Array) -> Decoded:
        rows: list[Any] = []
        errors: list[str | None] = []
        decode, empty = self._decoder.decode, _Nothing()
        for value in values.to_pylist():
            error = None
            row: Any = empty
            if value is None:
                error = self._tombstone_error
            else:
                try:
                    row = decode(value)
                except msgspec.DecodeError as problem:
                    error = str(problem)
                except (UnicodeDecodeError, RecursionError, OverflowError) as problem:
                    error = f"not readable as JSON: {problem}"
            rows.append(row)
            errors.append(error)
        return self._columns(rows, errors)

    def _columns(self, rows: list[Any], errors: list[str | None]) -> Decoded:
        arrays: list[Array] = []
        for name, field in zip(self._names, self.fields, strict=True):
            values = [getattr(row, name) for row in rows]
            arrays.append(_array(values, field, errors))
        columns = pa.StructArray.from_arrays(arrays, [field.name for field in self.fields])
        return Decoded(columns, pa.array(errors, pa.string()))


class _Nothing:
    """Stands for a record without fields."""

    def __getattr__(self, name: str) -> None:
        return None


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    try:
        return (None if value is None else value.decode()), None
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"


def _array(values: list[Any], field: Field, errors: list[str | None]) -> Array:
    """The column of a field; values that its type cannot hold become errors of their records."""
    convert = _CONVERSIONS.get(field.type.id)
    if convert is not None:
        values = [_converted(convert, value, index, field, errors) for index, value in enumerate(values)]
    elif pa.types.is_nested(field.type):
        values = [value if value is None else _plain(value, field.type) for value in values]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        return pa.array([_fits(value, index, field, errors) for index, value in enumerate(values)], field.type)


def _fits(value: Any, index: int, field: Field, errors: list[str | None]) -> Any:
    try:
        pa.array([value], field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
        errors[index] = errors[index] or f"{error} - at `$.{field.name}`"
        return None
    return value


def _converted(convert: Any, value: Any, index: int, field: Field, errors: list[str | None]) -> Any:
    if value is None:
        return None
    try:
        return convert(value)
    except (ValueError, OverflowError) as error:
        errors[index] = errors[index] or f"{error} - at `$.{field.name}`"
        return None


def _timestamp(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value if value.tzinfo is dt.UTC else value.astimezone(dt.UTC)


def _bytes(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


_CONVERSIONS: Final = {pa.timestamp("us").id: _timestamp, pa.binary().id: _bytes}


def _plain(value: Any, kind: ArrowType) -> Any:
    """A nested value in the form that pyarrow takes."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {kind.field(i).name: _plain(getattr(value, f"f{i}"), kind.field(i).type) for i in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return [(key, _plain(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    convert = _CONVERSIONS.get(kind.id)
    return convert(value) if convert else value


def _record_type(fields: Sequence[Field]) -> Any:
    """A msgspec type for a JSON object with these fields; attribute ``f<n>`` holds field n."""
    members: list[Any] = []
    names: dict[str, str] = {}
    required = sorted(range(len(fields)), key=lambda index: not fields[index].required)
    for index in required:
        field = fields[index]
        name = f"f{index}"
        names[name] = field.name
        kind = _python_type(field.type)
        members.append((name, kind) if field.required else (name, kind | None, None))
    return msgspec.defstruct("Record", members, rename=names, gc=False)


def _integer(bits: int) -> Any:
    if bits == 64:
        return Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


def _python_type(kind: ArrowType) -> Any:
    if pa.types.is_struct(kind):
        return _record_type([Field(kind.field(i).name, kind.field(i).type) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type) | None]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type) | None]
    if pa.types.is_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    if pa.types.is_timestamp(kind):
        return dt.datetime
    if pa.types.is_date(kind):
        return dt.date
    if pa.types.is_boolean(kind):
        return bool
    return float if pa.types.is_floating(kind) else str
