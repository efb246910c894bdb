"""JSON values as Arrow columns take them: how msgspec reads a type, and what is made of each value.

``record_type`` is what msgspec reads an object with these fields as. ``converter`` goes through a value that it has
read, and gives what pyarrow takes. ``LongNumbers`` finds numbers that a column of ``float`` or ``double`` would
silently make others of.

JSON has numbers of any length, and a ``double`` has 53 bits. A fraction such as ``0.1`` becomes the nearest ``double``,
as every reader of JSON understands it, and so does a number in scientific notation. A number whose digits before the
point are all written out, and that the column cannot keep, is a fault, because identifiers are such numbers. The
shortest text of a ``double``, as JavaScript writes ``2 ** 64``, is kept. A number other than 0 that would become 0 is a
fault, too.
"""

import base64
import binascii
import datetime as dt
import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millstream.spark.declared import ArrowType, Field
from millstream.spark.fitting import JSON_TEXT, Misfit, has, is_json_text

_FLOAT_END: Final = (2 - 2**-24) * 2.0**127
"""The least number that is no ``float`` of 32 bits; smaller ones are rounded to the largest ``float``."""
_BEYOND: Final = re.compile(r"(\.\d{6})\d+")


def _timestamp(value: dt.datetime | str) -> dt.datetime:
    if isinstance(value, str):
        value = msgspec.convert(_BEYOND.sub(r"\1", value), dt.datetime)
    if value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value if value.tzinfo is dt.UTC else value.astimezone(dt.UTC)


