"""The Spark query that fills one sink: what it reads, what each micro-batch does, how it ends.

``SinkQuery`` is the part that all sinks share (``table_query`` and ``topic_query`` are the kinds). A
micro-batch runs in a thread of Spark's, everything else in the runner's.
"""

import json
import logging
import re
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import MillstreamError
from millstream.pipeline.checks import sink_name
from millstream.pipeline.layout import encode_schema
from millstream.pipeline.locations import Location
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.ranges import Bounds
from millstream.pipeline.sink_figures import BatchDone, SinkFigures
from millstream.pipeline.source_position import SourcePosition, positions
from millstream.pipeline.start import Offsets, encode_offsets, find_start, source_options
from millstream.pipeline.state import Progress, SinkState
from millstream.pipeline.tables.open_table import shown_target
from millstream.pipeline.tables.table import CommitRecord, TableChanged
from millstream.pipeline.task import Report, SourceSettings
from millstream.spark.logs import Logs
from millstream.spark.workers import lost_worker

_LOG: Final = logging.getLogger("millstream.pipeline")
_CHANGED: Final = "SchemaChanged: "
_PYTHON_ERROR: Final = re.compile(
    r"(?:^|: )(?:\w+\.)*(?:Rejected|SchemaChanged|Unavailable|Corruption|DataLost|Retriable|\w*Error): (.+)",
    re.MULTILINE,
)


class SinkRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run gives to the query of a sink: the pipeline and the number of the sink in it, what relative paths are
    relative to, the sink's state, and an id of the run. ``bounds`` says what a backfill reads; None is everything,
    without an end. ``replay``: what a table or a topic lost by being set back or made again is read again.
    """

    pipeline: Pipeline
    index: int
    directory: str
    state: SinkState
    run_id: str
    bounds: Bounds | None = None
    replay: bool = False


class Watch(Protocol):
    """Follows a run. ``batch`` is called from threads of Spark's."""

    def phase(self, what: str) -> None:
        """Something starts that takes a while."""
        ...

    def begin(self, sinks: "list[SinkQuery]") -> None:
        """The queries start; each sink knows how many offsets are ahead of it."""
        ...

    def batch(self, sink: "SinkQuery", done: BatchDone) -> None:
        """A batch has been committed."""
        ...

    def tick(self) -> None:
        """Called several times a second while queries run, from the run's own thread."""
        ...


class NoWatch:
    """Follows nothing."""

    def phase(self, what: str) -> None:
        pass

    def begin(self, sinks: "list[SinkQuery]") -> None:
        pass

    def batch(self, sink: "SinkQuery", done: BatchDone) -> None:
        pass

    def tick(self) -> None:
        pass


class SinkFailed(MillstreamError):
    """A sink's query ended with an error. ``transient``: a process of Spark's died or did not start in time.
    ``schema_changed``: records need columns that the query does not have, ``table_changed``: the table's owner has
    changed it; nothing of the batch was committed.
    """

    transient = False
    schema_changed = False
    table_changed = False


class _StopRequested(Exception):
    """Ends a query before a batch starts."""


