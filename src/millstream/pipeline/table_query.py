"""A sink that is a table: tasks write Parquet files, the driver commits them, each batch once.

Without a query between topic and table the source's own tasks write the files, and rows never enter the JVM; with one,
the tasks at the query's end do (``result_rows``).
"""

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from millstream.errors import Rejected, Unavailable
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.failing_records import Order, Span, failing_records, failure_of, give_order, is_of_data
from millstream.pipeline.files import FileWriter, WrittenFile, written
from millstream.pipeline.layout import conform
from millstream.pipeline.locations import Location
from millstream.pipeline.query import arrow_schema, result_of, share_of, source_schema, stream
from millstream.pipeline.query_plan import origins_of, puts_together, require_single_rows
from millstream.pipeline.raw_records import raw_records
from millstream.pipeline.result_rows import Result, Target, write_result
from millstream.pipeline.row_letters import with_records
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.sink_figures import BatchDone
from millstream.pipeline.sink_query import SinkQuery
from millstream.pipeline.source import FILES_FORMAT, ROWS_FORMAT
from millstream.pipeline.source import source_options as format_options
from millstream.pipeline.start import begin_of, check_checkpoint, decode_offsets, encode_offsets
from millstream.pipeline.tables.guard import held_of, topic_ids_of
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, open_table
from millstream.pipeline.tables.table import Table
from millstream.pipeline.task import Report, SourceSettings, batch_name, clear_reports, read_reports
from millstream.pipeline.wire_schemas import fitted, registry_mark, require_same_registry
from millstream.spark.logs import Logs

_LOG: Final = logging.getLogger("millstream.pipeline")


