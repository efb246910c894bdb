"""Dead letters once more: after a schema or a query was mended, their records become rows.

::

    dead-letter table ──decode──► rows ──transform──► files ──► commit in the table ──► removal of the dead letters
                          └ still wrong: stays a dead letter

Each record ends up in one place: as rows of the table, or as a dead letter. ``letters`` says what a crash between the
two commits does. The pipeline's lock is held, so no run is active. A query that puts records together
(aggregation, deduplication, a window) has no row that belongs to one record, and such a pipeline is refused. So are
plain Parquet directories, from which no row can be removed, and topics, whose dead letters are another topic's records.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.errors import Rejected
from millstream.pipeline.change_reader import ChangeReader
from millstream.pipeline.checks import decoder_of, key_of, kind_of, sink_name, topics_of
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.dead_letters import (
    REPLAY_QUERY,
    encode_record_offsets,
    finish_replay,
    next_number,
    remove_dead_letters,
    unseen,
)
from millstream.pipeline.failing_records import Span, failing_records, failure_of
from millstream.pipeline.fitted_rows import rows_that_fit
from millstream.pipeline.inference import inferred
from millstream.pipeline.keyed_query import keyed_sink
from millstream.pipeline.keyed_sink import KeyedSink
from millstream.pipeline.locations import Location, state_directory
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.query import arrow_schema, make_side_tables, result_of, share_of
from millstream.pipeline.query_plan import origins_of, require_single_rows
from millstream.pipeline.reach import require_topics
from millstream.pipeline.result_rows import Target, write_result
from millstream.pipeline.row_letters import PLACE, Origins, letters_of
from millstream.pipeline.rows import METADATA, row_schema
from millstream.pipeline.session import pipeline_session
from millstream.pipeline.sink_query import NoWatch, Watch
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.guard import REPLAY_SUFFIX
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
    _require_own_letters([sink for _, sink in sinks], directory)
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


def _require_own_letters(sinks: Sequence[Sink], directory: str) -> None:
    """Refuse sinks that share a table: each would bring the dead letters of all, and take them from the others.

    Raises:
        Rejected: two of them do.
    """
    before: dict[tuple[str, str], str] = {}
    for sink in sinks:
        target, name = shown_target(sink, directory), sink_name(sink)
        other = before.setdefault((kind_of(sink), target), name)
        if other != name:
            raise Rejected(
                f"the sinks {other} and {name} both write to {target}, and its dead letters do not say which sink each "
                "is of: give each sink a table of its own"
            )


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
        self._reader: ChangeReader | None = None
        self._schema: Any = None
        self._staging = Location(state_directory(pipeline, directory)) / "unfit"

    def _table_sink(self, table: Table, letters: Table | None, name: str) -> TableSink:
        if self._sink.mode != "append":
            return keyed_sink(self._pipeline.pipeline, self._sink, self._directory, table, letters, name)
        return TableSink(table, letters, pipeline=self._pipeline.pipeline, sink=name, compact=False)

    def run(self) -> Replayed:
        name = sink_name(self._sink)
        table = open_table(self._sink, self._directory)
        letters = open_table(self._sink, self._directory, suffix=DEAD_LETTERS_SUFFIX)
        schema = arrow_schema(self._result(self._rows.empty_table()))
        self._staging.remove()
        self._staging.make()
        self._table_sink(table, letters, name).open(schema)  # finishes what was started
        sink = self._table_sink(table, None, name + REPLAY_SUFFIX)
        schema = self._schema = sink.open(schema)
        # Another host's replay may have added rows since, and adds no more from now on.
        finish_replay(table, letters, f"{self._pipeline.pipeline}.{name}", time.sleep)
        if isinstance(sink, KeyedSink):
            self._reader = ChangeReader(self._pipeline.source, schema, key_of(self._sink) or table.key)
        seen = replayed = rows = 0
        reasons: dict[str, int] = {}
        for chunk in _chunks(letters, topics_of(self._pipeline.source)):
            seen += chunk.num_rows
            tombstones = chunk.slice(0, 0)
            if self._reader is not None:
                without = chunk.column("value").is_null()
                tombstones, chunk = chunk.filter(without), chunk.filter(chunk.column("value").is_valid())
            decoded = self._decoder.decode(chunk.column("value").combine_chunks().cast(pa.binary()))
            for reason in decoded.errors.drop_null().to_pylist():
                reasons[reason] = reasons.get(reason, 0) + 1
            good = decoded.errors.is_null()
            chunk = chunk.filter(good)
            if not chunk.num_rows + tombstones.num_rows:
                continue
            columns = [*decoded.columns.filter(good).flatten(), *(chunk.column(name) for _, name, _ in METADATA)]
            source = pa.table(columns, names=self._rows.names).cast(self._rows)
            source, chunk = self._without_failing(source, chunk, reasons)
            if not chunk.num_rows + tombstones.num_rows:
                continue
            if isinstance(sink, KeyedSink):
                done = self._merge(sink, letters, source, pa.concat_tables([chunk, tombstones]), reasons)
                rows, replayed = rows + done, replayed + done
                continue
            added, done = self._commit(sink, letters, source, chunk, reasons)
            rows, replayed = rows + added, replayed + done
        return Replayed(
            sink=name, target=shown_target(self._sink, self._directory),
            letters=seen, replayed=replayed, rows=rows, reasons=reasons,
        )  # fmt: skip

    def _without_failing(self, source: Any, chunk: Any, reasons: dict[str, int]) -> tuple[Any, Any]:
        """Decoded records and their dead letters without those on which the query fails, which ``reasons`` counts."""

        def why(part: Sequence[Span]) -> str | None:
            rows = pa.concat_tables([source.slice(span.start, span.end - span.start) for span in part])
            return failure_of(lambda: self._result(rows))

        whole = [Span("", 0, 0, source.num_rows)]
        if not source.num_rows or why(whole) is None:
            return source, chunk
        found = failing_records(whole, why)
        for reason in found.values():
            reasons[reason] = reasons.get(reason, 0) + 1
        failing = {span.start for span in found}
        kept = pa.array([row not in failing for row in range(source.num_rows)], pa.bool_())
        return source.filter(kept), chunk.filter(kept)

    def _result(self, source: Any) -> DataFrame:
        """What the query makes of decoded records.

        Raises:
            Rejected: it puts records together.
        """
        frame = self._spark.createDataFrame(source)
        result = result_of(self._spark, self._pipeline, frame, self._directory)
        return require_single_rows(share_of(self._spark, result, self._sink, self._index), "replayed")

    def _commit(
        self, sink: TableSink, letters: Table, source: Any, chunk: Any, reasons: dict[str, int]
    ) -> tuple[int, int]:
        """Add the rows and remove the dead letters, but for those that do not fit the table; returns the number of rows
        and of dead letters.

        Args:
            sink: of the table.
            letters: the table of dead letters.
            source: the decoded records.
            chunk: their dead letters.
            reasons: counts those that do not fit.

        Raises:
            Rejected: a row does not fit, and does not say which record it is of.
        """
        number = next_number(letters, sink.owner, sink.last)
        frame = self._result(source)
        stem = f"replay-{batch_name(self._run_id, number)}"
        target = Target(sink.table.location.address, self._staging.address, stem, self._schema)
        result = write_result(frame, target, origins_of(frame))
        chunk = _without(chunk, result.letters.to_pylist(), reasons)
        if not chunk.num_rows:
            return 0, 0
        offsets = encode_record_offsets(_record_offsets(chunk))
        record = sink.commit(Batch(query=REPLAY_QUERY, number=number, offsets=offsets, files=result.files)).record
        remove_dead_letters(letters, record, time.sleep)
        return record.rows, chunk.num_rows

    def _merge(self, sink: KeyedSink, letters: Table, source: Any, chunk: Any, reasons: dict[str, int]) -> int:
        """Add rows and tombstones and remove their dead letters; returns the number of records.

        Args:
            sink: of the table.
            letters: the table of dead letters.
            source: the decoded records of those with a value.
            chunk: the dead letters of both.
            reasons: counts those that have no key or do not fit.
        """
        assert self._reader is not None, "a table with keys has a reader of changes"
        rows, read_key = self._result(source).toArrow(), self._reader.key
        wanted = ChangeReader.row_schema(sink.table.columns(), read_key)
        fitting: list[Any] = []
        unfit: list[Any] = []
        for batch in rows.to_batches():
            found, faults = rows_that_fit(batch, wanted)
            fitting.append(found)
            unfit += letters_of(batch, faults, Origins(named=True, single_rows=False)).to_pylist() if faults else []
        rows = pa.Table.from_batches(fitting, wanted)
        rows = rows.filter(_elsewhere(rows, [f"_{name}" for name in PLACE], unfit))
        chunk = _without(chunk, unfit, reasons)
        tombstones = chunk.filter(chunk.column("value").is_null())
        generations = sink.generations()
        read = self._reader.read(rows, tombstones, generations, lambda _: {})
        chunk = _without(chunk, read.letters.to_pylist(), reasons)
        if not chunk.num_rows:
            return 0
        number = next_number(letters, sink.owner, sink.last)
        batch = Batch(
            query=REPLAY_QUERY, number=number, offsets=encode_record_offsets(_record_offsets(chunk)),
            rows=read.changes.rows.num_rows, generations=generations,
        )  # fmt: skip
        batch = sink.filled(batch, read.changes, f"replay-{batch_name(self._run_id, number)}")
        remove_dead_letters(letters, sink.commit(batch).record, time.sleep)
        return chunk.num_rows


def _without(chunk: Any, unfit: Sequence[Mapping[str, Any]], reasons: dict[str, int]) -> Any:
    """Dead letters but those that are still unfit, which ``reasons`` counts.

    Raises:
        Rejected: a row is unfit, and does not say which record it is of.
    """
    for letter in unfit:
        if letter["topic"] is None:
            raise Rejected(
                f"{letter['error']}; the query does not pass on _topic, _partition and _offset, so the row names no "
                "dead letter: add them to the query"
            )
        reasons[letter["error"]] = reasons.get(letter["error"], 0) + 1
    return chunk.filter(_elsewhere(chunk, PLACE, unfit))


def _elsewhere(rows: Any, columns: Sequence[str], letters: Sequence[Mapping[str, Any]]) -> Any:
    """Whether each row is of another record than these dead letters, as a boolean array."""
    gone = {tuple(letter[name] for name in PLACE) for letter in letters}
    places = zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
    return pa.array([place not in gone for place in places], pa.bool_())


def _chunks(letters: Table, topics: Sequence[str]) -> Iterator[Any]:
    """The dead letters of these topics, each once, as tables of at most ``_LETTERS`` rows."""
    is_in: Any = getattr(pc, "is_in")  # noqa: B009 (made at run time)
    wanted = pa.array(topics, pa.string())
    held: list[Any] = []
    seen: set[int] = set()
    for batch in letters.scan():
        table = pa.Table.from_batches([batch])
        topic = table.column("topic").cast(pa.string())
        table = table.filter(is_in(topic, wanted))
        held.append(unseen(table, seen))
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
    columns = (letters.column(name).to_pylist() for name in PLACE)
    for topic, partition, offset in zip(*columns, strict=True):
        found.setdefault(topic, {}).setdefault(partition, []).append(offset)
    return found
