"""Values of records to typed columns: raw bytes, text, and JSON of a declared schema.

A decoder takes the values of a batch of records and gives a column for each field and, for each record that does not
decode, the reason. Whether a record decodes depends on that record alone, never on its neighbours. An undecodable
record never ends the batch: what becomes of it is the pipeline's decision.

JSON is decoded strictly by msgspec. A field of the wrong type, a number outside its type, a missing required field, and
anything that is no JSON object are errors. Fields that the schema does not name are ignored. A missing field is null. A
timestamp is text in RFC 3339; without a zone it is UTC, and digits after its microseconds are cut off. A number that a
``double`` does not keep (``json_types`` says which) is an error, too. A field of type
``json`` is any JSON value, kept as the text that the record has. A record without a value (a tombstone) is a row of
nulls, unless a field is required.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Rejected
from millstream.spark.declared import Field
from millstream.spark.fitting import Fault, Misfit, built, fault_of, has, stored
from millstream.spark.json_types import LongNumbers, converter, record_type

Array: TypeAlias = Any
"""A ``pyarrow.Array``."""


class Decoded(msgspec.Struct, frozen=True):
    """``columns`` is a StructArray with a field for each column; ``errors`` is a StringArray, null where it decoded.
    ``places`` is a StringArray with the column at fault, null where it is the record as a whole.
    """

    columns: Array
    errors: Array
    places: Array


class SchemaRefused(Rejected):
    """A record's schema does not fit, and the reader wants to stop there. ``row`` counts from 0 in the batch."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


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
        return Decoded(columns, *_no_faults(len(values)))


class StringDecoder:
    """The bytes as UTF-8 text, in the column ``value``."""

    fields: Sequence[Field] = (Field("value", pa.string()),)

    def decode(self, values: Array) -> Decoded:
        try:
            texts, faults = pc.cast(values, pa.string()), _no_faults(len(values))
        except pa.ArrowInvalid:
            pairs = [_text(value) for value in values.to_pylist()]
            texts = pa.array([text for text, _ in pairs], pa.string())
            faults = fault_arrays({i: Fault(error, "value") for i, (_, error) in enumerate(pairs) if error}, len(pairs))
        return Decoded(pa.StructArray.from_arrays([texts], ["value"]), *faults)


class JsonDecoder:
    """JSON objects of a declared schema."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(Field(field.name, stored(field.type), field.required) for field in fields)
        self._declared = tuple(fields)
        self._converts = [converter(field.type) for field in fields]
        self._decoder = msgspec.json.Decoder(record_type(self._declared))
        # msgspec rounds what is finer than microseconds, so a record that may have such times is read with their text.
        has_times = any(has(field.type, pa.types.is_timestamp) for field in fields)
        self._finer = msgspec.json.Decoder(record_type(self._declared, time=str)) if has_times else None
        self._numbers = LongNumbers.of(self._declared)
        required = next((field.name for field in fields if field.required), None)
        self._tombstone = None if required is None else Fault(f"no value, and {required} is required", required)

    def decode(self, values: Array) -> Decoded:
        rows: list[Any] = []
        faults: dict[int, Fault] = {}
        decode, finer, empty = self._decoder.decode, self._finer, _Nothing()
        for index, value in enumerate(values.to_pylist()):
            row: Any = empty
            if value is None:
                if self._tombstone is not None:
                    faults[index] = self._tombstone
            else:
                try:
                    row = finer.decode(value) if finer is not None and _FINER.search(value) else decode(value)
                except msgspec.DecodeError as problem:
                    faults[index] = Fault(str(problem), _place(str(problem)))
                except Exception as problem:  # noqa: BLE001 (of any kind: a record never ends its batch)
                    faults[index] = fault_of(ValueError(f"not readable as JSON: {problem}"))
            rows.append(row)
        if self._numbers is not None:
            for index in self._numbers.suspects(values):
                if rows[index] is not empty:
                    try:
                        self._numbers.require_kept(values[index].as_py())
                    except Misfit as problem:
                        rows[index], faults[index] = empty, fault_of(problem)
        arrays = [
            self._column([getattr(row, f"f{number}") for row in rows], number, faults)
            for number in range(len(self._declared))
        ]
        columns = pa.StructArray.from_arrays(arrays, [field.name for field in self.fields])
        return Decoded(columns, *fault_arrays(faults, len(rows)))

    def _column(self, values: list[Any], number: int, faults: dict[int, Fault]) -> Array:
        """The column of a field; values that its type cannot hold are faults of their records."""
        field, convert = self.fields[number], self._converts[number]
        if convert is not None:
            values = [_converted(convert, value, index, field.name, faults) for index, value in enumerate(values)]
        return built(values, field.type, faults, field.name)


class _Nothing:
    """Stands for a record without fields."""

    def __getattr__(self, name: str) -> None:
        return None


def fault_arrays(faults: dict[int, Fault], length: int) -> tuple[Array, Array]:
    """Reasons and places of so many records, null where there is no fault."""
    if not faults:
        return _no_faults(length)
    found = [faults.get(index) for index in range(length)]
    reasons = [None if fault is None else fault.reason for fault in found]
    places = [None if fault is None else fault.column for fault in found]
    return pa.array(reasons, pa.string()), pa.array(places, pa.string())


def _no_faults(length: int) -> tuple[Array, Array]:
    return pa.nulls(length, pa.string()), pa.nulls(length, pa.string())


_FINER: Final = re.compile(rb'\.\d{7,}["Zz+-]')
"""What may be the end of a time with more than microseconds."""
_PLACE: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `([^`]+)`")


def _place(message: str) -> str | None:
    """The member that msgspec names at the end of a message."""
    found = _PLACE.search(message)
    if (missing := _MISSING.search(message)) is not None:
        return f"{found[1]}.{missing[1]}" if found is not None and found[1] else missing[1]
    return found[1] or None if found is not None else None


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    try:
        return (None if value is None else value.decode()), None
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"


def _converted(convert: Any, value: Any, index: int, name: str, faults: dict[int, Fault]) -> Any:
    try:
        return convert(value, name)
    except Exception as error:  # noqa: BLE001 (of any kind: a record never ends its batch)
        faults.setdefault(index, fault_of(error, name))
        return None
