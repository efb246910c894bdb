"""Dead letters once more: after a schema or a query was mended, their records become rows.

::

    dead-letter table ──decode──► rows ──transform──► files ──► commit in the table ──► removal of the dead letters
                          └ still wrong: stays a dead letter

Each record ends up in one place: as rows of the table, or as a dead letter. ``letters`` says what a crash between the
two commits does. The pipeline's lock is held, so no run goes on meanwhile. A query that puts records together
(aggregation, deduplication, a window) has no row that belongs to one record, and such a pipeline is refused. So are
plain Parquet directories, from which no row can be removed, and topics, whose dead letters are another topic's records.
"""

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.errors import Rejected
from millstream.pipeline.checks import decoder_of, kind_of, sink_name, topics_of
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.dead_letters import REPLAY_QUERY, REPLAY_SUFFIX, encode_record_offsets, remove_dead_letters
from millstream.pipeline.files import written
from millstream.pipeline.inference import inferred
from millstream.pipeline.locations import state_directory
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.query import arrow_schema, make_side_tables, require_single_rows, result_of, share_of
from millstream.pipeline.reach import require_topics
from millstream.pipeline.rows import METADATA, row_schema
from millstream.pipeline.session import pipeline_session
from millstream.pipeline.sink_query import NoWatch, Watch
from millstream.pipeline.state import PipelineState
from millstream.pipeline.table_query import rows_writer
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, open_table, shown_target
from millstream.pipeline.tables.table import RecordOffsets, Table
from millstream.pipeline.task import batch_name
from millstream.pipeline.wire_schemas import fitted, pinned, with_kept_columns

_LETTERS: Final = 2000
"""Dead letters of one commit. Their places are in its record, a few bytes each."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay did for one sink: dead letters that it read, those that became rows, the rows, and the
    reasons of the others with their number.
    """

    sink: str
    target: str
    letters: int
    replayed: int
    rows: int
    reasons: dict[str, int]


def replay(pipeline: Pipeline, directory: str = ".", *, watch: Watch | None = None) -> list[Replayed]:
    """Replay the dead letters of every Delta and Iceberg sink.

    Args:
        pipeline: the checked declaration, as it is now.
        directory: what relative paths in it are relative to.
        watch: follows the replay.

    Raises:
        Rejected: there is no such sink, the query puts records together, or its result does not fit a table.
        Unavailable: the pipeline runs; no Java; no broker for the tables to join with; a commit does not succeed.
        QueryProblem: Spark does not take the query.
    """
    watch = watch or NoWatch()
    directory = os.path.abspath(directory)
    sinks = [(index, sink) for index, sink in enumerate(pipeline.sinks) if kind_of(sink) in ("delta", "iceberg")]
    if not sinks:
        raise Rejected(
            f"pipeline {pipeline.pipeline} has no Delta or Iceberg sink, and only they have dead letters to replay"
        )
    state = PipelineState(state_directory(pipeline, directory))
    with state.running():
        if not any(_has_letters(sink, directory) for _, sink in sinks):
            return [_nothing(sink, directory) for _, sink in sinks]
        require_topics(pipeline, source=False, sinks=False)
        pipeline = pinned(with_kept_columns(inferred(pipeline, state, pin=True), state))
        watch.phase("starting Spark")
        spark = pipeline_session(pipeline)
        make_side_tables(spark, pipeline)
        done: list[Replayed] = []
        for index, sink in sinks:
            watch.phase(f"replaying the dead letters of {sink_name(sink)}")
            found = _has_letters(sink, directory)
            done.append(
                _SinkReplay(spark, pipeline, index, sink, directory).run() if found else _nothing(sink, directory)
            )
        return done


def _has_letters(sink: Sink, directory: str) -> bool:
    """Whether the table of dead letters, or a commit that has some for it, can be there: the sink's table is."""
    return open_table(sink, directory).exists() or open_table(sink, directory, suffix=DEAD_LETTERS_SUFFIX).exists()


def _nothing(sink: Sink, directory: str) -> Replayed:
    target = shown_target(sink, directory)
    return Replayed(sink=sink_name(sink), target=target, letters=0, replayed=0, rows=0, reasons={})


