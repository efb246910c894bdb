"""Keeps one topic's table up to date, in a thread of its own, until it is asked to end.

::

    claim ──held──► decide ► declare ► Run ──commit──► status, offsets of the group
      ▲  └not held: stand by           │
      └──── pause (1 s … 60 s) ◄─ failed, refused, taken over

An error that ends a run is said in the status, and the run is tried again after a pause, which doubles up to a minute
and is one second again after a commit. A failed run leaves nothing to clean up: the table's record says where to
continue.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from millstream.client.schema_registry import RegistryAccess
from millstream.client.security import Security
from millstream.errors import MillstreamError, Rejected
from millstream.pipeline.checks import problems_of
from millstream.pipeline.locations import state_directory
from millstream.pipeline.model import Pipeline
from millstream.pipeline.runner import Run, prepared_run
from millstream.pipeline.serving.claim import Claim, ClaimLost
from millstream.pipeline.serving.status import TableStatus
from millstream.pipeline.serving.topics import Decided, TopicTable, decide, declared, sink_of
from millstream.pipeline.sink_query import NoWatch
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.open_table import open_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from millstream.pipeline.sink_figures import BatchDone
    from millstream.pipeline.sink_query import SinkQuery

_LOG: Final = logging.getLogger("millstream.pipeline")
_POLL_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0


class Reach(msgspec.Struct):
    """How brokers and registry are reached: ``properties`` as given, and what they mean. ``registry`` None: there is no
    registry, or it is not known yet.
    """

    properties: Mapping[str, str]
    identity: Security
    registry: RegistryAccess | None = None


class Serving(Protocol):
    """What all tables of a server share."""

    brokers: str
    reach: Reach
    catalog: "Mapping[str, str] | None"
    directory: str
    who: str
    session: "Callable[[Pipeline], SparkSession]"

    @property
    def instance(self) -> str:
        """Names the process in groups."""
        ...

    def publish(self, status: TableStatus) -> None:
        """Have a status written, at once or soon; safe from any thread."""
        ...


class TableRunner(threading.Thread):
    """One topic's table. ``status`` is the last that was published; ``sinks`` has the query that runs, if one does."""

    def __init__(
        self, table: TopicTable, serving: Serving, before: TableStatus | None, *, replay: bool = False
    ) -> None:
        """``before`` is what is known of the table from earlier runs; ``replay`` as in ``runner.run``."""
        super().__init__(name=f"table {table.topic}", daemon=True)
        self.table = table
        self.sinks: list[SinkQuery] = []
        self.status = _first(table, serving, before)
        self._serving = serving
        self._replay = replay
        self._running: Run | None = None
        self._ending = threading.Event()
        self._pause_s = 1.0

    def end(self) -> None:
        """Ask it to end after the batch at work; ``join`` waits for that."""
        self._ending.set()
        running = self._running
        if running is not None:
            running.stop()

    def run(self) -> None:
        """Until ``end``."""
        while not self._ending.is_set():
            try:
                claim = Claim(
                    self._serving.brokers, self.table.topic, self._serving.instance, self._serving.reach.identity
                )
                try:
                    self._with(claim)
                finally:
                    claim.close()
            except Exception as error:  # noqa: BLE001 (of the client library, too; another claim is made)
                _LOG.warning("table of topic %s: %s", self.table.topic, error)
                self._ending.wait(self._longer())

    def _with(self, claim: Claim) -> None:
        """Run whenever the claim is held, until ``end``.

        Raises:
            ClaimLost: the group refuses this process.
        """
        while not self._ending.is_set():
            try:
                if not claim.poll(_POLL_S):
                    continue
                self._run_once(claim)
            except ClaimLost:
                raise
            except Exception as error:  # noqa: BLE001 (of Spark, of a table's library: said, and tried again)
                self._failed(error, held=claim.held)
                until = time.monotonic() + self._longer()
                while time.monotonic() < until and not self._ending.is_set():
                    claim.poll(_POLL_S)

    def _run_once(self, claim: Claim) -> None:
        serving, table = self._serving, self.table
        self._say(state="starting", reason="", runner=serving.who)
        decided = self._decided()
        made = self.status.made or not open_table(sink_of(table.sink, serving.catalog), serving.directory).exists()
        pipeline = declared(
            table, decided, serving.brokers, serving.catalog, made=made, security=serving.reach.properties
        )
        for problem in problems_of(pipeline):
            raise Rejected(problem.message)
        self._say(format=decided.format, registry=decided.registry, schema=decided.schema, made=made)
        state = PipelineState(state_directory(pipeline, serving.directory))
        watch = _Watch(self, claim)
        running = Run(pipeline, serving.directory, state, watch, replay=self._replay, session=serving.session)
        self._running = running
        try:
            with prepared_run(running, state):
                self.sinks = running.sinks
                if not self._ending.is_set():
                    self._replay = False  # what there was to replay is pinned
                    running.run(False, catch_up=False)
        finally:
            self.sinks = []
            self._running = None

    def _decided(self) -> Decided:
        """What the values are: as earlier runs took them, unless the properties say otherwise now."""
        known, wanted = self.status, self.table.format
        if known.format and wanted in ("auto", known.format):
            return Decided(known.format, known.registry, known.schema)  # pyright: ignore[reportArgumentType] (checked when it was decided)
        reach = self._serving.reach
        return decide(self.table, self._serving.brokers, reach.registry, reach.properties)

    def yield_run(self) -> None:
        """Another process runs the table from now on."""
        running = self._running
        if running is not None:
            running.stop()

    def committed(self, sink: "SinkQuery", done: "BatchDone", claim: Claim) -> None:
        """A batch is in the table."""
        self._pause_s = 1.0
        offsets = dict(sink.position.ends.get(self.table.topic, {}))
        claim.commit(self.table.topic, offsets)
        self._say(
            state="running",
            committed_at=time.time(),
            rows=sink.figures.total_rows,
            rejected=sink.figures.total_rejected,
            bytes=sink.figures.total_bytes,
            batch=done.number,
            version=done.version,
            offsets=offsets,
        )

    def began(self, sinks: "list[SinkQuery]") -> None:
        """The query reads."""
        offsets = dict(sinks[0].position.ends.get(self.table.topic, {}))
        self._say(
            state="running", rows=sinks[0].figures.total_rows, rejected=sinks[0].figures.total_rejected, offsets=offsets
        )

    def _longer(self) -> float:
        """The pause before the next attempt; the one after that is twice as long."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def _failed(self, error: Exception, *, held: bool) -> None:
        message = error.message if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}"
        message = message.splitlines()[0]
        _LOG.warning("table of topic %s: %s; tried again in %g s", self.table.topic, message, self._pause_s)
        if held:  # otherwise the status is the holder's
            self._say(state="failed", reason=message)

    def _say(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, updated_at=time.time(), **changes)
        self._serving.publish(self.status)


class _Watch(NoWatch):
    """Follows the run of a table, and ends it when the claim is lost."""

    def __init__(self, runner: TableRunner, claim: Claim) -> None:
        self._runner = runner
        self._claim = claim

    def phase(self, what: str) -> None:
        _LOG.info("table of topic %s: %s", self._runner.table.topic, what)

    def begin(self, sinks: "list[SinkQuery]") -> None:
        self._runner.began(sinks)

    def batch(self, sink: "SinkQuery", done: "BatchDone") -> None:
        self._runner.committed(sink, done, self._claim)

    def tick(self) -> None:
        if not self._claim.poll(0):
            self._runner.yield_run()


def _first(table: TopicTable, serving: Serving, before: TableStatus | None) -> TableStatus:
    """The status of a new runner: what is known of the table, with what the properties say now."""
    now = TableStatus(
        topic=table.topic,
        topic_id=table.topic_id,
        sink=table.sink,
        mode=table.mode,
        state="starting",
        runner=serving.who,
        updated_at=time.time(),
        delete_with_topic=table.delete_with_topic,
    )
    if before is None or before.sink != table.sink:
        return now
    kept = msgspec.structs.asdict(before)
    return TableStatus(**{**kept, **{name: getattr(now, name) for name in _OWN}})


_OWN: Final = ("topic_id", "mode", "state", "runner", "updated_at", "delete_with_topic")