class TableQuery(SinkQuery):
    """Fills a table: tasks write files, the driver commits them."""

    def open(self, spark: SparkSession, logs: Logs) -> None:
        pipeline, sink = self._pipeline, self._sink
        keeps = pipeline.errors.mode == "dead_letter"
        table = open_table(sink, self._given.directory)
        letters = open_table(sink, self._given.directory, suffix=DEAD_LETTERS_SUFFIX) if keeps else None
        self._table = self._table_sink(table, letters)
        if sink.upkeep is not None:
            self._table.upkeep.expire(sink.upkeep)
        self._table.reads.cluster = logs.cluster.metadata([]).cluster_id or ""
        self._recall()
        letters_schema = self._table.open_dead_letters()
        if self._given.replay and self._given.bounds is None:
            self._table.give_back()
        letters_address = letters.location.address if letters is not None else None
        self._direct = pipeline.transform is None and sink.sql is None
        if self._direct:
            pipeline = self._pipeline = fitted(pipeline, table.columns())
            self._schema = self._open_table(source_schema(pipeline))
        settings = self._source_settings(letters_address, None, letters_schema)
        clear_reports(settings)
        self._settings = self._place_files(settings)
        self._unfit = Location(self._state.directory) / "unfit"
        self._unfit.remove()
        self._take_hand_over()
        options = self._begin_at(logs, self._table.last)
        bounds = self._given.bounds
        begin = (
            begin_of(self._table.last, self.position.starts, logs)
            if bounds is None
            else encode_offsets(bounds.hand_over)
        )
        self._table.reads.begin = begin
        if self._direct:
            self._frame = stream(spark, FILES_FORMAT, format_options(self._settings, self._schema, options))
        else:
            source = stream(spark, ROWS_FORMAT, format_options(self._settings, None, options))
            result = result_of(spark, pipeline, source, self._given.directory)
            self._frame = share_of(spark, result, sink, self._given.index)
            if bounds is not None:
                require_single_rows(self._frame, "backfilled")
            self._schema = self._open_table(arrow_schema(self._frame))
            self._origins = origins_of(self._frame)
            self._isolates = pipeline.errors.mode == "dead_letter" and not puts_together(self._frame)
            self._unfit.make()
        self.figures.version = table.version()

    def _table_sink(self, table: Table, letters: Table | None) -> TableSink:
        """What commits the batches."""
        return TableSink(
            table, letters,
            pipeline=self._pipeline.pipeline, sink=self.name, compact=self._sink.compact, replay=self._given.replay,
        )  # fmt: skip

    def _open_table(self, schema: Any) -> Any:
        """Make or widen the tables for rows of a schema; returns the schema of the files that tasks write."""
        written = self._table.open(schema)
        self._place = self._table.table.location.address
        return written

    def _place_files(self, settings: SourceSettings) -> SourceSettings:
        """Decide where tasks write files; returns the settings of their source."""
        return msgspec.structs.replace(settings, table=self._place) if self._direct else settings

    def _take_hand_over(self) -> None:
        """Start where a backfill ends that was there before the first run. Another one may decide at the same time."""
        if self._given.bounds is None and self._table.last is None and self._state.start() is None:
            backfill = self._table.table.last(f"{self._pipeline.pipeline}.{self.name}~backfill")
            if backfill is not None:
                self._state.pin_start(decode_offsets(backfill.begin), topic_ids_of(backfill))

    def _recall(self) -> None:
        """Claim the table, and learn from it how far this sink has come and whether its checkpoint fits."""
        last = self._table.take()
        if self._given.bounds is not None and held_of(last) != self._given.bounds.done:
            raise Unavailable(f"{self.name}: another backfill has read since; the same command reads what is left")
        lost = self._table.lost
        self._table.reads.registry = registry_mark(self._pipeline.source)
        if last is not None and not self._given.replay:
            require_same_registry(self._pipeline.source, last.registry, self.name)
        if lost is not None:
            _LOG.warning("%s: the table was set back; what it lost is read again", self.name)
            self._state.forget()
            if last is None and lost.begin:
                self._state.pin_start(decode_offsets(lost.begin), topic_ids_of(lost))
        elif not check_checkpoint(self._state, last, self.target, replay=self._given.replay):
            _LOG.warning("%s: the checkpoint here is not that of the table's last batch; the table counts", self.name)
            self._state.forget()
        if last is not None:
            self.figures.set_totals(last.total_rows, last.total_rejected, last.total_bytes)

    def _process(self, frame: DataFrame, number: int, query: str) -> BatchDone:
        table = self._table
        offsets = msgspec.json.encode(self._state.offsets(number)).decode()
        batch = Batch(query=query, number=number, offsets=offsets, ranges=self.position.held(self._ends_of(number)))
        if not table.holds(query, number):
            result = self._write(frame, number)
            reports = read_reports(self._settings, number)
            self._note_origins(reports)
            batch = self._filled(batch, result, reports)
        outcome = table.commit(batch)
        self._clear(number)
        record = outcome.record
        self.figures.set_totals(record.total_rows, record.total_rejected, record.total_bytes)
        if not outcome.repeated:
            self.figures.bytes += record.bytes
        return BatchDone(
            number=number,
            read=0,
            rows=0 if outcome.repeated else record.rows,
            rejected=0 if outcome.repeated else record.rejected,
            seconds=0,
            repeated=outcome.repeated,
            version=outcome.version,
        )

    def _filled(self, batch: Batch, result: Result, reports: Sequence[Report]) -> Batch:
        """The batch with what its tasks have written and reported."""
        letters = [file for report in reports for file in report.dead_letters]
        letters += self._write_letters(result.letters, batch.number)
        return msgspec.structs.replace(
            batch,
            files=result.files,
            rejected=sum(report.rejected for report in reports) + result.letters.num_rows,
            dead_letters=tuple(letters),
        )

    def _clear(self, number: int) -> None:
        """Remove what the tasks of a committed batch have left."""
        clear_reports(self._settings, number)

    def _write(self, frame: DataFrame, number: int) -> Result:
        if self._direct:
            return Result(written(frame.collect()), DEAD_LETTER_SCHEMA.empty_table())
        stem = f"part-{batch_name(self._given.run_id, number)}"
        target = Target(self._place, self._unfit.address, stem, self._schema)
        try:
            result = write_result(frame, target, self._origins)
        except Exception as error:
            if not (self._isolates and is_of_data(error)):
                raise
            self._isolate(frame, number)
            result = write_result(frame, target, self._origins)
        if self._table.dead_letters is None:
            return result
        letters = with_records(result.letters, lambda wanted: raw_records(self._pipeline, wanted))
        return Result(result.files, letters)

    def _isolate(self, frame: DataFrame, number: int) -> None:
        """Find the records of a batch on which the query fails, and let the tasks keep them as dead letters.

        Raises:
            Rejected: there are too many.
        """
        place = Location(self._settings.reports) / batch_name(self._given.run_id, number)

        def why(part: Sequence[Span]) -> str | None:
            give_order(place, Order(tuple(part)))
            return failure_of(lambda: frame)

        begun, order = time.monotonic(), Order(failing={})
        spans = [
            Span(topic, int(partition), self.position.ends.get(topic, {}).get(partition, 0), end)
            for topic, partitions in self._ends_of(number).items()
            for partition, end in partitions.items()
        ]
        try:
            found = failing_records(spans, why)
            for span, reason in found.items():
                order.failing.setdefault(span.topic, {}).setdefault(span.partition, {})[span.start] = reason
        finally:
            give_order(place, order)
        seconds, reasons = time.monotonic() - begun, "; ".join(sorted(set(found.values())))
        _LOG.warning("%s: the query fails on %d records, found in %.1f s: %s", self.name, len(found), seconds, reasons)

    def _write_letters(self, letters: Any, number: int) -> Sequence[WrittenFile]:
        """Keep dead letters that the driver has.

        Raises:
            Rejected: there are some, and the pipeline wants to fail.
        """
        if letters.num_rows and self._pipeline.errors.mode == "fail":
            raise Rejected(_sentence(letters.slice(0, 1).to_pylist()[0]))
        table, schema = self._table.dead_letters, self._table.letters_schema
        if table is None or not letters.num_rows:
            return ()
        stem = f"part-{batch_name(self._given.run_id, number)}-driver-{uuid.uuid4().hex[:6]}"
        writer = FileWriter(table.location, stem, schema)
        for part in letters.combine_chunks().to_batches():
            writer.write(conform(part, schema))
        return writer.close()


def _sentence(letter: Mapping[str, Any]) -> str:
    """Why a run ends at this dead letter."""
    at = "" if letter["topic"] is None else f"{letter['topic']}-{letter['partition']}, offset {letter['offset']}: "
    return f"{at}{letter['error']}; errors.mode dead_letter keeps such records apart and continues"
