"""A sink that is a table: tasks write Parquet files, the driver commits them, each batch once.

Without a query between topic and table the source's own tasks write the files, and rows never enter the JVM; with one,
the tasks at the query's end do.
"""

import logging
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import FILE_COLUMNS, FileWriter, WrittenFile, files_batch, written
from millstream.pipeline.layout import conform
from millstream.pipeline.locations import Location
from millstream.pipeline.query import arrow_schema, require_single_rows, result_of, share_of, source_schema, stream
from millstream.pipeline.sink_query import BatchDone, SinkQuery
from millstream.pipeline.source import FILES_FORMAT, ROWS_FORMAT
from millstream.pipeline.source import source_options as format_options
from millstream.pipeline.start import check_checkpoint, decode_offsets, encode_offsets
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, open_table
from millstream.pipeline.task import batch_name, clear_reports, read_reports
from millstream.pipeline.wire_schemas import fitted
from millstream.spark.logs import Logs

_LOG: Final = logging.getLogger("millstream.pipeline")


class TableQuery(SinkQuery):
    """Fills a table: tasks write files, the driver commits them."""

    def open(self, spark: SparkSession, logs: Logs) -> None:
        pipeline, sink = self._pipeline, self._sink
        keeps = pipeline.errors.mode == "dead_letter"
        table = open_table(sink, self._directory)
        letters = open_table(sink, self._directory, suffix=DEAD_LETTERS_SUFFIX) if keeps else None
        self._table = TableSink(
            table, letters, pipeline=pipeline.pipeline, sink=self.name, compact=sink.compact, replay=self.replay
        )
        self._table.cluster = logs.cluster.metadata([]).cluster_id or ""
        self._recall()
        letters_schema = self._table.open_dead_letters()
        letters_address = letters.location.address if letters is not None else None
        self._direct = pipeline.transform is None and sink.sql is None
        if self._direct:
            pipeline = self._pipeline = fitted(pipeline, table.columns())
            self._schema = self._table.open(source_schema(pipeline))
        written_here = table.location.address if self._direct else None
        self._settings = self._source_settings(letters_address, written_here, letters_schema)
        clear_reports(self._settings)
        self._take_hand_over()
        options = self._begin_at(logs, self._table.last)
        self._table.begin = encode_offsets(self._until if self._until is not None else self._starts)
        if self._direct:
            self._frame = stream(spark, FILES_FORMAT, format_options(self._settings, self._schema, options))
        else:
            source = stream(spark, ROWS_FORMAT, format_options(self._settings, None, options))
            result = result_of(spark, pipeline, source, self._directory)
            self._frame = share_of(spark, result, sink, self._index)
            if self._until is not None:
                require_single_rows(self._frame, "backfilled")
            self._schema = self._table.open(arrow_schema(self._frame))
        self.version = table.version()

    def _take_hand_over(self) -> None:
        """Begin where a backfill ends that was there before the first run. Another backfill may decide meanwhile."""
        if self._until is None and self._table.last is None and self._state.start() is None:
            backfill = self._table.table.last(f"{self._pipeline.pipeline}.{self.name}~backfill")
            if backfill is not None:
                self._state.pin_start(decode_offsets(backfill.begin))

    def _recall(self) -> None:
        """Claim the table, and learn from it how far this sink has come and whether its checkpoint fits."""
        last = self._table.take()
        lost = self._table.lost
        if lost is not None:
            _LOG.warning("%s: the table was set back; what it lost is read again", self.name)
            self._state.forget()
            if last is None and lost.begin:
                self._state.pin_start(decode_offsets(lost.begin))
        elif not check_checkpoint(self._state, last, self.target, replay=self.replay):
            _LOG.warning("%s: the checkpoint here is not that of the table's last batch; the table counts", self.name)
            self._state.forget()
        if last is not None:
            self.total_rows, self.total_rejected = last.total_rows, last.total_rejected
            self.total_bytes = last.total_bytes

    def _process(self, frame: DataFrame, number: int, query: str) -> BatchDone:
        table = self._table
        files: tuple[WrittenFile, ...] = ()
        rejected, letters = 0, ()
        if not table.holds(query, number):
            files = self._write(frame, number)
            reports = read_reports(self._settings, number)
            self._note_origins(reports)
            rejected = sum(report.rejected for report in reports)
            letters = tuple(file for report in reports for file in report.dead_letters)
        offsets = msgspec.json.encode(self._state.offsets(number)).decode()
        outcome = table.commit(
            Batch(query=query, number=number, offsets=offsets, files=files, rejected=rejected, dead_letters=letters)
        )
        clear_reports(self._settings, number)
        record = outcome.record
        self.total_rows, self.total_rejected = record.total_rows, record.total_rejected
        self.total_bytes = record.total_bytes
        if not outcome.repeated:
            self.bytes += record.bytes
        return BatchDone(
            number=number,
            read=0,
            rows=0 if outcome.repeated else record.rows,
            rejected=0 if outcome.repeated else record.rejected,
            seconds=0,
            repeated=outcome.repeated,
            version=outcome.version,
        )

    def _write(self, frame: DataFrame, number: int) -> tuple[WrittenFile, ...]:
        if not self._direct:
            stem = f"part-{batch_name(self._run_id, number)}"
            frame = rows_writer(frame, self._table.table.location.address, stem, self._schema)
        return written(frame.collect())


def rows_writer(frame: DataFrame, address: str, stem: str, schema: Any) -> DataFrame:
    """A frame with a row for each file that the tasks of ``frame`` have written to ``address`` when it is collected."""

    def write(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        writer = FileWriter(Location(address), f"{stem}-{context.partitionId() if context else 0}", schema)
        for batch in batches:
            writer.write(conform(batch, schema))
        yield files_batch(writer.close())

    return frame.mapInArrow(write, FILE_COLUMNS)
