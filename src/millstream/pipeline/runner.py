"""Running a pipeline: one Spark query for each sink, watched until it ends.

::

    lock ► session ► for each sink: open table ► find start ► DataFrame ► query (all there is) ► query (every 10 s) ► …
                                                                             │
                                        each micro-batch: job ► reports ► commit ► progress

A sink catches up first, in batches as large as ``source.max_bytes``, one right after the other; then, unless the
pipeline ends there, the same checkpoint continues with the declared trigger. A crash at any point costs the work of the
batch it fell into: Spark repeats the batch with the same offsets, and the table knows whether it has it.

A stop is asked for by SIGTERM, SIGINT or ``Run.stop``: a batch that is being committed is finished, one that waits
does not start. A query that fails ends the run with its reason; other sinks are stopped and lose nothing. A query
that lost a Python worker is started again. So is one that met records of a newer schema: the batch was not committed,
the run takes the latest schema from the registry, widens the table, and repeats the batch. And so is one whose table
was changed by its owner: the batch is done again by the table's new rules, or the run ends and names the rule.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.checks import decoder_of, kind_of, problems_of, seconds, sink_name
from millstream.pipeline.inference import inferred
from millstream.pipeline.locations import state_directory
from millstream.pipeline.merging_sink import require_same_key
from millstream.pipeline.model import Pipeline
from millstream.pipeline.ranges import Bounds
from millstream.pipeline.reach import await_topics
from millstream.pipeline.rows import row_schema
from millstream.pipeline.sink_query import NoWatch, SinkFailed, SinkQuery, SinkRun, Watch
from millstream.pipeline.start import check_checkpoint, open_logs, require_same_source
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.guard import recorded, require_whole
from millstream.pipeline.tables.open_table import open_table, shown_target
from millstream.pipeline.topic_guard import topic_guard
from millstream.pipeline.wire_schemas import fitted, keep_columns, pinned, require_same_registry, with_kept_columns
from millstream.spark.logs import Logs
from millstream.spark.stats import ReadStats
from millstream.spark.workers import RESTARTS, restart_pause_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger("millstream.pipeline")
_POLL_S: Final = 0.2


class SinkSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did for one sink; ``total_*`` count since the sink's first batch, ``read`` counts the records that
    this run read, by origin.
    """

    sink: str
    target: str
    batches: int
    rows: int
    rejected: int
    bytes: int
    total_rows: int
    total_rejected: int
    version: str
    read: ReadStats
    offsets: Mapping[str, Mapping[str, int]]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did. ``stopped``: it was asked to end. ``notes`` say what a backfill did not read, and why."""

    pipeline: str
    seconds: float
    stopped: bool
    sinks: list[SinkSummary]
    notes: list[str] = []


def run(
    pipeline: Pipeline,
    directory: str = ".",
    *,
    once: bool | None = None,
    watch: Watch | None = None,
    replay: bool = False,
) -> Summary:
    """Run a pipeline until it has read everything (``available_now``, or ``once``) or is stopped.

    Args:
        pipeline: the declaration.
        directory: what relative paths in it are relative to.
        once: read what there is and end, or do not; None leaves it to the declaration.
        watch: follows the run.
        replay: read again what a table that was set back has lost, and topics that were made again. Otherwise both are
            refused.

    Raises:
        Rejected: the declaration is wrong, or does not fit a table; ``Missing``: a topic or a subject is not there.
        Unavailable: it runs already; no Java; no broker; a library is not installed.
        SinkFailed: a query failed.
    """
    with prepared(pipeline, directory, watch=watch, replay=replay) as running:
        return running.run(pipeline.trigger.available_now if once is None else once)


@contextmanager
def prepared(
    pipeline: Pipeline, directory: str, *, watch: Watch | None = None, replay: bool = False
) -> Generator["Run"]:
    """A run that holds the pipeline's lock and has its tables open; its queries have ended when the block ends."""
    found = problems_of(pipeline)
    if found:
        raise Rejected("; ".join(f"{'.'.join(map(str, problem.path))}: {problem.message}" for problem in found))
    directory = os.path.abspath(directory)
    state = PipelineState(state_directory(pipeline, directory))
    running = Run(pipeline, directory, state, watch or NoWatch(), replay=replay)
    with prepared_run(running, state):
        yield running


@contextmanager
def prepared_run(running: "Run", state: PipelineState) -> Generator[None]:
    """Hold the lock of a state directory while a run is open; raises what ``prepared`` raises."""
    with state.running(), running.serving():
        try:
            running.open()
            yield
        finally:
            running.close()


