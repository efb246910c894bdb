"""Parquet files that tasks write and the driver commits.

A file belongs to nothing until a table's commit names it: a task that is repeated writes another one, and the first is
left over. Names carry batch, task and a fresh id, so no task ever writes over a file that a commit may name. What the
driver learns of a file travels as a row of ``FILE_COLUMNS`` or in the task's report.
"""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.pipeline.layout import Rules, directory_of, file_schema, in_file, rules_of, sorted_batch, split
from millstream.pipeline.locations import Location
from millstream.pipeline.statistics import Bounds, file_stats

GROUP_BYTES: Final = 64 << 20
"""Arrow bytes of a row group: large enough to compress well, small enough that two of them fit any worker."""
_FILE_BYTES: Final = 512 << 20
"""Arrow bytes after which a task starts another file; on disk it is a fraction of that."""
_HELD_BYTES: Final = 256 << 20
"""Arrow bytes that the open files of all partitions hold together."""
_OPEN_FILES: Final = 64
"""Partitions with an open file; the one that was not written to for longest is finished first."""

FILE_COLUMNS: Final = "path string, rows bigint, bytes bigint, stats string, partition string, nans string"
FILE_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("stats", pa.string()),
        pa.field("partition", pa.string()),
        pa.field("nans", pa.string()),
    ]
)


class WrittenFile(msgspec.Struct, frozen=True):
    """A Parquet file. ``path`` is relative to the table's directory, ``stats`` is Delta's JSON of statistics,
    ``partition`` the JSON of its partition key, empty without one (``layout.split``). ``nans`` is the JSON of how often
    NaN is in its columns, empty where it is in none.
    """

    path: str
    rows: int
    bytes: int
    stats: str
    partition: str = ""
    nans: str = ""


class FileWriter:
    """Writes conformed batches of one schema into as many files as they need. Not shared between threads.

    ``files`` are those that are finished. A writer that is never closed leaves files that no commit names. Memory is
    bounded: partitions share ``_HELD_BYTES``, and the fullest is written out first.
    """

    def __init__(self, location: Location, stem: str, schema: Any) -> None:
        self.files: list[WrittenFile] = []
        self._location = location
        self._stem = stem
        self._schema = schema
        self._rules = rules_of(schema)
        self._wanted = file_schema(schema)
        self._open: dict[str, _OpenFile] = {}  # by partition key, in the order of the last write
        self._held_bytes = 0

    def write(self, batch: Any) -> None:
        """Add a record batch of the schema."""
        if not batch.num_rows:
            return
        for key, rows in split(batch, self._rules.partition):
            file = self._open.pop(key, None) or self._begin(key)
            self._open[key] = file
            self._held_bytes += file.add(in_file(rows, self._schema, self._wanted))
            if file.held_bytes >= GROUP_BYTES:
                self._held_bytes -= file.flush()
                if file.is_full:
                    self._finish(key)
            if len(self._open) > _OPEN_FILES:
                self._finish(next(iter(self._open)))
        while self._held_bytes > _HELD_BYTES:
            key, file = max(self._open.items(), key=lambda item: item[1].held_bytes)
            self._held_bytes -= file.flush()
            if file.is_full:
                self._finish(key)

    def close(self) -> Sequence[WrittenFile]:
        """Finish the last files; returns all of them."""
        for key in list(self._open):
            self._finish(key)
        return self.files

    def _begin(self, key: str) -> "_OpenFile":
        stem = directory_of(key, self._schema) + self._stem
        return _OpenFile(self._location, stem, self._wanted, self._rules, key)

    def _finish(self, key: str) -> None:
        file = self._open.pop(key)
        self._held_bytes -= file.flush()
        self.files.append(file.finish())


class _OpenFile:
    """One file that is being written: the rows of one partition."""

    def __init__(self, location: Location, stem: str, schema: Any, rules: Rules, partition: str) -> None:
        self.held_bytes = 0
        self._schema = schema
        self._sort = rules.sort
        self._partition = partition
        self._held: list[Any] = []
        self._written = 0
        self._metadata: list[Any] = []
        self._bounds = Bounds(schema)
        self._name = f"{stem}-{uuid.uuid4().hex[:12]}{rules.ending}"
        self._stream = location.create(self._name)
        self._writer: Any = pq.ParquetWriter(
            self._stream,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_dictionary_columns(schema),
            metadata_collector=self._metadata,
        )

    @property
    def is_full(self) -> bool:
        """Whether the next rows belong into another file. A sorted file has one row group."""
        return self._written >= _FILE_BYTES or (bool(self._sort) and self._written > 0)

    def add(self, batch: Any) -> int:
        """Hold rows; returns how many bytes that is."""
        self._held.append(batch)
        self.held_bytes += batch.nbytes
        return batch.nbytes

    def flush(self) -> int:
        """Write what is held as a row group; returns how many bytes are held no longer."""
        if not self._held:
            return 0
        group = pa.Table.from_batches(self._held, self._schema)
        if self._sort:
            group = sorted_batch(group, self._sort)
        self._writer.write_table(group, row_group_size=group.num_rows)
        self._bounds.add(group)
        freed = self.held_bytes
        self._written += freed
        self._held, self.held_bytes = [], 0
        return freed

    def finish(self) -> WrittenFile:
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        footer = self._metadata[0]
        stats = file_stats(footer, self._schema, self._bounds)
        nans = msgspec.json.encode(self._bounds.nans).decode() if self._bounds.nans else ""
        return WrittenFile(self._name, footer.num_rows, size, stats, self._partition, nans)


def files_batch(files: Iterable[WrittenFile]) -> Any:
    """The rows that tell the driver of files."""
    rows = [msgspec.to_builtins(file) for file in files]
    return pa.RecordBatch.from_pylist(rows, FILE_SCHEMA)


def written(rows: Iterable[Any]) -> tuple[WrittenFile, ...]:
    """The files that rows of ``FILE_COLUMNS`` tell of."""
    return tuple(WrittenFile(row.path, row.rows, row.bytes, row.stats, row.partition, row.nans) for row in rows)


def _dictionary_columns(schema: Any) -> Any:
    """Columns that a dictionary helps; on long unique bytes it only costs."""
    return [field.name for field in schema if not pa.types.is_binary(field.type) and not pa.types.is_nested(field.type)]
