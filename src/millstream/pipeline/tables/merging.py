"""Changes by key into a table's files: copy on write, in the files that have the keys.

::

    changes ─► files whose key bounds take a change in ─► their key columns ─► rows that go ─┐
                  (no other file is opened)                                                  ▼
    commit ◄── files removed, files added ◄── each file that loses a row, written again without it, with the
                                              new rows of its keys; keys that no file has, in files of their own

A row's new version goes where the old one was, and new keys are written in the order of the key, so the key bounds of
files stay narrow and the next change opens few of them. ``joined`` does the same for small files. What a file costs is
reading its key columns, and reading and writing all of it if one of its rows goes; nothing depends on the rest of the
table but the list of its files.

Nothing is committed here. A crash leaves files that no commit names.
"""

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipeline.changes import PLACES, Changes, KeyIndex, Places, newer
from millstream.pipeline.files import FileWriter, WrittenFile
from millstream.pipeline.layout import SortField, conform, sorted_batch
from millstream.pipeline.locations import Location

STEM: Final = "merged-"
"""First part of the names of files that are written here."""
_SMALL_BYTES: Final = 32 << 20
_SMALL_FILES: Final = 32
_JOINED_BYTES: Final = 128 << 20
"""Bytes of files that are joined at once; with a key they are sorted in memory."""


class TableFile(msgspec.Struct, frozen=True):
    """A data file. ``bounds`` has the least and the greatest value of key columns, as far as the table says;
    ``partition`` is what files that may be joined have in common. ``own`` is the table's.
    """

    own: Any
    bytes: int
    bounds: Mapping[str, tuple[Any, Any]]
    partition: str = ""


class Files(Protocol):
    """The files of one version of a table."""

    def files(self) -> Sequence[TableFile]:
        """All data files."""
        ...

    def read(self, file: TableFile, columns: Sequence[str]) -> Iterator[Any]:
        """The rows of a file as record batches, always in the same order."""
        ...


class Rewritten(msgspec.Struct, frozen=True):
    """Files that a commit takes out of a table, and those that it adds."""

    removed: list[TableFile]
    added: list[WrittenFile]


class _Target(msgspec.Struct, frozen=True):
    """Where files are written to, and with which columns."""

    location: Location
    schema: Any
    key: tuple[str, ...]

    def writer(self) -> FileWriter:
        return FileWriter(self.location, f"{STEM}{uuid.uuid4().hex[:8]}", self.schema)

    def write(self, writer: FileWriter, rows: Any) -> None:
        """Write rows in the order of their keys."""
        if rows.num_rows:
            order = [SortField(name, False, True) for name in self.key]
            for batch in sorted_batch(rows, order).combine_chunks().to_batches():
                writer.write(conform(batch, self.schema))


class _Match(msgspec.Struct, frozen=True):
    """Rows of a file whose keys are changed: their positions in it and those of the changes, and the rows' places."""

    file: TableFile
    rows: Any
    changes: Any
    places: Places


def known(files: Files, changes: Changes) -> Any:
    """Whether a table has a row that is later than each change, as a boolean array."""
    found, places = np.zeros(changes.rows.num_rows, dtype=bool), Places.of(changes.rows)
    for match in _matches(files, changes):
        is_later = newer(match.places, places.take(match.changes))
        found[match.changes[is_later]] = True
    return found


def merged(files: Files, changes: Changes, location: Location, schema: Any) -> Rewritten:
    """Write what the changes make of a table; returns what the commit names.

    Args:
        files: the table.
        changes: the latest of each key.
        location: the directory of the table's files.
        schema: of the table's files.
    """
    target = _Target(location, schema, changes.key)
    places = Places.of(changes.rows)
    matches = list(_matches(files, changes))
    counts = np.ones(changes.rows.num_rows, dtype=bool)
    wins = [newer(places.take(match.changes), match.places) for match in matches]
    for match, win in zip(matches, wins, strict=True):
        counts[match.changes[~win]] = False  # the table has a later row of that key
    left = counts & ~changes.deleted
    removed: list[TableFile] = []
    added: list[WrittenFile] = []
    for match, win in zip(matches, wins, strict=True):
        lost = win & counts[match.changes]
        if not lost.any():
            continue
        here = np.zeros(len(left), dtype=bool)
        here[match.changes[lost]] = True
        here &= left
        left &= ~here
        removed.append(match.file)
        added += _without(files, match.file, match.rows[lost], changes.rows.filter(pa.array(here)), target)
    writer = target.writer()
    target.write(writer, changes.rows.filter(pa.array(left)))
    return Rewritten(removed, [*added, *writer.close()])


