"""A simulated broker with two shared topics, whose batches lie in common objects.

::

    SharedUploads ─┐
    SharedJoins ───┼─ ArchiveLink ──Lane──► ArchiveWorker ──► WorldStore
    SharedSweeps ──┘
         └── asks the other brokers over a network that loses messages

It runs the production's uploads, joins and sweeps as `app.shard_main` wires them, for one shard. Every broker sweeps,
not only one that leads a controller: two sweeps at once must do no harm.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.errors import Unavailable
from millstream.format.archive import TopicDescription
from millstream.format.manifest import ArchiveId
from millstream.model.cluster import NodeId
from millstream.model.quantities import RaftGroupId
from millstream.model.replication import node_of, replica_id
from millstream.partition.partition import Partition
from millstream.tiers.archiver import Archiver
from millstream.tiers.packing import archive_id
from millstream.tiers.purging import mark
from millstream.tiers.shared_joins import SharedJoins
from millstream.tiers.shared_sweeps import SharedSweeps
from millstream.tiers.shared_uploads import SharedUploads
from sim.archive.broker import RETENTION_MS, TieredBroker
from sim.brokers.served import TOPIC
from sim.brokers.world import GROUP, SEGMENT_BYTES
from sim.engine.local_storage import recover_locally
from sim.engine.mailbox import LocalMailbox

if TYPE_CHECKING:
    from millstream.errors import MillstreamError
    from millstream.peers.calls import CallDone, CallHandler
    from millstream.storage.recovery.recovery import RecoveryReport
    from millstream.tiers.partition_archive import PartitionArchive
    from sim.archive.broker import WorldLink
    from sim.brokers.world import Broker
    from sim.engine.local_storage import LocalShard
    from sim.shared.history import SharedHistory

SECOND: Final = RaftGroupId(70_021)
"""Group of the other shared topic, which may be deleted."""

SECOND_TOPIC: Final = "u"
NAMES: Final = {GROUP: TOPIC, SECOND: SECOND_TOPIC}


def topic_id_of(group: int) -> bytes:
    """As `ServedBroker` opens it."""
    return bytes(12) + group.to_bytes(4, "big")


def owner_of(group: int) -> ArchiveId:
    """The archive of the only partition of a group's topic."""
    return archive_id(SimpleNamespace(topic_id=topic_id_of(group), partition_index=0))  # pyright: ignore[reportArgumentType]


