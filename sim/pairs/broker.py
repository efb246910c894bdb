"""One life of the broker of a pair: the production code from recovery up to partitions, coordinators and the archive.

::

    World ──► Broker: Lifecycle ─ Partition ─ SoleVoterGroup ─ Log ─ ShardStorage ─ ChunkDisk ─ SimDisk
                      LocalGroups, TransactionsPartition
                      Archiver, SharedUploads, SharedJoins, SharedSweeps ─ ArchiveLink ─ Lane ─ ArchiveWorker ─ store

A broker is one shard. Its controller is a perfect one: `World` has the production's state of it, and opens, configures
and deletes partitions here as its commands say. The archive process is the one of `sim.archive`.

**A crash** loses what is not synced, and what was on its way to the store. **An error** in a callback ends the life: it
is a finding.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.coordinator.local_groups import LocalGroups
from millstream.coordinator.transactions import ask_or_refuse
from millstream.coordinator.transactions_partition import TransactionsPartition
from millstream.core.controller.topic_names import GROUP_METADATA, TRANSACTION_STATE
from millstream.core.group.outputs import GroupSettings
from millstream.core.txn.image import EPOCH_PER_TRANSACTION
from millstream.core.txn.messages import AddPartitions, Identity, TransactionSettings
from millstream.format.archive import TopicDescription
from millstream.format.events.chunk import log_directory
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.model.replication import replica_id
from millstream.partition.append.admission import Admission
from millstream.partition.append.internal import InternalLogs
from millstream.partition.append.markers import append_marker
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.partition.replica.members import Members
from millstream.partition.table import PartitionTable
from millstream.storage.chunks import ChunkDisk
from millstream.storage.log.event_log import limits_of
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import recover
from sim.archive.broker import FaultySlots
from sim.engine.local_storage import DATA_DIR, LocalShard
from sim.engine.requests import handlers_node
from sim.engine.violation import Violation
from sim.pairs.archiving import CHECK_MS, make_archiving

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.topic_properties import TopicConfig
    from millstream.core.txn.image import TopicPartition
    from millstream.model.shared import Writer
    from millstream.partition.append.internal import InternalLog
    from millstream.partition.append.markers import Marker
    from millstream.partition.append.verification import Answer, Question
    from sim.pairs.single import Single

_STORAGE: Final = {"log_retention_check_interval_ms": CHECK_MS, "log_cleaner_backoff_ms": 1_000}
_EXPIRY_MS: Final = 7 * 86_400_000
_SNAPSHOT_BYTES: Final = 3_000
"""A history is too short for what a log of a broker waits for before its producers are saved."""


class _Clock:
    """What the archive process uses of a cluster: time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sent: list[Callable[[], None]] = []
        """Commands that have no effect yet."""

    @property
    def now(self) -> int:
        """Of the reactor, in us."""
        return self._broker.shard.reactor.now_us()

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """Carry a command out, later."""

        def carry_out() -> None:
            self._sent.remove(do)
            do()

        self._sent.append(do)
        self._broker.shard.reactor.call_later(delay_us, carry_out)

    def on_the_way(self) -> list[Callable[[], None]]:
        """What a broker that dies now has asked of the store."""
        return list(self._sent)

    def send_at(self, at_us: int, to: object, deliver: Callable[[], None]) -> None:
        """The same at a time."""
        _ = to
        self._broker.shard.reactor.call_at(at_us, deliver)