def joined(files: Files, key: tuple[str, ...], location: Location, schema: Any) -> Rewritten | None:
    """Write small files of one partition again as fewer, with a key in its order; None if there are not many, or if
    they would not become fewer.
    """
    groups: dict[str, list[TableFile]] = {}
    for file in files.files():
        if file.bytes < _SMALL_BYTES:
            groups.setdefault(file.partition, []).append(file)
    group = max(groups.values(), key=len, default=[])
    if len(group) < _SMALL_FILES:
        return None
    chosen: list[TableFile] = []
    for file in group:
        if chosen and sum(one.bytes for one in chosen) + file.bytes > _JOINED_BYTES:
            break
        chosen.append(file)
    target = _Target(location, schema, key)
    writer = target.writer()
    found = (batch for file in chosen for batch in files.read(file, schema.names))
    if key:
        rows = list(found)
        if rows:
            target.write(writer, pa.Table.from_batches(rows))
    else:
        for batch in found:
            writer.write(conform(batch, schema))
    added = list(writer.close())
    return Rewritten(chosen, added) if len(added) < len(chosen) else None


def without_earlier(
    files: Files, column: str, before: dt.datetime, key: tuple[str, ...], location: Location, schema: Any
) -> Rewritten | None:
    """Write files again without rows whose time in a column is earlier; None if no row is."""
    call: Any = pc
    limit = pa.scalar(before, pa.timestamp("us", tz="UTC"))
    target = _Target(location, schema, key)
    removed: list[TableFile] = []
    added: list[WrittenFile] = []
    for file in files.files():
        if column in file.bounds and call.greater_equal(pa.scalar(file.bounds[column][0], limit.type), limit).as_py():
            continue
        begin, lost = 0, np.zeros(0, dtype=np.int64)
        for batch in files.read(file, [column]):
            early = call.less(batch.column(0), limit).fill_null(False).to_numpy(zero_copy_only=False)
            lost = np.append(lost, np.flatnonzero(early) + begin)
            begin += batch.num_rows
        if len(lost):
            removed.append(file)
            added += _without(files, file, lost, None, target)
    return Rewritten(removed, added) if removed else None


def _without(files: Files, file: TableFile, lost: Any, new: Any, target: _Target) -> list[WrittenFile]:
    """Write a file again without some of its rows, and with others."""
    writer = target.writer()
    begin = 0
    for batch in files.read(file, target.schema.names):
        kept = np.ones(batch.num_rows, dtype=bool)
        kept[lost[(lost >= begin) & (lost < begin + batch.num_rows)] - begin] = False
        begin += batch.num_rows
        writer.write(conform(batch.filter(pa.array(kept)), target.schema))
    if new is not None:
        target.write(writer, new)
    return list(writer.close())


def _matches(files: Files, changes: Changes) -> Iterator[_Match]:
    """The rows of a table whose keys are changed, file by file."""
    if not changes.rows.num_rows:
        return
    keys = changes.keys
    index = KeyIndex(keys)
    change_of = np.zeros(len(index.codes), dtype=np.int64)
    change_of[index.codes] = np.arange(len(index.codes))
    columns = (*changes.key, *(name for name in PLACES if name not in changes.key))
    for file in files.files():
        if not _may_have(file, changes.key, keys):
            continue
        rows: list[Any] = []
        numbers: list[Any] = []
        parts: list[Any] = []
        begin = 0
        for batch in files.read(file, columns):
            codes = index.find([batch.column(name) for name in changes.key])
            hits = np.flatnonzero(codes >= 0)
            if len(hits):
                rows.append(hits + begin)
                numbers.append(change_of[codes[hits]])
                parts.append(batch.take(pa.array(hits)))
            begin += batch.num_rows
        if rows:
            places = Places.of(pa.Table.from_batches(parts))
            yield _Match(file, np.concatenate(rows), np.concatenate(numbers), places)


def _may_have(file: TableFile, key: Sequence[str], keys: Sequence[Any]) -> bool:
    """Whether the bounds of a file leave room for one of the keys."""
    call: Any = pc
    wanted: Any = None
    for name, column in zip(key, keys, strict=True):
        if name not in file.bounds:
            continue
        least, greatest = (pa.scalar(value, column.type) for value in file.bounds[name])
        inside = call.and_(call.greater_equal(column, least), call.less_equal(column, greatest))
        wanted = inside if wanted is None else call.and_(wanted, inside)
    return wanted is None or bool(call.any(wanted).as_py())
