"""A sink that is a table whose rows have a key (``mode: upsert``, ``mode: changelog``).

::

    tasks ──► rows: files beside the checkpoint ──┐
          └─► tombstones: the same ───────────────┴─► driver: keys, generations ─► MergingSink or ChangelogSink

Tombstones do not pass the query: it would see a row of nulls. The driver decodes their keys (``keys``). A row or
tombstone whose key is missing or does not decode is a dead letter of the batch. A batch is merged in the driver's
memory, and a changelog is written there, so it is bounded (``checks.batch_bytes``). Files beside the checkpoint are
removed when their batch is committed, and those that a crash left when the pipeline starts.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from millstream.pipeline.change_reader import ChangeReader
from millstream.pipeline.checks import batch_bytes, key_of, seconds
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.keyed_sink import ChangelogSink, KeyedSink
from millstream.pipeline.locations import Location
from millstream.pipeline.merging_sink import MergingSink
from millstream.pipeline.model import Sink
from millstream.pipeline.query_names import query_path
from millstream.pipeline.query_plan import require_mergeable
from millstream.pipeline.raw_records import raw_records
from millstream.pipeline.result_rows import Result
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.table_query import TableQuery
from millstream.pipeline.tables.open_table import DELETES_SUFFIX, open_table
from millstream.pipeline.tables.table import CommitRecord, Table
from millstream.pipeline.task import Report, SourceSettings, batch_name
from millstream.spark.logs import Logs


class KeyedQuery(TableQuery):
    """Fills a table with keys: tasks write rows and tombstones, the driver makes changes of them."""

    def open(self, spark: SparkSession, logs: Logs) -> None:
        self._key = key_of(self._sink) or open_table(self._sink, self._given.directory).key
        super().open(spark, logs)
        self._reader = ChangeReader(self._pipeline.source, self._written, self._key)

    def _table_sink(self, table: Table, letters: Table | None) -> TableSink:
        self._keyed = keyed_sink(
            self._pipeline.pipeline,
            self._sink,
            self._given.directory,
            table,
            letters,
            self.name,
            replay=self._given.replay,
        )
        return self._keyed

    def _open_table(self, schema: Any) -> Any:
        require_mergeable(self._frame, schema, self._key, query_path(self._pipeline, self._given.index))
        self._written = self._table.open(schema)
        return ChangeReader.row_schema(self._written, self._key)

    def _place_files(self, settings: SourceSettings) -> SourceSettings:
        location = Location(self._state.directory) / "changes"
        location.remove()
        location.make()
        self._place = place = location.address
        own = msgspec.structs.replace(settings, tombstones=place)
        return msgspec.structs.replace(own, table=place, key=self._key) if self._direct else own

    def _begin_at(self, logs: Logs, last: CommitRecord | None) -> dict[str, str]:
        options = super()._begin_at(logs, last)
        return {**options, "maxBytesPerTrigger": str(batch_bytes(self._pipeline, self._sink))}

    def _filled(self, batch: Batch, result: Result, reports: Sequence[Report]) -> Batch:
        files = result.files
        batch = super()._filled(batch, Result((), result.letters), reports)
        generations = self._keyed.generations(batch.offsets)
        rows = self._staged(files, self._schema)
        tombstones = self._staged([file for report in reports for file in report.tombstones], DEAD_LETTER_SCHEMA)
        read = self._reader.read(rows, tombstones, generations, lambda wanted: raw_records(self._pipeline, wanted))
        batch = msgspec.structs.replace(
            batch,
            rejected=batch.rejected + read.letters.num_rows,
            dead_letters=(*batch.dead_letters, *self._write_letters(read.letters, batch.number)),
            rows=read.changes.rows.num_rows,
            bytes=sum(file.bytes for file in files),
            generations=generations,
        )
        return self._keyed.filled(batch, read.changes, f"part-{batch_name(self._given.run_id, batch.number)}")

    def _staged(self, files: Sequence[WrittenFile], schema: Any) -> Any:
        """What tasks have written beside the checkpoint."""
        if not files:
            return pa.Table.from_batches([], schema)  # ``empty_table`` cannot have UUIDs
        return pq.read_table([f"{self._place}/{file.path}" for file in files], schema=schema)

    def _clear(self, number: int) -> None:
        super()._clear(number)
        location = Location(self._place)
        for name in location.files(".parquet"):
            location.remove_file(name)


def keyed_sink(
    pipeline: str, sink: Sink, directory: str, table: Table, letters: Table | None, name: str, *, replay: bool = False
) -> KeyedSink:
    """What commits the batches of a table with keys; ``name`` is the writer's."""

    def deletes(key: tuple[str, ...]) -> Table:
        return open_table(sink, directory, suffix=DELETES_SUFFIX, key=key)

    if sink.mode == "changelog":
        made = ChangelogSink(table, letters, pipeline=pipeline, sink=name, compact=sink.compact, replay=replay)
        made.key = key_of(sink) or table.key
        return made
    return MergingSink(
        table, letters, deletes,
        pipeline=pipeline, sink=name, keep_s=seconds(sink.keep_deletes), compact=sink.compact, replay=replay,
    )  # fmt: skip
