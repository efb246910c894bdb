"""Brokers of the simulated world with the controller: Raft group 0, registration, metadata, topics made and deleted.

::

    Admin ──► ControlledBroker.submit ──► QuorumController ─ group 0 ─ MetadataCache ──► Partitions ──► Lifecycle
                                              │ calls, status beats
                                              └────────────────────► the other brokers' controllers

It is wired as in `app.shard_main`, for one shard. A call to another broker goes through the simulated network; a call
without an answer has an unknown outcome, as when a connection breaks. Each group of a topic that the controller makes
is checked like the others. `cluster.group_members` takes groups to the members that the metadata say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.app.partitions import Partitions
from millstream.app.stale_topics import forget_note, remove_left_partitions, remove_stale_topics
from millstream.cluster.controller import controller_log_config
from millstream.cluster.follower import Follower
from millstream.cluster.group_members import GroupMembers
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.placement import load_placement
from millstream.cluster.quorum_controller import QuorumController
from millstream.cluster.revision_marks import read_note
from millstream.cluster.snapshots import KeptLog, LaggingLog, Snapshots
from millstream.cluster.state_files import SnapshotStore, groups_in_log, load_committed
from millstream.config.settings import Settings
from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.requests import RegisterBroker
from millstream.core.controller.state import state_hash
from millstream.errors import MillstreamError, OutcomeUnknown, Retriable
from millstream.format.names import partition_directory
from millstream.model.cluster import FeatureLevel, Incarnation, NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, RaftGroupId
from millstream.model.replication import node_of, replica_id
from millstream.partition.delete_records import delete_records
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.raft.replicated import ReplicatedGroup
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import recover
from sim.brokers.coordinator import TRANSACTIONS_GROUP
from sim.brokers.served import OFFSETS_GROUP, ServedBroker, own_topic_id
from sim.brokers.snapshots import WithoutOwnTopics, check_state, exchange_snapshots
from sim.brokers.world import GROUP, SEGMENT_BYTES
from sim.engine.local_storage import DATA_DIR, place_of
from sim.engine.mailbox import LocalMailbox
from sim.engine.requests import Produced
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.controller.requests import AnyRequest, Results
    from millstream.model.events import PartitionIndex
    from millstream.model.replication import ReplicaId
    from millstream.partition.table import Faulty
    from millstream.peers.calls import CallDone, CallHandler
    from millstream.peers.items import Status
    from millstream.storage.recovery.recovery import RecoveryReport
    from sim.brokers.world import Broker, Cluster
    from sim.engine.local_storage import LocalShard

CONTROLLER_GROUP: Final = RaftGroupId(0)
CLUSTER_ID: Final = "simulatedsimulatedsim1"
_SNAPSHOT_US: Final = 2_000_000
_SHORT_BYTES: Final = 1_000
"""Of a segment of the controller's log, if it is trimmed: a few commands."""
_OWN: Final = frozenset(own_topic_id(group).hex() for group in (GROUP, OFFSETS_GROUP, TRANSACTIONS_GROUP))
"""Directories of topics that the controller knows nothing of."""
_ANSWER_US: Final = 3_000_000
"""Until a call without an answer is given up."""


