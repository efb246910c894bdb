"""The server of tables: finds the topics, starts and ends their runners, and writes their statuses.

One thread asks the cluster every few seconds; it alone reads and writes ``__pipelines``. Runners hand it their
statuses, of which the latest of each topic is written, so a busy table costs one record in half a second. While no
broker answers nothing is started or ended: runners notice by themselves, and the next answer is acted on.

A topic that was deleted is asked for by name before anything follows from it, because a list may lack what this user
may not see. Its table stays unless ``table.delete.with.topic`` was set and the table was made here; then it is removed,
and so is its state. Removing is repeated after a crash, because the status is removed last.
"""

import contextlib
import logging
import os
import queue
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.client import Cluster
from millstream.client.cluster import BROKER_RESOURCE
from millstream.client.schema_registry import registry_access
from millstream.client.security import read_security
from millstream.errors import MillstreamError, Unavailable
from millstream.model.endpoint_setting import HTTP_ENDPOINT
from millstream.model.error_code import ErrorCode
from millstream.pipeline.locations import Location
from millstream.pipeline.serving.status import State, StatusTopic, TableStatus
from millstream.pipeline.serving.table_runner import Reach, TableRunner
from millstream.pipeline.serving.topics import TopicTable, find_tables, sink_of
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, DELETES_SUFFIX, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.model import Pipeline

_LOG: Final = logging.getLogger("millstream.pipeline")
_STEP_S: Final = 0.5
_DISCOVER_S: Final = 2.0
_END_S: Final = 600.0
"""How long a stop waits for batches at work."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How tables are served. ``security`` has properties of Kafka's client and of a schema registry's, references not
    resolved. ``registry`` None asks a broker for its own; ``catalog`` None is the embedded one beside
    the tables; ``replay`` names topics whose deletion, or whose table's, was meant.
    """

    brokers: str
    directory: str = "."
    security: Mapping[str, str] = {}
    registry: str | None = None
    catalog: dict[str, str] | None = None
    replay: frozenset[str] = frozenset()


