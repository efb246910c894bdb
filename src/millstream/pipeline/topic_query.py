"""A sink that is a topic: rows as JSON records, exactly once.

The rows of a batch, and then its dead letters, are a write of the Spark sink each: named by the checkpoint's query,
numbered by the batch. A batch that is repeated after a crash runs its tasks again, which report what they count and
keep, and writes only what is missing. Dead letters go to ``errors.topic``, as they were, with the reason and their
origin in headers. With ``delivery: at-least-once`` a repeated batch is written again. ``topic_guard`` keeps runs with
other state directories away.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark program gives them)

from millstream.errors import MillstreamError, Rejected
from millstream.pipeline.checks import METADATA_NAMES, key_of
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.locations import Location
from millstream.pipeline.model import Sink
from millstream.pipeline.query import result_of, share_of, stream
from millstream.pipeline.query_names import QueryProblem
from millstream.pipeline.query_plan import require_repeatable
from millstream.pipeline.reach import is_compacted
from millstream.pipeline.sink_figures import BatchDone
from millstream.pipeline.sink_query import SinkQuery
from millstream.pipeline.source import ROWS_FORMAT, TOPIC_FORMAT
from millstream.pipeline.source import source_options as format_options
from millstream.pipeline.start import open_logs
from millstream.pipeline.task import clear_reports, read_reports
from millstream.pipeline.topic_guard import topic_guard
from millstream.spark.exactly_once import last_write
from millstream.spark.logs import Logs
from millstream.spark.topic_error import topic_error

_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How values are written: Spark's own form of a timestamp ends at milliseconds."""
_HEADERS: Final = ("topic", "partition", "offset", "error", "column")


class TopicQuery(SinkQuery):
    """Writes rows to a topic."""

    def open(self, spark: SparkSession, logs: Logs) -> None:
        topic = self._sink.topic
        assert topic is not None, "a topic sink names a topic"
        for name in (topic, self._pipeline.errors.topic):
            if name is not None:
                require_topic(logs, name)
        self._spark = spark
        location = Location(self._state.directory)
        letters = location / "dead_letters" if self._pipeline.errors.topic is not None else None
        if letters is not None:
            letters.make()
        self._letters = letters
        self._settings = self._source_settings(letters.address if letters else None, None)
        clear_reports(self._settings)
        options = self._begin_at(logs, None)
        before = self._state.progress()
        if before is not None:
            self.figures.set_totals(before.rows, before.rejected, before.bytes)
        source = stream(spark, ROWS_FORMAT, format_options(self._settings, None, options))
        frame = share_of(
            spark, result_of(spark, self._pipeline, source, self._given.directory), self._sink, self._given.index
        )
        self._frame = records_of(frame, self._sink, self._given.index)
        if "key" not in self._frame.columns:
            self._require_uncompacted(topic)
        self._guard = topic_guard(self._pipeline, self._sink, self._state)
        if self._guard is not None:
            self._require_checkpoint(logs)
            self._guard.claim(logs.cluster, replay=self._given.replay)  # last: what is wrong above claims nothing

    def _require_checkpoint(self, logs: Logs) -> None:
        """Refuse a checkpoint that ends before the last batch that the topic has: Spark would give that batch's number
        to other records, which would then be taken for written.

        Raises:
            Rejected: it was set back.
        """
        query = self._state.query_id()
        if query is None or self._given.replay:
            return
        last = last_write(logs.cluster, self._write_name(query))
        if last is not None and not self._state.has_offsets(last):
            raise Rejected(
                f"{self.name}: the topic has batch {last}, and the checkpoint {self._state.checkpoint} ends before it: "
                "it was set back. Restore the newer one; 'millstream pipeline run --replay' writes every row again"
            )

    def _write_name(self, query: str) -> str:
        return f"{self._pipeline.pipeline}.{self.name}.{query}"

    def _require_uncompacted(self, topic: str) -> None:
        """Refuse records without a key for a topic that keeps the last record of each key.

        Raises:
            QueryProblem: the topic is one. Brokers that do not say so take the records or refuse them.
        """
        compacted = False
        with contextlib.suppress(MillstreamError):
            compacted = is_compacted(self._pipeline, topic)
        if compacted:
            message = f"topic {topic} is compacted, so its records need a key: name a column with key:"
            raise QueryProblem(message, ("sinks", self._given.index, "topic"))

    def _process(self, frame: DataFrame, number: int, query: str) -> BatchDone:
        name = self._write_name(query)
        if self._guard is not None:
            with contextlib.closing(open_logs(self._pipeline)) as logs:
                self._guard.require(logs.cluster)
        counted = Observation()
        rows = frame.observe(counted, F.count(F.lit(1)).alias("rows"), F.sum(F.length("value")).alias("bytes"))
        write_topic(rows, self._options(self._sink.topic, name, number))
        reports = read_reports(self._settings, number)
        self._note_origins(reports)
        rejected = sum(report.rejected for report in reports)
        letters = [file for report in reports for file in report.dead_letters]
        if letters and self._letters is not None:
            options = self._options(self._pipeline.errors.topic, f"{name}.letters", number)
            send_dead_letters(self._spark, options, self._letters, letters)
            for file in letters:
                os.remove(f"{self._letters.address}/{file.path}")
        clear_reports(self._settings, number)
        found = counted.get
        count, size = int(found["rows"]), int(found["bytes"] or 0)
        figures = self.figures
        figures.set_totals(figures.total_rows + count, figures.total_rejected + rejected, figures.total_bytes + size)
        figures.bytes += size
        return BatchDone(
            number=number, read=0, rows=count, rejected=rejected, seconds=0, repeated=False, version=self._delivery
        )

    @property
    def _delivery(self) -> str:
        return self._sink.delivery or "exactly-once"

    def _options(self, topic: str | None, name: str, number: int) -> dict[str, str]:
        """Options of one write of a batch."""
        options = self._pipeline.reach | {"topic": str(topic), "delivery": self._delivery}
        if self._delivery == "exactly-once":
            options |= {"write.id": name, "write.number": str(number)}
        return options


