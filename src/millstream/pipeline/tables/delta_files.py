"""The files of a Delta table, for changes by key: their bounds from the log, their rows from Parquet."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.errors import Rejected
from millstream.pipeline.locations import Location
from millstream.pipeline.tables.merging import STEM, TableFile

_PLAIN: Final = "!$&'()+,-./:;=@_~"
"""Characters, beside letters and digits, that delta-rs does not encode in a path."""
_MILLISECOND: Final = 1000
"""Bounds of times are cut to milliseconds by some writers; in microseconds."""


class DeltaFiles:
    """The files of one version of a table."""

    def __init__(self, table: Any, location: Location, schema: Any, key: Sequence[str]) -> None:
        """``schema`` has the table's columns."""
        self._actions: Any = pa.table(table.get_add_actions(flatten=True))
        self._partition: list[str] = list(table.metadata().partition_columns)
        self._location = location
        self._schema = schema
        self._key = key

    @property
    def paths(self) -> frozenset[str]:
        """Paths of the files, as they stand in the log."""
        return _paths(self._actions)

    def files(self) -> Sequence[TableFile]:
        actions = self._actions
        bounds = {name: self._bounds(name) for name in self._key}
        partitions = {name: actions.column(f"partition.{name}").to_pylist() for name in self._partition}
        sizes = actions.column("size_bytes").to_pylist()
        found: list[TableFile] = []
        for index, path in enumerate(actions.column("path").to_pylist()):
            known = {name: pairs[index] for name, pairs in bounds.items() if pairs[index] is not None}
            values = {name: column[index] for name, column in partitions.items()}
            found.append(TableFile((path, values), sizes[index], known, repr(values)))
        return found

    def _bounds(self, name: str) -> list[Any]:
        """The bounds of a column, or None, by file."""
        actions, kind = self._actions, self._schema.field(name).type
        names = [f"partition.{name}"] * 2 if name in self._partition else [f"min.{name}", f"max.{name}"]
        if not set(names) <= set(actions.column_names):
            return [None] * actions.num_rows
        least, greatest = (actions.column(one).cast(kind) for one in names)
        if pa.types.is_timestamp(kind):
            add: Any = getattr(pc, "add")  # noqa: B009 (made at run time)
            greatest = add(greatest.cast(pa.int64()), _MILLISECOND).cast(kind)
        pairs = zip(least, greatest, strict=True)
        return [(low, high) if low.is_valid and high.is_valid else None for low, high in pairs]

    def read(self, file: TableFile, columns: Sequence[str]) -> Iterator[Any]:
        path, values = file.own
        if "://" in path or path.startswith("/"):
            raise Rejected(f"{path} is a file of another table (a shallow clone), whose rows are not changed here")
        wanted = pa.schema([self._schema.field(name) for name in columns])
        with self._location.open_file(unquote(path)) as stream:
            parquet: Any = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            present = [name for name in columns if name in parquet.schema_arrow.names]
            # Without threads: one of Arrow's that still holds this file when Python ends would abort the process.
            for batch in parquet.iter_batches(columns=present, use_threads=False):
                yield pa.RecordBatch.from_arrays(
                    [self._column(batch, field, values) for field in wanted], schema=wanted
                )

    def _column(self, batch: Any, field: Any, values: Mapping[str, Any]) -> Any:
        if field.name in values:
            value = values[field.name]
            scalar = pa.scalar(value).cast(field.type) if value is not None else pa.scalar(None, field.type)
            return pa.repeat(scalar, batch.num_rows)
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        return batch.column(field.name).cast(field.type)


def paths_of(table: Any) -> frozenset[str]:
    """Paths of a table's files, as they stand in the log."""
    return _paths(pa.table(table.get_add_actions(flatten=True)))


def _paths(actions: Any) -> frozenset[str]:
    return frozenset(actions.column("path").to_pylist())


def holds(files: DeltaFiles, before: frozenset[str], removed: Sequence[TableFile]) -> bool:
    """Whether what was merged into files still holds for those of a later version: none of the removed ones is missing,
    and no other merge has added one. ``before`` are the paths that were merged into.
    """
    now = files.paths
    merges = any(path.rpartition("/")[2].startswith(STEM) for path in now - before)
    return not merges and all(file.own[0] in now for file in removed)


def removals(delta: Any, removed: Sequence[TableFile], *, data_change: bool) -> list[Any]:
    """The actions that take files out of the table.

    delta-rs encodes a path that it is given, and readers compare it with the one in the log, letter by letter.

    Raises:
        Rejected: the log has a path in a form that delta-rs does not write.
    """
    now = int(time.time() * 1000)
    for file in removed:
        path = file.own[0]
        if quote(unquote(path), safe=_PLAIN) != path:
            raise Rejected(
                f"{path} stands in the table's log in a form that cannot be taken out here; OPTIMIZE renames it"
            )
    return [delta.transaction.RemoveAction(unquote(file.own[0]), data_change, now, file.bytes) for file in removed]
