"""Parquet files that tasks write and the driver commits.

A file belongs to nothing until a table's commit names it: a task that is repeated writes another one, and the first is
left over. Names carry batch, task and a fresh id, so no task ever writes over a file that a commit may name. What the
driver learns of a file travels as a row of ``FILE_COLUMNS`` or in the task's report.
"""

import datetime as dt
import math
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.pipeline.locations import Location

GROUP_BYTES: Final = 64 << 20
"""Arrow bytes of a row group: large enough to compress well, small enough that two of them fit any worker."""
_FILE_BYTES: Final = 512 << 20
"""Arrow bytes after which a task begins another file; on disk it is a fraction of that."""
_STAT_TEXT: Final = 64

FILE_COLUMNS: Final = "path string, rows bigint, bytes bigint, stats string"
FILE_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("stats", pa.string()),
    ]
)


class WrittenFile(msgspec.Struct, frozen=True):
    """A Parquet file. ``path`` is relative to the table's directory, ``stats`` is Delta's JSON of statistics."""

    path: str
    rows: int
    bytes: int
    stats: str


class FileWriter:
    """Writes batches of one schema into as many files as they need. Not shared between threads.

    ``files`` are those that are finished. A writer that is never closed leaves a file that no commit names.
    """

    def __init__(self, location: Location, stem: str, schema: Any) -> None:
        self.files: list[WrittenFile] = []
        self._location = location
        self._stem = stem
        self._schema = schema
        self._held: list[Any] = []
        self._held_bytes = 0
        self._writer: Any = None  # while a file is open
        self._metadata: list[Any] = []
        self._name = ""
        self._stream: Any = None
        self._written = 0

    def write(self, batch: Any) -> None:
        """Add a record batch of the schema."""
        if batch.num_rows:
            self._held.append(batch)
            self._held_bytes += batch.nbytes
            if self._held_bytes >= GROUP_BYTES:
                self._flush()
                if self._written >= _FILE_BYTES:
                    self._finish()

    def close(self) -> Sequence[WrittenFile]:
        """Finish the last file; returns all of them."""
        self._flush()
        self._finish()
        return self.files

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        writer = self._writer or self._open()
        writer.write_table(table, row_group_size=table.num_rows)
        self._written += self._held_bytes
        self._held, self._held_bytes = [], 0

    def _open(self) -> Any:
        filesystem, path = self._location.open()
        self._name = f"{self._stem}-{uuid.uuid4().hex[:12]}.parquet"
        self._stream = filesystem.open_output_stream(f"{path}/{self._name}")
        self._metadata = []
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_dictionary_columns(self._schema),
            metadata_collector=self._metadata,
        )
        return self._writer

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        rows = self._metadata[0].num_rows
        self.files.append(WrittenFile(self._name, rows, size, file_stats(self._metadata[0], self._schema)))
        self._writer, self._written = None, 0


def files_batch(files: Iterable[WrittenFile]) -> Any:
    """The rows that tell the driver of files."""
    rows = [msgspec.to_builtins(file) for file in files]
    return pa.RecordBatch.from_pylist(rows, FILE_SCHEMA)


def conform(batch: Any, schema: Any) -> Any:
    """A batch in the table's order and types; columns that it lacks are null.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit its column's type.
    """
    names = set(batch.schema.names)
    arrays = [
        batch.column(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def file_stats(metadata: Any, schema: Any) -> str:
    """Delta's statistics of a file: rows, and per column least and greatest value and number of nulls.

    Only plain top-level columns have them; a bound that cannot be written exactly is rounded outwards, or left out.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue
        chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        bounded = [chunk for chunk in chunks if chunk.has_min_max]
        known = len(bounded) + sum(1 for chunk in chunks if not chunk.has_min_max and not chunk.num_values)
        if not bounded or known != len(chunks):
            continue
        low = _bound(min(chunk.min for chunk in bounded), up=False)
        high = _bound(max(chunk.max for chunk in bounded), up=True)
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    found = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _bound(value: Any, *, up: bool) -> Any:
    """A bound as Delta writes it; None where it has no exact or outward form."""
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= _STAT_TEXT else None
    if isinstance(value, dt.datetime):
        micros = value.microsecond % 1000
        rounded = value + dt.timedelta(microseconds=1000 - micros if up and micros else -micros)
        return rounded.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    return None


def _dictionary_columns(schema: Any) -> Any:
    """Columns that a dictionary helps; on long unique bytes it only costs."""
    return [field.name for field in schema if not pa.types.is_binary(field.type) and not pa.types.is_nested(field.type)]
