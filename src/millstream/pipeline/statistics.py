"""Statistics of a file in a Delta table's commit: rows, and per column its bounds and its number of nulls.

Readers skip files by them, so a bound may be too wide and never too narrow. Some readers take a column without bounds
for one without rows as soon as the file has bounds of others. Therefore a file has bounds for every column that can
have them in Delta (a column of nulls has none), or it has the number of rows and nothing else. Columns that no reader
expects bounds of (binary, lists, maps, structs) never count.

Bounds come from the Parquet footer. It lacks those of texts beyond some kibibytes and does not tell of NaN, so
``Bounds`` looks at the rows for these two. Forms are those of the Delta protocol: times in milliseconds, the lower
rounded down and the upper up, texts cut to a prefix, the upper one raised after the cut, decimals as exact numbers.
Infinity, NaN, and dates and times beyond the years 1 to 9999 have no form, and their file has no bounds.
"""

import datetime as dt
import decimal
import math
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_TEXT: Final = 64
"""Characters of a text's bound."""
_FOOTER_TEXT: Final = 2000
"""Longest text, in bytes, whose bounds the footer has for certain; Parquet leaves out those beyond 4 KiB together."""
_FIRST_US: Final = -62_135_596_800_000_000
_END_US: Final = 253_402_300_800_000_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_FIRST_DAY: Final = dt.date.min.toordinal() - _EPOCH_DAY
_LAST_DAY: Final = dt.date.max.toordinal() - _EPOCH_DAY
_NO_BOUNDS: Final = msgspec.Raw(b"{}")
_LAST_CHARACTER: Final = 0x10FFFF


class Bounds:
    """What the footer of one file does not tell. ``add`` is called with the columns of each row group, in order.

    ``nans`` counts NaN by column, ``texts`` has the bounds of a column in a row group with long texts.
    """

    def __init__(self, schema: Any) -> None:
        self.nans: dict[str, int] = {}
        self.texts: dict[tuple[str, int], tuple[str, str]] = {}
        self._floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        self._strings = [field.name for field in schema if pa.types.is_string(field.type)]
        self._groups = 0

    def add(self, group: Any) -> None:
        call: Any = pc
        for name in self._floats:
            count = call.sum(call.is_nan(group.column(name))).as_py()
            if count:
                self.nans[name] = self.nans.get(name, 0) + count
        for name in self._strings:
            column = group.column(name)
            if (call.max(call.binary_length(column)).as_py() or 0) > _FOOTER_TEXT:
                least, greatest = call.min_max(column).values()
                self.texts[name, self._groups] = least.as_py(), greatest.as_py()
        self._groups += 1


def file_stats(metadata: Any, schema: Any, bounds: Bounds) -> str:
    """Delta's JSON of statistics for a file with this Parquet footer and this schema."""
    text = _complete(metadata, schema, bounds)
    return f'{{"numRecords":{metadata.num_rows}}}' if text is None else text


def _complete(metadata: Any, schema: Any, bounds: Bounds) -> str | None:
    least: dict[str, msgspec.Raw] = {}
    greatest: dict[str, msgspec.Raw] = {}
    nulls: dict[str, int] = {}
    after = 0
    for field in schema:
        index, after = after, after + _leaves(field.type)
        if pa.types.is_struct(field.type):
            least[field.name] = greatest[field.name] = _NO_BOUNDS
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            continue
        found = None if field.name in bounds.nans else _extremes(metadata, index, field, bounds)
        if found is None:
            return None
        low, high, nulls[field.name] = found
        if low is not None:
            forms = _form(low, field.type, up=False), _form(high, field.type, up=True)
            if forms[0] is None or forms[1] is None:
                return None
            least[field.name], greatest[field.name] = msgspec.Raw(forms[0].encode()), msgspec.Raw(forms[1].encode())
    found = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _leaves(kind: Any) -> int:
    """Columns that Parquet has for a column of this type."""
    if pa.types.is_struct(kind):
        return sum(_leaves(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    return _leaves(kind.value_type) if pa.types.is_list(kind) else 1


def _extremes(metadata: Any, index: int, field: Any, bounds: Bounds) -> tuple[Any, Any, int] | None:
    """The least and the greatest value and the number of nulls; None if the footer does not tell. Times are
    microseconds and dates days. Both values are None in a column of nulls.
    """
    raw = pa.types.is_timestamp(field.type) or pa.types.is_date32(field.type)
    lows: list[Any] = []
    highs: list[Any] = []
    nulls = 0
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(index)
        known = chunk.statistics
        own = bounds.texts.get((field.name, group))
        if known is None or not known.has_null_count:
            return None
        nulls += known.null_count
        if own is not None:
            lows.append(own[0])
            highs.append(own[1])
        elif known.has_min_max:
            lows.append(known.min_raw if raw else known.min)
            highs.append(known.max_raw if raw else known.max)
        elif known.null_count < metadata.row_group(group).num_rows:
            return None
    if not lows:
        return None, None, nulls
    return min(lows), max(highs), nulls


def _form(value: Any, kind: Any, *, up: bool) -> str | None:
    """A bound as JSON; None if it has no form."""
    if pa.types.is_timestamp(kind):
        return _time_form(value, kind, up=up)
    if pa.types.is_date32(kind):
        return f'"{dt.date.fromordinal(value + _EPOCH_DAY)}"' if _FIRST_DAY <= value <= _LAST_DAY else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, str):
        cut = _raised(value) if up else value[:_TEXT]
        return None if cut is None else msgspec.json.encode(cut).decode()
    return str(value) if isinstance(value, int) else None


def _time_form(micros: int, kind: Any, *, up: bool) -> str | None:
    millis = -(-micros // 1000) if up else micros // 1000
    if kind.unit != "us" or not _FIRST_US <= millis * 1000 < _END_US:
        return None
    moment = _EPOCH + dt.timedelta(milliseconds=millis)
    return f'"{moment.replace(tzinfo=None).isoformat(timespec="milliseconds")}{"" if kind.tz is None else "Z"}"'


def _raised(value: str) -> str | None:
    """The shortest text of at most ``_TEXT`` characters that no text with this beginning is behind."""
    if len(value) <= _TEXT:
        return value
    for end in range(_TEXT, 0, -1):
        last = ord(value[end - 1]) + 1
        if last <= _LAST_CHARACTER:
            return value[: end - 1] + chr(0xE000 if last == 0xD800 else last)
    return None