class _Network:
    """Calls and status beats between controllers, over the simulated network. It is its own ``calls``."""

    def __init__(self, broker: ControlledBroker) -> None:
        self._broker = broker
        self.calls = self
        self.handlers: dict[int, CallHandler] = {}

    def serve(self, method: int, handler: CallHandler) -> None:
        """As `peers.calls.Calls`."""
        self.handlers[method] = handler

    def call(self, node: NodeId, method: int, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        """As `peers.calls.Calls`."""
        mine, to = self._broker, replica_id(node)
        cluster, life = mine.cluster, mine.life
        shard = mine.shard
        assert shard is not None
        if (mine.replica, to) in cluster.cut or not cluster.brokers[to].is_up:
            shard.reactor.call_soon(done, Retriable(f"there is no connection to broker {node}"))
            return
        open_ = True

        def finish(answer: bytes | MillstreamError) -> None:
            nonlocal open_
            if open_ and mine.life == life and mine.is_up:
                open_ = False
                done(answer)

        def answered(answer: bytes | MillstreamError) -> None:
            cluster.send(to, mine.replica, lambda _: finish(answer))

        def arrive(other: Broker) -> None:
            assert isinstance(other, ControlledBroker)
            handler = other.network.handlers[method]
            try:
                handler(mine.replica, payload, timeout_ms, answered)
            except MillstreamError as error:
                answered(error)

        cluster.send(mine.replica, to, arrive)
        shard.reactor.call_later(_ANSWER_US, lambda: finish(OutcomeUnknown(f"broker {node} did not answer")))

    def say(self, node: NodeId, status: Status) -> None:
        """As `peers.network.Network`."""
        sender = self._broker.replica

        def arrive(other: Broker) -> None:
            assert isinstance(other, ControlledBroker)
            other.hear(sender, status)

        self._broker.cluster.send(sender, replica_id(node), arrive)


class _CheckedLifecycle(Lifecycle):
    """Opens partitions, and has their groups checked."""

    broker: ControlledBroker

    def opened(
        self, name: str, topic_id: bytes, index: PartitionIndex, raft_group: RaftGroupId, *more: Any, **rest: Any
    ) -> Partition | Faulty:
        """As `Lifecycle`."""
        broker = self.broker
        history = broker.cluster.history_of(raft_group)
        found = super().opened(name, topic_id, index, raft_group, *more, **rest)
        if not isinstance(found, Partition):
            raise Violation(f"B2: {broker.replica} can't open {name}: {found.reason}")
        if isinstance(found.group, ReplicatedGroup):
            if rest["members"].learns and rest["fresh"] and not found.log.next_offset:
                history.depart(broker.replica)  # it may have been a member before, and has nothing of that
            broker.checks = [one for one in broker.checks if not one.group.closed]
            broker.check(history, found.group)
            broker.watch_installs(found.group)
        return found

    def delete(self, name: str, topic_id: bytes) -> None:
        """As `Lifecycle`."""
        entries = self.broker.table.by_id.get(topic_id, [])
        groups = [entry.raft_group for entry in entries]
        super().delete(name, topic_id)
        for group in groups:
            self.broker.cluster.history_of(RaftGroupId(group)).delete()


class ControlledBroker(ServedBroker):
    """A broker with its part of the controller.

    Lifecycle: as `Broker`.
    """

    snapshot_us = 0
    """Between snapshots of the controller, behind which its log is trimmed; 0 for a log that is kept as a whole."""
    feature_level = FEATURE_LEVEL
    """The highest one that the broker says it knows."""

    def recover(self) -> RecoveryReport:
        """Recover the disk: the controller's log says which topics there are."""
        groups: dict[int, Any] | None = None
        node = node_of(self.replica)

        def locate(group: int) -> LogPlace | None:
            nonlocal groups
            if group in (GROUP, OFFSETS_GROUP, TRANSACTIONS_GROUP):
                return place_of(group, SEGMENT_BYTES, replicated=True)
            if groups is None:
                groups = groups_in_log(self.disk, DATA_DIR, node)
            found = groups.get(group)
            if found is None:
                return None
            topic, index = found
            directory = partition_directory(DATA_DIR, topic.topic_id, index)
            return LogPlace(directory, f"{topic.name}/{index}", 1 << 30, replicated=True)

        now_ms = self.cluster.now // 1000
        report = recover(self.disk, DATA_DIR, locate, shards=1, now_ms=now_ms, in_cluster=True)
        disk: Any = WithoutOwnTopics(self.disk, _OWN)
        if not report.clean or read_note(self.disk, DATA_DIR) is not None:
            remove_stale_topics(disk, DATA_DIR, in_cluster=True)
        remove_left_partitions(disk, DATA_DIR, node)
        forget_note(self.disk, DATA_DIR)
        return report

    def open_groups(self, shard: LocalShard, *, clean: bool) -> None:
        """Open what is there without a controller, then the controller, which opens the rest."""
        super().open_groups(shard, clean=clean)
        context, storage, node = shard.context, shard.storage, NodeId(node_of(self.replica))
        context.mailbox, context.count, context.reactor.stats = LocalMailbox(shard.reactor), 1, shard.stats
        settings = Settings(data_dir=DATA_DIR, node_id=node, shards=1)
        lifecycle = _CheckedLifecycle(
            context, settings, storage, self.table, self.admission, clean=clean, groups=self.raft
        )
        lifecycle.broker = self
        self.join(shard, settings, lifecycle, clean=clean)

    def join(self, shard: LocalShard, settings: Settings, lifecycle: Lifecycle, *, clean: bool) -> None:
        """Open the controller, and what the metadata say; `equip` comes before partitions, `watch` after them."""
        context, storage, node = shard.context, shard.storage, NodeId(node_of(self.replica))
        state = load_committed(self.disk, DATA_DIR)
        placement = load_placement(self.disk, DATA_DIR, 1, state, node)
        self.cache = MetadataCache(state, placement.homes, settings)
        self.follower = follower = Follower(context, self.cache)
        follower.settle = storage.wal.when_durable
        self.partitions = Partitions(
            context, storage, self.cache, follower, self.table, lifecycle, self.has_files, self.replica
        )
        config = controller_log_config(settings, _SHORT_BYTES if self.snapshot_us else None)
        log = storage.registry.open_controller_log(config, clean=clean, replicated=True, expected=state.exists)
        self.controller_group = self.raft.open(CONTROLLER_GROUP, log, self.cluster.first)
        self.network: Any = _Network(self)
        store = SnapshotStore(self.disk, DATA_DIR)
        kept: Any = LaggingLog(log, 0) if self.snapshot_us else KeptLog()
        snapshots = Snapshots(
            context.reactor, self.cache, store, kept, self.disk, DATA_DIR, placement, self.snapshot_us or _SNAPSHOT_US
        )
        self.controller = QuorumController(
            context,
            self.controller_group,
            self.network,
            self.cache,
            follower,
            placement,
            snapshots,
            _says(node, self.feature_level),
            len(self.cluster.first.voters),
        )
        if self.snapshot_us:
            exchange_snapshots(self, snapshots, store)
            check_state(self)
        self.check(self.cluster.histories[CONTROLLER_GROUP], self.controller_group)
        self._on_applied, follower.on_applied = follower.on_applied, self._applied
        self.equip()
        self.partitions.open_all()
        client: Any = self.controller
        GroupMembers(context, self.table, self.cache, client).start()
        self.watch()
        self.controller.start(self.started)

    def equip(self) -> None:
        """Make what a broker has besides, before partitions are opened."""

    def watch(self) -> None:
        """Start what looks at partitions, once they are open."""

    def hear(self, sender: ReplicaId, item: Any) -> None:
        """Another broker says something."""
        self.controller.on_status(sender, item)

    def started(self, error: MillstreamError | None) -> None:
        """The broker is ready, or will be."""

    def _applied(self, revision: int) -> None:
        """Commands up to ``revision`` are applied (E1)."""
        if revision < self.cache.revision:
            self._on_applied(revision)  # it was applied before, and is durable now
            return
        mine = state_hash(self.cache.state)
        other = self.cluster.state_hashes.setdefault(revision, mine)
        if other != mine:
            raise Violation(f"E1: {self.replica} has another state at revision {revision}")
        self._on_applied(revision)

    def has_files(self, topic_id: bytes, index: int) -> bool:
        """Whether the disk has files of a partition."""
        try:
            return bool(self.disk.list(partition_directory(DATA_DIR, topic_id, index)))
        except FileNotFoundError:
            return False

    # What clients ask for

    def submit(self, request: AnyRequest, reply: Callable[[tuple[int, str]], None]) -> None:
        """(error, why) of a request to the controller about one topic."""

        def done(results: Results | MillstreamError) -> None:
            if isinstance(results, MillstreamError):
                reply((int(results.code) or -1, type(results).__name__))
            else:
                reply((int(results[0].error), results[0].message or ""))

        self.controller.submit(request, done)

    def append_to_topic(self, topic: str, batch: bytes, reply: Callable[[Produced], None]) -> None:
        """Append a batch to a topic that the controller made."""
        partition = self.table.local(topic, 0)
        if partition is None:
            reply(Produced(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1))
        else:
            self.append_to(partition, batch, -1, reply)

    def trim_topic(self, topic: str, reply: Callable[[tuple[int]], None]) -> None:
        """Delete all records of a topic that the controller made; (error,)."""
        partition = self.table.local(topic, 0)
        if partition is None:
            reply((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
        else:
            delete_records(partition, Offset(partition.high_watermark), lambda done: reply((done[0],)))


def control(cluster: Cluster, node_id: int) -> ControlledBroker:
    """Make a broker for `Cluster`."""
    return ControlledBroker(cluster, node_id)


def _says(node: NodeId, feature_level: FeatureLevel) -> RegisterBroker:
    profile = BrokerProfile(
        (ListenerAddress("PLAINTEXT", f"host{node}", 9092),),
        PeerAddress(f"host{node}", 9192),
        "",
        1,
        "1",
        feature_level,
    )
    return RegisterBroker(CLUSTER_ID, node, Incarnation(node.to_bytes(16, "big")), profile)