class Broker:
    """Lifecycle: made once the power is on; `World` drops it when it crashes or stops."""

    life = 1
    is_up = True
    at_once = False
    replica = replica_id(1)

    def __init__(self, world: Single, writer: Writer | None) -> None:
        """``writer`` is this run of the broker, as the store knows it, if acknowledgements wait for it."""
        self.history_of_archive = world
        self.writer = writer
        self.disk = self.files = ChunkDisk(world.disk)
        self.slots = FaultySlots(world.chance)
        self.report = recover(self.disk, DATA_DIR, self._place, shards=1, now_ms=world.wall_ms())
        clean = self.report.clean
        self.shard = shard = LocalShard(
            self.disk,
            world.chance,
            now_ms=world.now_us // 1000,
            clean=clean,
            settings={**_STORAGE, **world.storage_settings},
            processes_disk=ChunkDisk(world.disk),
        )
        shard.reactor.jump_ms = world.wall_offset_ms
        shard.storage.checkpointer.snapshot_bytes = _SNAPSHOT_BYTES
        self.cluster = _Clock(self)
        self.table = PartitionTable()
        self.admission = Admission(shard.context.reactor, shard.storage)
        self.admission.verification.ask = self._verify
        self.node = handlers_node(shard, self.admission)
        self.lifecycle = Lifecycle(
            shard.context, world.settings, shard.storage, self.table, self.admission, clean=clean
        )
        interval_us = world.settings.shared_wal_interval_ms * 1000
        made = make_archiving(self, interval_us, world.topic_ids, self._describe, _sealed)
        made.sweeps.start(_no_others)
        self.archiver = self.lifecycle.archiver = made.archiver
        self.groups = LocalGroups(shard.context, GroupSettings(), _EXPIRY_MS)
        self.transactions: TransactionsPartition | None = None
        logs = InternalLogs(self.table)
        logs.on_open(self._opened)
        logs.on_close(self._closed)
        for topic in list(world.controller.topics.values()):
            for index in range(len(topic.partitions)):
                self.open(topic.name, index, fresh=False)
        self.archiver.purges.resume()
        self.lifecycle.start_expiry()

    # Topics

    def _place(self, group: int) -> LogPlace | None:
        world = self.history_of_archive
        for topic in world.controller.topics.values():
            for index, part in enumerate(topic.partitions):
                if part.raft_group == group:
                    config = world.config(topic.name)
                    events, number = config.has_events, PartitionIndex(index)
                    directory = log_directory(DATA_DIR, topic.topic_id, topic.name, number, events=events)
                    limits = limits_of(config) if events else None
                    return LogPlace(
                        directory, f"{topic.name}/{index}", config.segment_bytes, False, limits, config.is_archived
                    )
        return None

    def open(self, name: str, index: int, *, fresh: bool) -> None:
        """Open a partition that the controller knows."""
        world = self.history_of_archive
        topic = world.controller.topics[name]
        group = RaftGroupId(topic.partitions[index].raft_group)
        config = world.config(name)
        members = Members(restores=self.lifecycle.waits_for_store(config))
        self.lifecycle.open(name, topic.topic_id, index, group, 0, config, fresh=fresh, members=members)

    def configure(self, name: str, config: TopicConfig) -> None:
        """The controller has another configuration of a topic."""
        self.lifecycle.configure(name, config)

    def delete(self, name: str, topic_id: bytes) -> None:
        """The controller has deleted a topic."""
        self.lifecycle.delete(name, topic_id)
        self.groups.topic_deleted(name, topic_id)

    def partition(self, name: str, index: int = 0) -> Partition | None:
        """A partition that is served."""
        found = self.table.find(name, index)
        return found if isinstance(found, Partition) else None

    # The archive

    def _describe(self, topic_id: bytes) -> TopicDescription | None:
        topic = self.history_of_archive.controller.topics.by_id.get(topic_id)
        if topic is None:
            return None
        return TopicDescription(topic.name, topic_id.hex(), len(topic.partitions), topic.configs, "", 1)

    # Coordinators

    def _opened(self, log: InternalLog) -> None:
        if log.name == GROUP_METADATA:
            self.groups.opened(log)
        elif log.name == TRANSACTION_STATE:
            reactor: Any = self.shard.reactor
            world = self.history_of_archive
            self.transactions = TransactionsPartition(
                log, reactor, TransactionSettings(), self._write_marker, world.next_producer_id, _nothing
            )

    def _closed(self, log: InternalLog) -> None:
        if log.name == GROUP_METADATA:
            self.groups.closed(log)
        elif log.name == TRANSACTION_STATE and self.transactions is not None:
            self.transactions.close()
            self.transactions = None

    def coordinate(self, request: Callable[[Callable[[Any], None]], Any], done: Callable[[Any], None]) -> None:
        """Process a request about a transactional id; ``request`` makes it of the token for its answer."""
        ask_or_refuse(self.transactions, request(done))

    def _verify(self, question: Question, answer: Answer) -> None:
        """``partition.append.verification.Ask``."""
        count = len(question.partitions)

        def answered(found: Any) -> None:
            error = found.error if isinstance(found, Identity) else found
            answer((error,) * count if isinstance(error, ErrorCode) else error)

        def request(token: Callable[[Any], None]) -> AddPartitions:
            version = EPOCH_PER_TRANSACTION if question.adds else 0
            return AddPartitions(
                token,
                question.transactional_id,
                question.producer_id,
                question.producer_epoch,
                question.partitions,
                not question.adds,
                version,
            )

        self.coordinate(request, answered)

    def stop_coordinators(self) -> None:
        """They refuse what waits."""
        self.groups.stop()
        if self.transactions is not None:
            self.transactions.stop()

    def _write_marker(self, place: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """``coordinator.marker_sender.WriteMarker``. A partition that does not exist needs none."""
        partition = self.partition(*place)
        if partition is None:
            gone = place[0] not in self.history_of_archive.controller.topics
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            append_marker(partition, marker, self.shard.reactor.wall_ms(), done)


def _sealed(why: str) -> None:
    raise Violation(f"a single broker is taken over: {why}")


def _no_others() -> list[Any]:
    return []


def _nothing() -> None:
    """Requests are refused until the coordinator has loaded."""