class Server:
    """All tables of one cluster, served by this process. Made, run once in one thread; ``stop`` from any."""

    def __init__(
        self, options: Options, session: "Callable[[Pipeline], SparkSession]", alive: Callable[[], bool] = lambda: True
    ) -> None:
        """``session`` gives each run its Spark session, and ``alive`` tells whether it still can."""
        self.brokers = options.brokers
        self.catalog: Mapping[str, str] | None = options.catalog
        self.directory = os.path.abspath(options.directory)
        self.reach = Reach(options.security, read_security(options.security))
        self._use_registry(options.registry)
        self.session = session
        self.who = f"host {socket.gethostname()}, process {os.getpid()}"
        self.state = PipelineState(os.path.join(self.directory, ".millstream", "serve"))
        self.runners: dict[str, TableRunner] = {}
        self._alive = alive
        self._replay = set(options.replay)
        self._said: queue.SimpleQueue[TableStatus] = queue.SimpleQueue()
        self._stopping = False

    @property
    def instance(self) -> str:
        """Names this server in groups; the same after a restart in this directory."""
        return self.state.instance()

    def publish(self, status: TableStatus) -> None:
        """Have a status written; called by runners."""
        self._said.put(status)

    def stop(self) -> None:
        """End after the batches at work; safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until ``stop``.

        Raises:
            Unavailable: another process serves in this directory, no broker answers at the start, or Spark has ended.
            Rejected: the broker refuses what is needed.
        """
        with self.state.running(), self._cluster() as cluster:
            statuses = StatusTopic(cluster)
            statuses.make()
            if self.reach.registry is None:
                self._use_registry(_own_registry(cluster))
            try:
                self._serve(cluster, statuses)
            finally:
                self._end_all(statuses)

    def _cluster(self) -> Cluster:
        return Cluster(self.brokers, client_id="millstream-pipeline-serve", security=self.reach.identity)

    def _use_registry(self, url: str | None) -> None:
        if url is not None:
            self.reach.registry = registry_access(url, self.reach.properties, self.reach.identity, self.brokers)

    def _serve(self, cluster: Cluster, statuses: StatusTopic) -> None:
        silent = False
        next_look = 0.0
        while not self._stopping:
            if not self._alive():
                raise Unavailable("Spark's virtual machine has ended; start 'millstream pipeline serve' again")
            try:
                self._write(statuses)
                if time.monotonic() >= next_look:
                    self._look(cluster, statuses)
                    next_look = time.monotonic() + _DISCOVER_S
                silent = False
            except MillstreamError as error:
                if not silent:
                    _LOG.warning("the brokers at %s: %s; asked again until they answer", self.brokers, error.message)
                silent = True
            time.sleep(_STEP_S)

    def _look(self, cluster: Cluster, statuses: StatusTopic) -> None:
        """Let the runners be those that the topics' properties ask for."""
        wanted, ids = find_tables(cluster)
        known = statuses.read()
        for name, runner in list(self.runners.items()):
            if wanted.get(name) != runner.table:
                runner.end()
            if not runner.is_alive():
                del self.runners[name]
        for name, table in wanted.items():
            if name not in self.runners:
                self._start(table, known.get(name))
        for name, status in list(known.items()):
            if name not in wanted and name not in self.runners:
                self._without_table(cluster, statuses, status, ids.get(name))

    def _start(self, table: TopicTable, before: TableStatus | None) -> None:
        replay = table.topic in self._replay
        self._replay.discard(table.topic)
        runner = self.runners[table.topic] = TableRunner(table, self, before, replay=replay)
        runner.start()

    def _without_table(
        self, cluster: Cluster, statuses: StatusTopic, status: TableStatus, topic_id: str | None
    ) -> None:
        """A topic that was a table is no longer one, or was deleted."""
        if topic_id is None or topic_id != status.topic_id:
            found = cluster.metadata([status.topic]).topics[status.topic]
            gone = found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or (
                not found.error_code and found.topic_id.hex() != status.topic_id
            )
            if gone:
                self._topic_gone(statuses, status)
        elif status.state != "off":
            statuses.write({status.topic: _now(status, "off", "")})

    def _topic_gone(self, statuses: StatusTopic, status: TableStatus) -> None:
        if status.delete_with_topic and status.made:
            _LOG.warning("topic %s was deleted, and its table %s with it", status.topic, status.sink)
            try:
                self._remove(status)
            except Exception as error:  # noqa: BLE001 (of the table's library; it is tried again)
                reason = f"the topic was deleted, and its table cannot be: {error}"
                if status.reason != reason:
                    statuses.write({status.topic: _now(status, "orphaned", reason)})
                return
            statuses.write({status.topic: None})
        elif status.state != "orphaned":
            why = "" if not status.delete_with_topic else ", because it was there before"
            statuses.write({status.topic: _now(status, "orphaned", f"the topic was deleted; its table was kept{why}")})

    def _remove(self, status: TableStatus) -> None:
        """Remove a table, those of its dead letters and deleted keys, and the state; what is not there is no error."""
        sink = sink_of(status.sink, self.catalog)
        for suffix in (DEAD_LETTERS_SUFFIX, DELETES_SUFFIX, ""):
            table = open_table(sink, self.directory, suffix=suffix)
            if table.exists():
                table.drop()
        Location(os.path.join(self.state.directory, "topics", status.topic)).remove()

    def _write(self, statuses: StatusTopic) -> None:
        latest: dict[str, TableStatus] = {}
        with contextlib.suppress(queue.Empty):
            while True:
                status = self._said.get_nowait()
                latest[status.topic] = status
        if latest:
            try:
                statuses.write(latest)
            except MillstreamError:
                for status in latest.values():
                    self._said.put(status)
                raise

    def _end_all(self, statuses: StatusTopic) -> None:
        for runner in self.runners.values():
            runner.end()
        deadline = time.monotonic() + _END_S
        for runner in self.runners.values():
            runner.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(MillstreamError):
            self._write(statuses)


def _now(status: TableStatus, state: State, reason: str) -> TableStatus:
    return msgspec.structs.replace(status, state=state, reason=reason, updated_at=time.time())


def _own_registry(cluster: Cluster) -> str | None:
    """The schema registry of a broker of ours; None of another one."""
    found = cluster.metadata([])
    for node_id in sorted(found.brokers):
        settings = cluster.describe_configs(BROKER_RESOURCE, str(node_id), [HTTP_ENDPOINT], node_id=node_id)
        if settings.get(HTTP_ENDPOINT):
            return settings[HTTP_ENDPOINT]
    return None