def require_topic(logs: Logs, name: str) -> None:
    """Refuse to write to a topic that does not exist.

    Raises:
        Rejected: it does not.
    """
    code = logs.cluster.metadata([name]).topics[name].error_code
    if code:
        raise topic_error(name, code)


def records_of(frame: DataFrame, sink: Sink, index: int) -> DataFrame:
    """Rows as records: the columns as a JSON object, without those of the pipeline itself, and a key.

    Raises:
        QueryProblem: the key is no column of the result, or the query gives other rows when it is repeated.
        Rejected: no column is left.
    """
    key = next(iter(key_of(sink)), None)
    if sink.delivery != "at-least-once":
        require_repeatable(frame, ("sinks", index, "topic"))
    if key is not None and key not in frame.columns:
        message = f"the result has no column {key}; its columns are {', '.join(frame.columns)}"
        raise QueryProblem(message, ("sinks", index, "key"))
    names = [name for name in frame.columns if name not in METADATA_NAMES]
    if not names:
        raise Rejected("the result has no column that could be written to a topic")
    value = F.to_json(F.struct(*(F.col(quoted(name)) for name in names)), _JSON).cast("binary").alias("value")
    if key is not None:
        return frame.select(F.col(quoted(key)).cast("string").cast("binary").alias("key"), value)
    if "_key" in frame.columns:
        return frame.select(F.col("_key").alias("key"), value)
    return frame.select(value)


def quoted(name: str) -> str:
    """A column's name as Spark's SQL has it."""
    doubled = name.replace("`", "``")
    return f"`{doubled}`"


def write_topic(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Store rows in a topic; returns when all are committed."""
    rows.write.format(TOPIC_FORMAT).mode("append").options(**options).save()


def send_dead_letters(
    spark: SparkSession, options: Mapping[str, str], location: Location, files: Sequence[WrittenFile]
) -> None:
    """Write dead letters to their topic: key and value as they were, the rest in headers."""
    table: Any = pq.read_table([f"{location.address}/{file.path}" for file in files])
    frame = spark.createDataFrame(table).coalesce(1)  # one task, and so one transaction, in any order of the files
    headers = F.array(
        *(
            F.struct(F.lit(f"millstream.{name}").alias("key"), F.col(name).cast("string").cast("binary").alias("value"))
            for name in _HEADERS
        )
    )
    write_topic(frame.select("key", "value", headers.alias("headers")), options)
