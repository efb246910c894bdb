"""Dead letters that are made of a query's rows, and the records that they name."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.spark.fitting import Fault

RawRecords: TypeAlias = Callable[[Mapping[tuple[str, int], set[int]]], Mapping[tuple[str, int, int], tuple[Any, Any]]]
"""Reads records again: by topic, partition and offset, the key and the value of those that are still there."""
PLACE: Final = ("topic", "partition", "offset")


class Origins(msgspec.Struct, frozen=True):
    """What the rows of a query tell about their records. ``named``: each row is of one record, whose place it has.
    ``single_rows``: no record has several rows.
    """

    named: bool
    single_rows: bool


def letters_of(rows: Any, faults: Mapping[int, Fault], origins: Origins) -> Any:
    """Rows of a query that do not fit, as dead letters without a key."""
    bad = rows.take(pa.array(list(faults)))
    names = {f"_{name}": name for name in (*PLACE, "timestamp")} if origins.named else {}
    held = {name: bad.column(own).to_pylist() for own, name in names.items() if own in bad.schema.names}
    values = {name: _values(bad.column(name)) for name in bad.schema.names}
    found: list[dict[str, Any]] = []
    for index, fault in enumerate(faults.values()):
        letter: dict[str, Any] = {name: column[index] for name, column in held.items()}
        if any(letter.get(name) is None for name in PLACE):
            row = {name: column[index] for name, column in values.items()}
            letter = {"value": msgspec.json.encode(row, enc_hook=str)}
        found.append({**letter, "error": fault.reason, "column": fault.column})
    return pa.RecordBatch.from_pylist(found, DEAD_LETTER_SCHEMA)


def with_records(letters: Any, raw: RawRecords) -> Any:
    """Dead letters with the keys and values of the records that they name; deleted ones have neither."""
    wanted: dict[tuple[str, int], set[int]] = {}
    found = letters.to_pylist()
    for letter in found:
        if letter["topic"] is not None:
            wanted.setdefault((letter["topic"], letter["partition"]), set()).add(letter["offset"])
    records = raw(wanted) if wanted else {}
    for letter in found:
        if letter["topic"] is not None:
            place = letter["topic"], letter["partition"], letter["offset"]
            letter["key"], letter["value"] = records.get(place, (None, None))
    return pa.Table.from_pylist(found, DEAD_LETTER_SCHEMA)


def _values(column: Any) -> list[Any]:
    """Values for a person to read; a time that Python does not have is text."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [None] * len(column) if pa.types.is_nested(column.type) else column.cast(pa.string()).to_pylist()
