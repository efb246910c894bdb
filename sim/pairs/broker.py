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

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.config.settings import Settings
from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.local_groups import LocalGroups
from millstream.coordinator.state_partition import State
from millstream.coordinator.transactions_partition import TransactionsPartition
from millstream.core.controller.topic_names import TRANSACTION_STATE
from millstream.core.group.outputs import GroupSettings
from millstream.core.shared import BacklogLimits, JoinLimits
from millstream.core.txn.messages import AddPartitions, Identity, TransactionSettings
from millstream.core.txn.transaction import EPOCH_PER_TRANSACTION
from millstream.format.archive import TopicDescription
from millstream.format.events.chunk import log_directory
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.model.replication import replica_id
from millstream.partition.delayed import DelayedAppends
from millstream.partition.internal import InternalLogs
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.markers import append_marker
from millstream.partition.members import Members
from millstream.partition.partition import Partition
from millstream.partition.table import PartitionTable
from millstream.storage.chunks import ChunkDisk
from millstream.storage.log.event_log import limits_of
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import recover
from millstream.tiers.archiver import Archiver
from millstream.tiers.shared_joins import SharedJoins
from millstream.tiers.shared_sweeps import SharedSweeps
from millstream.tiers.shared_uploads import SharedUploads
from sim.archive.broker import FaultySlots, WorldLink
from sim.archive.shared_broker import WorldMailbox
from sim.engine.local_storage import DATA_DIR, LocalShard

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.topic_properties import TopicConfig
    from millstream.core.txn.transaction import TopicPartition
    from millstream.partition.internal import InternalLog
    from millstream.partition.markers import Marker
    from millstream.partition.verifying import Answer, Question
    from sim.pairs.world import World

SETTINGS: Final = Settings(data_dir=DATA_DIR, objects_url="s3://world")
CHECK_MS: Final = 20_000
"""``log.retention.check.interval.ms`` of the simulated brokers: an hour has enough rounds."""

_STORAGE: Final = {"log_retention_check_interval_ms": CHECK_MS, "log_cleaner_backoff_ms": 1_000}
_EXPIRY_MS: Final = 7 * 86_400_000
_SNAPSHOT_BYTES: Final = 3_000
"""A history is too short for what a log of a broker waits for before its producers are saved."""


class _Clock:
    """What the archive process uses of a cluster: time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def now(self) -> int:
        """Of the reactor, in us."""
        return self._broker.shard.reactor.now_us()

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """Do something in this life, later."""
        self._broker.shard.reactor.call_later(delay_us, do)

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

    def __init__(self, world: World) -> None:
        self.history_of_archive = world
        self.disk = ChunkDisk(world.disk)
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
        self.delayed = DelayedAppends(shard.context.reactor, shard.storage)
        self.delayed.verifying.ask = self._verify
        self.node: Any = SimpleNamespace(
            shard=shard.context,
            storage=shard.storage,
            delayed=self.delayed,
            ack_timeouts=SimpleNamespace(armed=True),
        )
        self.lifecycle = Lifecycle(shard.context, SETTINGS, shard.storage, self.table, self.delayed, clean=clean)
        self.lifecycle.archiver = self._archiver()
        self.groups = LocalGroups(shard.context, GroupSettings(), _EXPIRY_MS)
        self.transactions: TransactionsPartition | None = None
        logs = InternalLogs(self.table)
        logs.on_open(self._opened)
        logs.on_close(self._closed)
        for topic in list(world.controller.topics.values()):
            for index in range(len(topic.partitions)):
                self.open(topic.name, index, fresh=False)
        self.lifecycle.archiver.purges.resume()
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
                    return LogPlace(directory, f"{topic.name}/{index}", config.segment_bytes, chunk_limits=limits)
        return None

    def open(self, name: str, index: int, *, fresh: bool) -> None:
        """Open a partition that the controller knows."""
        world = self.history_of_archive
        topic = world.controller.topics[name]
        group = RaftGroupId(topic.partitions[index].raft_group)
        config = world.config(name)
        self.lifecycle.open(name, topic.topic_id, index, group, 0, config, fresh=fresh, members=Members())

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

    def _archiver(self) -> Archiver:
        world, shard = self.history_of_archive, self.shard
        loop: Any = shard.reactor
        me: Any = self
        link = WorldLink(me, shard)
        near: Any = SimpleNamespace(
            id=0, count=1, reactor=loop, stats=shard.stats, mailbox=WorldMailbox(shard), arena=shard.arena
        )
        limits = BacklogLimits(1 << 20, 4_000, 1_000)
        uploads = SharedUploads(loop, shard.storage.now_ms, link, shard.stats, limits, 20_000, self._describe)
        SharedSweeps(near, uploads, link, world.topic_ids, CHECK_MS * 1000, None).start(_no_others)
        archiver = Archiver(loop, shard.storage, link, shard.stats, CHECK_MS, self._describe, uploads)
        SharedJoins(
            near,
            shard.storage.now_ms,
            uploads.archives,
            link,
            archiver.replacing,
            JoinLimits(8_000, 3_000),
            lambda: True,
        ).start()
        return archiver

    def _describe(self, topic_id: bytes) -> TopicDescription | None:
        topic = self.history_of_archive.controller.topics_by_id.get(topic_id)
        if topic is None:
            return None
        return TopicDescription(topic.name, topic_id.hex(), len(topic.partitions), topic.configs, "", 1)

    # Coordinators

    def _opened(self, log: InternalLog) -> None:
        if log.name == OFFSETS_TOPIC:
            self.groups.opened(log)
        elif log.name == TRANSACTION_STATE:
            reactor: Any = self.shard.reactor
            world = self.history_of_archive
            self.transactions = TransactionsPartition(
                log, reactor, TransactionSettings(), self._write_marker, world.next_producer_id, _nothing
            )

    def _closed(self, log: InternalLog) -> None:
        if log.name == OFFSETS_TOPIC:
            self.groups.closed(log)
        elif log.name == TRANSACTION_STATE and self.transactions is not None:
            self.transactions.close()
            self.transactions = None

    def coordinate(self, request: Callable[[Callable[[Any], None]], Any], done: Callable[[Any], None]) -> None:
        """Process a request about a transactional id; ``request`` makes it of the token for its answer."""
        found = self.transactions
        if found is None:
            done(ErrorCode.NOT_COORDINATOR)
        elif found.state is not State.ACTIVE:
            done(found.refusal)
        else:
            found.ask(request(done))

    def _verify(self, question: Question, answer: Answer) -> None:
        """``partition.verifying.Ask``."""
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

    def _write_marker(self, place: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """``coordinator.marker_sender.WriteMarker``. A partition that does not exist needs none."""
        partition = self.partition(*place)
        if partition is None:
            gone = place[0] not in self.history_of_archive.controller.topics
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            append_marker(partition, marker, self.shard.reactor.wall_ms(), done)


def _no_others() -> list[Any]:
    return []


def _nothing() -> None:
    """Requests are refused until the coordinator has loaded."""