class SinkQuery:
    """One sink of a run. Made, opened, started one or several times, closed.

    ``figures`` are what it counts, ``position`` is how far it has read. ``stopping`` is set by any thread: no further
    batch starts.
    """

    def __init__(self, given: SinkRun, watch: Watch) -> None:
        self.stopping = False
        self.figures = SinkFigures()
        self.position = SourcePosition(given.bounds)
        self._given = given
        self._pipeline = given.pipeline
        self._state = given.state
        self._watch = watch
        self._frame: DataFrame | None = None
        self._query: StreamingQuery | None = None
        self._failure: BaseException | None = None
        self._left_out: set[int] = set()
        self._settings: SourceSettings

    @property
    def name(self) -> str:
        return sink_name(self._sink)

    @property
    def target(self) -> str:
        """What the sink writes to, for people."""
        return shown_target(self._sink, self._given.directory)

    @property
    def _sink(self) -> Sink:
        return self._given.pipeline.sinks[self._given.index]

    def open(self, spark: SparkSession, logs: Logs) -> None:
        """Prepare everything that can be wrong before a record is read."""
        raise NotImplementedError

    def start(self, every_s: float | None) -> None:
        """Start the query: over all that there is (None), or on and on."""
        assert self._frame is not None, "open() comes first"
        self._failure = None
        trigger: dict[str, Any] = {"availableNow": True}
        if every_s is not None:
            trigger = {"processingTime": f"{int(every_s * 1000)} milliseconds"}
        self._query = (
            self._frame.writeStream.foreachBatch(self._on_batch)
            .queryName(f"{self._pipeline.pipeline}.{self.name}")
            .option("checkpointLocation", self._state.checkpoint)
            .trigger(**trigger)
            .start()
        )

    def wait(self, timeout_s: float) -> bool:
        """Whether the query still runs after so long.

        Raises:
            SinkFailed: it failed.
        """
        assert self._query is not None, "start() comes first"
        try:
            return not self._query.awaitTermination(timeout_s)  # pyright: ignore[reportArgumentType] (parts of a second, too)
        except StreamingQueryException as error:
            if isinstance(self._failure, _StopRequested):
                return False
            raise self._failed(error) from error

    def stop(self) -> None:
        """End the query: at once if it waits for its trigger, else after the batch that it commits."""
        self.stopping = True
        query = self._query
        if query is None:
            return
        while query.isActive and query.status["isTriggerActive"]:
            if not self.wait(0.1):
                return
        query.stop()

    def go_on_from(self, before: "SinkQuery") -> None:
        """Take over the counts of a query that this one replaces within a run."""
        self.figures.continue_from(before.figures)
        self.position.continue_from(before.position)

    def left(self) -> int:
        """Offsets after the last batch, as far as the source has reported the end of its topics."""
        progress = self._query.lastProgress if self._query is not None else None
        sources: Any = json.loads(progress.json)["sources"] if progress is not None else []
        newest = sources[0].get("latestOffset") if sources else None
        return self.position.left(cast("dict[str, Any]", newest) if isinstance(newest, dict) else None)

    def close(self) -> None:
        """Stop what still runs; a batch that is cut off is repeated by the next run."""
        if self._query is not None and self._query.isActive:
            self._query.stop()

    @property
    def schema(self) -> str | None:
        """The registry's schema that the columns have; None without a registry."""
        return self._pipeline.source.pinned

    def _process(self, frame: DataFrame, number: int, query: str) -> BatchDone:
        """Do a batch's work and commit it."""
        raise NotImplementedError

    def _note_origins(self, reports: Sequence[Report]) -> None:
        for report in reports:
            self.figures.origins.add(report.origins)
            for schema_id, names in report.left_out.items():
                if schema_id not in self._left_out:
                    self._left_out.add(schema_id)
                    what = ", ".join(names)
                    _LOG.warning("%s: no column for %s of schema %d: left out", self.name, what, schema_id)

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        begun = time.monotonic()
        try:
            if self.stopping:
                raise _StopRequested
            query = self._state.query_id()
            assert query is not None, "Spark writes a checkpoint's metadata before its first batch"
            done = self._process(frame, number, query)
            read = self.position.advance(self._ends_of(number))
            done = msgspec.structs.replace(done, seconds=time.monotonic() - begun, read=read)
        except BaseException as error:
            self._failure = error
            raise
        self.figures.add(done)
        self._state.write_progress(self._progress(done, query))
        self._watch.batch(self, done)

    def _ends_of(self, number: int) -> Offsets:
        """Where a batch ends."""
        return positions(self._state.offsets(number))

    def _begin_at(self, logs: Logs, last: CommitRecord | None) -> dict[str, str]:
        """Options of the source; also finds out how much lies ahead."""
        bounds = self._given.bounds
        if bounds is None:
            starts = find_start(self._pipeline, self._state, last, logs, replay=self._given.replay)
        else:
            starts = {topic: dict(offsets) for topic, offsets in bounds.start.items()}
        finished = self._state.finished_batch()
        self.position.open(starts, self._state.offsets(finished) if finished is not None else None, logs)
        options = source_options(self._pipeline)
        if bounds is not None:
            options["endingOffsets"] = encode_offsets(bounds.until)
        return {**options, "startingOffsets": msgspec.json.encode(starts).decode()}

    def _source_settings(
        self, dead_letters: str | None, table: str | None, letters_schema: Any = None
    ) -> SourceSettings:
        mode, reports = self._pipeline.errors.mode, (Location(self._state.directory) / "reports").address
        kept = dead_letters if mode == "dead_letter" else None
        schema = None if kept is None or letters_schema is None else encode_schema(letters_schema)
        fail = self._pipeline.errors.on_schema == "fail"
        return SourceSettings(self._pipeline.source, mode, self._given.run_id, reports, kept, table, schema, fail)

    def _progress(self, done: BatchDone, query: str) -> Progress:
        return Progress(
            sink=self.name,
            target=self.target,
            query=query,
            batch=done.number,
            rows=self.figures.total_rows,
            rejected=self.figures.total_rejected,
            bytes=self.figures.total_bytes,
            version=done.version,
            updated_at=time.time(),
            batch_seconds=done.seconds,
            batch_rows=done.rows,
            offsets=self.position.ends,
            left=self.position.left(),
            ranges=self.position.held(self.position.ends),
        )

    def _failed(self, error: StreamingQueryException) -> SinkFailed:
        if isinstance(self._failure, MillstreamError):
            refused = SinkFailed(f"{self.name}: {self._failure.message}")
            refused.table_changed = isinstance(self._failure, TableChanged)
            return refused
        found = _PYTHON_ERROR.findall(str(error))
        reason = found[-1] if found else str(self._failure or error).strip().splitlines()[0]
        failed = SinkFailed(f"{self.name}: {reason}")
        failed.transient = lost_worker(error)
        failed.schema_changed = _CHANGED in str(error)
        return failed