class WorldCalls:
    """As `peers.calls.Calls`, over the network of the cluster."""

    def __init__(self, broker: SharedBroker) -> None:
        self._broker = broker
        self._handlers: dict[int, CallHandler] = {}

    def serve(self, method: int, handler: CallHandler) -> None:
        """Answer calls of ``method``."""
        self._handlers[method] = handler

    def call(self, node: NodeId, method: int, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        """Call ``method`` of ``node``; ``done`` gets the answer, or an error after ``timeout_ms``."""
        me, life, cluster = self._broker, self._broker.life, self._broker.cluster
        settled = False

        def settle(result: bytes | MillstreamError) -> None:
            nonlocal settled
            if not settled and me.life == life and me.is_up:
                settled = True
                done(result)

        def arrive(arrived: Broker) -> None:
            assert isinstance(arrived, SharedBroker)

            def answered(result: bytes | MillstreamError) -> None:
                cluster.send(arrived.replica, me.replica, lambda _: settle(result))

            arrived.calls._handlers[method](me.replica, payload, timeout_ms, answered)

        cluster.send(me.replica, replica_id(node), arrive)
        assert me.shard is not None
        me.shard.reactor.call_later(timeout_ms * 1000, lambda: settle(Unavailable("no answer")))


class SharedBroker(TieredBroker):
    """Lifecycle: as `Broker`."""

    storage_mode = "shared"
    history_of_archive: SharedHistory
    uploads: SharedUploads
    joins: SharedJoins
    calls: WorldCalls
    second: Partition | None = None
    """None once its topic is deleted."""

    @property
    def archives(self) -> dict[RaftGroupId, PartitionArchive]:
        """All its archives, by Raft group."""
        found = super().archives
        second = None if self.second is None else self.second.archive
        return found if second is None else {**found, SECOND: second}

    def recover(self) -> RecoveryReport:
        """Recover the disk; the metadata say which topics there are."""
        gone: set[int] = {SECOND} if self.history_of_archive.second_deleted else set()
        now_ms = self.cluster.now // 1000
        return recover_locally(self.disk, segment_bytes=SEGMENT_BYTES, now_ms=now_ms, replicated=True, deleted=gone)

    def open_groups(self, shard: LocalShard, *, clean: bool) -> None:
        """Open both topics."""
        self.second = None
        self.cluster.history_of(SECOND)
        super().open_groups(shard, clean=clean)
        if not self.history_of_archive.second_deleted:
            self.second = self._open(self.lifecycle, self.table, SECOND_TOPIC, SECOND, None)
            return
        # As a start does that finds files of a deleted topic; a journal of the file system keeps either them or a mark.
        mark(self.disk, shard.storage.data_dir, owner_of(SECOND).topic_id.hex)
        assert self.archiver is not None
        self.archiver.purges.resume()

    def _take_installed(self) -> None:
        """The lifecycle has reopened a log that files have replaced: the follower lacked what is only archived."""
        super()._take_installed()
        found = self.table.find(SECOND_TOPIC, 0)
        if isinstance(found, Partition) and self.second is not None and found is not self.second:
            self.second = found
            group: Any = found.group
            self.checks = [one for one in self.checks if not one.group.closed]
            self.check(self.cluster.histories[SECOND], group)
            self.watch_installs(group)

    def _make_archiver(self, shard: LocalShard, link: WorldLink) -> Archiver:
        world, reactor = self.history_of_archive, shard.reactor
        near: Any = SimpleNamespace(
            id=0, count=1, reactor=reactor, stats=shard.stats, mailbox=LocalMailbox(reactor), arena=shard.arena
        )
        loop: Any = reactor
        self.calls = WorldCalls(self)
        self.uploads = uploads = SharedUploads(
            loop, world.clock_ms, link, shard.stats, world.backlog_limits, world.object_bytes_max, self._describe
        )
        calls: Any = self.calls
        sweeps = SharedSweeps(near, uploads, link, self._topics, world.sweep_us, calls)
        sweeps.start(self._others)
        archiver = Archiver(loop, shard.storage, link, shard.stats, RETENTION_MS, self._describe, uploads)
        self.joins = SharedJoins(
            near, shard.storage.now_ms, uploads.archives, link, archiver.replacing, world.join_limits, lambda: True
        )
        self.joins.start()
        return archiver

    def _others(self) -> list[NodeId]:
        """The brokers that are up: what a controller would say in a while."""
        brokers = self.cluster.brokers.values()
        return [NodeId(node_of(one.replica)) for one in brokers if one is not self and one.is_up]

    def _topics(self) -> list[bytes]:
        gone = self.history_of_archive.second_deleted
        return [topic_id_of(group) for group in NAMES if group != SECOND or not gone]

    def _describe(self, topic_id: bytes) -> TopicDescription | None:
        name = next((name for group, name in NAMES.items() if topic_id_of(group) == topic_id), None)
        if name is None or topic_id not in self._topics():
            return None
        return TopicDescription(name, topic_id.hex(), 1, {}, "", len(self.cluster.brokers))

    def delete_second(self) -> None:
        """The deletion of the other topic has come to this broker."""
        second, self.second = self.second, None
        if second is not None:
            self.checks = [one for one in self.checks if one.group is not second.group]
            self.lifecycle.delete(second.name, second.topic_id)

    @property
    def has_uploaded(self) -> bool:
        """Whether everything that this broker leads is in objects that it has committed."""
        return not self.uploads.backlog.size_bytes and all(
            archive.archive.end_offset >= archive.limit() for archive in self.led
        )

    @property
    def led(self) -> list[PartitionArchive]:
        """The archives that this broker leads."""
        return [one for one in self.archives.values() if one.group.is_serving and not one.closed]

    @property
    def gave_up(self) -> bool:
        """Whether it joins a partition no more because a range was damaged on its way, twice in a row."""
        return bool(self.joins._given_up)