class _SinkReplay:
    """The replay of one sink."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, index: int, sink: Sink, directory: str) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._index = index
        self._sink = sink
        self._directory = directory
        if pipeline.transform is None and sink.sql is None:
            pipeline = self._pipeline = fitted(pipeline, open_table(sink, directory).columns())
        self._decoder = decoder_of(pipeline.source)
        self._rows = row_schema(self._decoder.fields)
        self._run_id = uuid.uuid4().hex[:8]

    def run(self) -> Replayed:
        name = sink_name(self._sink)
        table = open_table(self._sink, self._directory)
        letters = open_table(self._sink, self._directory, suffix=DEAD_LETTERS_SUFFIX)
        schema = arrow_schema(self._result(self._rows.empty_table()))
        TableSink(table, letters, pipeline=self._pipeline.pipeline, sink=name).open(schema)  # finishes what was begun
        sink = TableSink(table, None, pipeline=self._pipeline.pipeline, sink=name + REPLAY_SUFFIX, compact=False)
        schema = sink.open(schema)
        seen = replayed = rows = 0
        reasons: dict[str, int] = {}
        for chunk in _chunks(letters, topics_of(self._pipeline.source)):
            seen += chunk.num_rows
            decoded = self._decoder.decode(chunk.column("value").combine_chunks().cast(pa.binary()))
            for reason in decoded.errors.drop_null().to_pylist():
                reasons[reason] = reasons.get(reason, 0) + 1
            good = decoded.errors.is_null()
            chunk = chunk.filter(good)
            if not chunk.num_rows:
                continue
            columns = [*decoded.columns.filter(good).flatten(), *(chunk.column(name) for _, name, _ in METADATA)]
            source = pa.table(columns, names=self._rows.names).cast(self._rows)
            rows += self._commit(sink, letters, source, _record_offsets(chunk), schema)
            replayed += chunk.num_rows
        return Replayed(
            sink=name, target=shown_target(self._sink, self._directory),
            letters=seen, replayed=replayed, rows=rows, reasons=reasons,
        )  # fmt: skip

    def _result(self, source: Any) -> DataFrame:
        """What the query makes of decoded records.

        Raises:
            Rejected: it puts records together.
        """
        frame = self._spark.createDataFrame(source)
        result = result_of(self._spark, self._pipeline, frame, self._directory)
        return require_single_rows(share_of(self._spark, result, self._sink, self._index), "replayed")

    def _commit(self, sink: TableSink, letters: Table, source: Any, record_offsets: RecordOffsets, schema: Any) -> int:
        """Add the rows and remove the dead letters; returns the number of rows."""
        number = 0 if sink.last is None else sink.last.batch + 1
        stem = f"replay-{batch_name(self._run_id, number)}"
        frame = self._result(source)
        files = written(rows_writer(frame, sink.table.location.address, stem, schema).collect())
        batch = Batch(query=REPLAY_QUERY, number=number, offsets=encode_record_offsets(record_offsets), files=files)
        record = sink.commit(batch).record
        remove_dead_letters(letters, record, time.sleep)
        return record.rows


def _chunks(letters: Table, topics: Sequence[str]) -> Iterator[Any]:
    """The dead letters of these topics, as tables of at most ``_LETTERS`` rows."""
    is_in: Any = getattr(pc, "is_in")  # noqa: B009 (made at run time)
    wanted = pa.array(topics, pa.string())
    held: list[Any] = []
    for batch in letters.scan():
        table = pa.Table.from_batches([batch])
        topic = table.column("topic").cast(pa.string())
        held.append(table.filter(is_in(topic, wanted)))
        if sum(part.num_rows for part in held) >= _LETTERS:
            whole = pa.concat_tables(held)
            while whole.num_rows >= _LETTERS:
                yield whole.slice(0, _LETTERS)
                whole = whole.slice(_LETTERS)
            held = [whole]
    if sum(part.num_rows for part in held):
        yield pa.concat_tables(held)


def _record_offsets(letters: Any) -> RecordOffsets:
    found: RecordOffsets = {}
    columns = (letters.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    for topic, partition, offset in zip(*columns, strict=True):
        found.setdefault(topic, {}).setdefault(partition, []).append(offset)
    return found