def _bytes(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _json(value: msgspec.Raw) -> str | None:
    text = bytes(value).decode()
    return None if text == "null" else text


Conversions = Mapping[int, Callable[[Any], Any]]
"""What is made of values, by the id of their Arrow type."""
_CONVERSIONS: Final[Conversions] = {
    pa.timestamp("us").id: _timestamp, pa.binary().id: _bytes, JSON_TEXT.id: _json,
}  # fmt: skip


def converter(kind: ArrowType, conversions: Conversions = _CONVERSIONS) -> Any:
    """A function of a value that msgspec has read and its path, to what pyarrow takes; None if they are the same.

    It raises Misfit.
    """
    if is_json_text(kind) or not pa.types.is_nested(kind):
        convert = conversions.get(kind.id)
        return None if convert is None else _leaf(convert)
    if pa.types.is_struct(kind):
        members = [
            (f"f{i}", kind.field(i).name, converter(kind.field(i).type, conversions)) for i in range(kind.num_fields)
        ]

        def struct(value: Any, path: str) -> Any:
            return None if value is None else {
                name: getattr(value, place) if inner is None else inner(getattr(value, place), f"{path}.{name}")
                for place, name, inner in members
            }  # fmt: skip

        return struct
    inner = converter(kind.item_type if pa.types.is_map(kind) else kind.value_type, conversions)
    if pa.types.is_map(kind):
        return _mapping(inner)
    return None if inner is None else _sequence(inner)


def _mapping(inner: Any) -> Any:
    def mapping(value: Any, path: str) -> Any:
        if value is None:
            return None
        return [(k, v if inner is None else inner(v, f"{path}[{k!r}]")) for k, v in value.items()]

    return mapping


def _sequence(inner: Any) -> Any:
    def sequence(value: Any, path: str) -> Any:
        return None if value is None else [inner(item, f"{path}[{index}]") for index, item in enumerate(value)]

    return sequence


def _leaf(convert: Any) -> Any:
    def leaf(value: Any, path: str) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except Exception as error:
            raise Misfit(path, str(error)) from error

    return leaf


def record_type(fields: Sequence[Field], time: Any = dt.datetime, floating: Any = float) -> Any:
    """A msgspec type for a JSON object with these fields; attribute ``f<n>`` holds field n. ``time`` is that of
    timestamps, ``floating`` that of ``double``, and of ``float`` where it is not ``float``.
    """
    return _Types(time, floating).record(fields)


class _Types:
    """Types of msgspec for those of Arrow."""

    def __init__(self, time: Any, floating: Any) -> None:
        self._time = time
        self._floating = floating

    def record(self, fields: Sequence[Field]) -> Any:
        members: list[Any] = []
        names: dict[str, str] = {}
        required = sorted(range(len(fields)), key=lambda index: not fields[index].required)
        for index in required:
            field = fields[index]
            name = f"f{index}"
            names[name] = field.name
            kind = self._of(field.type)
            if kind is msgspec.Raw:  # which also takes null, and stands in no union
                members.append((name, kind) if field.required else (name, kind, msgspec.Raw(b"null")))
            else:
                members.append((name, kind) if field.required else (name, kind | None, None))
        return msgspec.defstruct("Record", members, rename=names, gc=False)

    def _or_null(self, kind: ArrowType) -> Any:
        found = self._of(kind)
        return found if found is msgspec.Raw else found | None

    def _of(self, kind: ArrowType) -> Any:
        if is_json_text(kind):
            return msgspec.Raw
        if pa.types.is_struct(kind):
            return self.record([Field(kind.field(i).name, kind.field(i).type) for i in range(kind.num_fields)])
        if pa.types.is_map(kind):
            return dict[str, self._or_null(kind.item_type)]
        if pa.types.is_list(kind):
            return list[self._or_null(kind.value_type)]
        if pa.types.is_integer(kind):
            return _integer(kind.bit_width)
        if pa.types.is_decimal(kind):
            return decimal.Decimal
        if pa.types.is_timestamp(kind):
            return self._time
        if pa.types.is_date(kind):
            return dt.date
        if pa.types.is_boolean(kind):
            return bool
        if not pa.types.is_floating(kind):
            return str
        if self._floating is float and kind == pa.float32():  # Arrow would make an infinity of what is larger
            return Annotated[float, msgspec.Meta(gt=-_FLOAT_END, lt=_FLOAT_END)]
        return self._floating


def _integer(bits: int) -> Any:
    if bits == 64:
        return Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


# Numbers

_TEN: Final = np.uint8(10)
_LOWER: Final = np.uint8(0x20)
"""The bit that tells a lower from an upper letter."""


class LongNumbers:
    """Finds numbers that a ``float`` or ``double`` of these fields would not keep (the opening prose says which)."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._digits = 8 if any(has(field.type, pa.types.is_float32) for field in fields) else 16
        self._texts = msgspec.json.Decoder(record_type(fields, time=str, floating=msgspec.Raw))
        found = [(f"f{index}", field.name, converter(field.type, _KEEPS)) for index, field in enumerate(fields)]
        self._checks = [check for check in found if check[2] is not None]

    @classmethod
    def of(cls, fields: Sequence[Field]) -> "LongNumbers | None":
        """None where no field has such a type."""
        return cls(fields) if any(has(field.type, pa.types.is_floating) for field in fields) else None

    def suspects(self, values: Any) -> list[int]:
        """The rows of a BinaryArray that may have such a number: with more digits in a row than a ``float`` or a
        ``double`` keeps, or with a negative exponent. All bytes are examined together, because most batches have none.
        """
        _, ends, data = values.buffers()
        if data is None or not len(values):
            return []
        offsets = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
        text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
        digit = (text - ord("0")) < _TEN
        run, length = digit, 1
        while length < self._digits:
            run = run[:-length] & run[length:]
            length *= 2
        small = ((text[:-2] | _LOWER) == ord("e")) & (text[1:-1] == ord("-")) & digit[2:]
        found = np.concatenate([np.flatnonzero(run), np.flatnonzero(small)])
        return np.unique(np.searchsorted(offsets - offsets[0], found, side="right") - 1).tolist()

    def require_kept(self, value: bytes) -> None:
        """Refuse a record that msgspec has read.

        Raises:
            Misfit: one of its numbers is not kept.
        """
        row = self._texts.decode(value)
        for place, name, check in self._checks:
            check(getattr(row, place), name)


def _require_double(raw: msgspec.Raw) -> None:
    _require_kept(bytes(raw), 1 << 53, "double", float)


def _require_float(raw: msgspec.Raw) -> None:
    _require_kept(bytes(raw), 1 << 24, "float", np.float32)


_KEEPS: Final[Conversions] = {pa.float64().id: _require_double, pa.float32().id: _require_float}


def _require_kept(text: bytes, whole: int, kind: str, near: Any) -> None:
    """Refuse the text of a number. ``whole`` bounds the integers that the column has all of; ``near`` gives the number
    that the column would have.
    """
    if text == b"null":
        return
    number, kept = decimal.Decimal(text.decode()), near(text.decode())
    scientific = b"e" in text or b"E" in text
    lost = kept == 0 and number != 0
    if not lost and (scientific or abs(number) <= whole or number in (decimal.Decimal(float(kept)), _shortest(kept))):
        return
    raise ValueError(
        f"{text[:100].decode()} would become {_shortest(kept)} in a column of type {kind}, which keeps no more of its "
        "digits; bigint, decimal, string and json keep them all"
    )


def _shortest(kept: Any) -> decimal.Decimal:
    """The shortest number that is read as this one."""
    return decimal.Decimal(str(kept))