class Run:
    """One run of a pipeline: made, opened, run, closed. ``bounds`` says, by sink, what a backfill reads."""

    def __init__(
        self,
        pipeline: Pipeline,
        directory: str,
        state: PipelineState,
        watch: Watch,
        bounds: Mapping[str, Bounds] | None = None,
        *,
        replay: bool = False,
        session: "Callable[[Pipeline], SparkSession] | None" = None,
    ) -> None:
        """``session`` gives the Spark session; by default it is the process's own."""
        self.sinks: list[SinkQuery] = []
        self._session = session or _own_session
        self._pipeline = pipeline
        self._directory = directory
        self._state = state
        self._watch = watch
        self._bounds = bounds or {}
        self._replay = replay
        self._stopping = False

    @contextmanager
    def serving(self) -> Generator[None]:
        """Serve the declared metrics."""
        if self._pipeline.metrics is None:
            yield
            return
        from millstream.pipeline.metrics import served

        with served(self._pipeline.metrics, self._pipeline.pipeline, self.sinks) as url:
            self._watch.phase(f"metrics at {url}")
            yield

    def open(self) -> None:
        """Start Spark, open the tables, decide where each sink starts."""
        from millstream.pipeline.explain import inspect_results
        from millstream.pipeline.query import make_side_tables

        self._watch.phase(f"asking {self._pipeline.brokers} for the topics")
        await_topics(self._pipeline, self._watch.phase)
        self._pipeline = pinned(with_kept_columns(inferred(self._pipeline, self._state, pin=True), self._state))
        self._pipeline = keep_columns(self._pipeline, self._state)
        self._inspect_tables()
        logs = open_logs(self._pipeline)
        try:
            self._inspect_topics(logs)
            self._inspect_records(logs)
            self._watch.phase("starting Spark")
            spark = self._session(self._pipeline)
            self._watch.phase("opening tables")
            make_side_tables(spark, self._pipeline)
            inspect_results(spark, self._pipeline, self._directory)  # before a table is taken from another host's run
            run_id = uuid.uuid4().hex[:8]
            for index in range(len(self._pipeline.sinks)):
                self.sinks.append(self._opened(index, run_id, spark, logs))
        finally:
            logs.close()

    def _inspect_tables(self) -> None:
        """Refuse tables that exist and cannot be written to, before Spark takes its seconds to start.

        Raises:
            Rejected: a table has rules that are not kept, or columns that the rows do not fit.
        """
        for sink in self._pipeline.sinks:
            if kind_of(sink) != "topic":
                self._watch.phase(f"looking at {shown_target(sink, self._directory)}")
                table, schema = open_table(sink, self._directory), None
                if self._pipeline.transform is None and sink.sql is None:
                    declared = fitted(self._pipeline, table.columns())
                    schema = row_schema(decoder_of(declared.source).fields)
                table.inspect(schema)

    def _inspect_topics(self, logs: Logs) -> None:
        """Refuse topics that are written from another state directory, before a table is taken from a run there.

        Raises:
            Rejected: one is, and nothing is to be written again.
        """
        for sink in self._pipeline.sinks:
            if kind_of(sink) == "topic" and not self._replay:
                guard = topic_guard(self._pipeline, sink, self._state.sink(sink_name(sink)))
                if guard is not None:
                    guard.inspect(logs.cluster)

    def _inspect_records(self, logs: Logs) -> None:
        """Refuse what the tables' records do not fit, before a table is taken from a run on another host.

        Raises:
            Rejected: a table was set back, or has rows of another key, topic, cluster or registry.
            Unavailable: a registry does not answer.
        """
        source = self._pipeline.source
        for sink in self._pipeline.sinks:
            name, target = sink_name(sink), shown_target(sink, self._directory)
            table = None if kind_of(sink) == "topic" or self._replay else open_table(sink, self._directory)
            if table is None or not table.exists():
                continue
            owner = f"{self._pipeline.pipeline}.{name}"
            last = recorded(table, owner, replay=False).last
            require_whole(table, owner)
            check_checkpoint(self._state.sink(name), last, target)
            if last is None:
                continue
            require_same_registry(source, last.registry, name)
            if sink.mode == "upsert":
                require_same_key(table, last)
            require_same_source(last, logs)

    def _opened(self, index: int, run_id: str, spark: "SparkSession", logs: Logs) -> SinkQuery:
        from millstream.pipeline.keyed_query import KeyedQuery
        from millstream.pipeline.table_query import TableQuery
        from millstream.pipeline.topic_query import TopicQuery

        sink = self._pipeline.sinks[index]
        name = sink_name(sink)
        kind = TopicQuery if kind_of(sink) == "topic" else TableQuery if sink.mode == "append" else KeyedQuery
        given = SinkRun(
            pipeline=self._pipeline,
            index=index,
            directory=self._directory,
            state=self._state.sink(name),
            run_id=run_id,
            bounds=self._bounds.get(name),
            replay=self._replay,
        )
        made = kind(given, self._watch)
        made.open(spark, logs)
        return made

    def _reopened(self, sink: SinkQuery, failure: SinkFailed) -> SinkQuery:
        """The query that takes the place of one that met records of a newer schema, or a table that was changed.

        Raises:
            SinkFailed: ``failure``, because the registry has no newer schema.
            MillstreamError: as ``open``.
        """
        from millstream.pipeline.query import make_side_tables

        index, before = self.sinks.index(sink), sink.schema
        self._replay = False  # what was there to replay when the run started is being replayed
        if failure.table_changed:
            _LOG.info("%s; opening it again", failure.message)
            self._watch.phase(f"{sink.name}: {sink.target} was changed, opening it again")
        else:
            self._pipeline = pinned(self._pipeline)
            if self._pipeline.source.pinned == before:
                raise failure
            self._pipeline = keep_columns(self._pipeline, self._state)
            _LOG.info("%s; taking the latest schema", failure.message)
            self._watch.phase(f"{sink.name}: a newer schema, widening {sink.target}")
        sink.close()
        spark = self._session(self._pipeline)
        make_side_tables(spark, self._pipeline)
        logs = open_logs(self._pipeline)
        try:
            made = self._opened(index, uuid.uuid4().hex[:8], spark, logs)
        finally:
            logs.close()
        made.go_on_from(sink)
        self.sinks[index] = made
        return made

    def run(self, once: bool, *, catch_up: bool = True) -> Summary:
        """Start the queries and watch them; returns when all have ended.

        With ``catch_up`` a sink first reads all that there is, batch after batch; without it the trigger counts from
        the beginning, and no query is started twice.

        Raises:
            SinkFailed: one of them failed.
        """
        begun = time.monotonic()
        every = seconds(self._pipeline.trigger.every)
        first = None if catch_up else every
        self._watch.begin(self.sinks)
        for sink in self.sinks:
            sink.start(first)
        waiting = list(self.sinks)
        while waiting:
            self._watch.tick()
            if self._stopping:
                for sink in waiting:
                    sink.stop()
                break
            for sink in list(waiting):
                try:
                    if sink.wait(_POLL_S / len(waiting)):
                        continue
                except SinkFailed as failure:
                    if failure.schema_changed or failure.table_changed:
                        waiting[waiting.index(sink)] = made = self._reopened(sink, failure)
                        made.start(first)
                        continue
                    if not failure.transient or sink.figures.restarts >= RESTARTS:
                        raise
                    sink.figures.restarts += 1
                    _LOG.warning("%s; restart %d of %d", failure.message, sink.figures.restarts, RESTARTS)
                    time.sleep(restart_pause_s(sink.figures.restarts))
                    sink.start(first)
                    continue
                if once or self._stopping:
                    waiting.remove(sink)
                else:
                    self._watch.phase(f"{sink.name}: caught up, continuing every {self._pipeline.trigger.every}")
                    sink.start(every)
        return Summary(
            pipeline=self._pipeline.pipeline,
            seconds=time.monotonic() - begun,
            stopped=self._stopping,
            sinks=[_summary(sink) for sink in self.sinks],
        )

    def stop(self) -> None:
        """Let the run end after the batches that are at work; safe to call from a signal handler."""
        self._stopping = True
        for sink in self.sinks:
            sink.stopping = True

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def _own_session(pipeline: Pipeline) -> "SparkSession":
    from millstream.pipeline.session import pipeline_session

    return pipeline_session(pipeline)


def _summary(sink: SinkQuery) -> SinkSummary:
    figures = sink.figures
    return SinkSummary(
        sink=sink.name,
        target=sink.target,
        batches=figures.batches,
        rows=figures.rows,
        rejected=figures.rejected,
        bytes=figures.bytes,
        total_rows=figures.total_rows,
        total_rejected=figures.total_rejected,
        version=figures.version,
        read=figures.origins,
        offsets=sink.position.ends,
    )
