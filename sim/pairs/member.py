"""One broker of a cluster of pairs: the production code from recovery up to the controller, coordinators and archive.

::

    Several ──► Member: QuorumController, Transactions ─ AcrossBrokers, LocalGroups, LeaderNews, InSync, Transfers, …
                        Lifecycle ─ Partition ─ ReplicatedGroup ─ RaftShard ─ Log ─ ShardStorage ─ ChunkDisk ─ SimDisk
                        Archiver, SharedUploads, … ─ ArchiveLink ─ Lane ─ ArchiveWorker ─ store

It is wired as in `app.shard_main`, for one shard. The network is the one of `sim.brokers`; a connection between two
brokers opens when both are up, and again when a cut has healed.

**A stop** is the orderly one of a broker: it hands over what it leads, says that it leaves, and makes all durable.
**A crash** loses what is not synced. What is on its way to the store may arrive.
"""

# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.app.log_in_store import LogInStore
from millstream.app.stale_topics import forget_note, remove_left_partitions, remove_stale_topics
from millstream.app.unclean_cuts import UncleanCuts
from millstream.cluster.client import ControllerClient
from millstream.cluster.failed_replicas import FailedReplicas
from millstream.cluster.leader_news import LeaderNews
from millstream.cluster.leading_brokers import LeadingBrokers
from millstream.cluster.metadata import MetadataListener
from millstream.cluster.producer_ids import ProducerIds
from millstream.cluster.revision_marks import read_note
from millstream.cluster.state_files import KnownGroups, look_at_groups
from millstream.cluster.topic_table import resolved_config
from millstream.cluster.transfers import Transfers
from millstream.coordinator.across_brokers import AcrossBrokers
from millstream.coordinator.local_groups import LocalGroups
from millstream.coordinator.transactions import Transactions
from millstream.core.group.outputs import GroupSettings
from millstream.errors import MillstreamError
from millstream.format.events.chunk import log_directory
from millstream.model.cluster import Incarnation, NodeId
from millstream.model.events import PartitionIndex
from millstream.model.replication import node_of
from millstream.partition.append.admission import Admission
from millstream.partition.append.internal import InternalLogs
from millstream.partition.hop.home import Home
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.replica.full_disk import FullDisk
from millstream.partition.replica.in_sync import InSync
from millstream.partition.table import PartitionTable
from millstream.peers.items import Leaders
from millstream.storage.chunks import ChunkDisk
from millstream.storage.log.event_log import limits_of
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import recover
from millstream.tiers.wal_lives import begin_life
from sim.archive.broker import FaultySlots
from sim.brokers.controlled import ControlledBroker
from sim.engine.local_storage import DATA_DIR, LocalShard
from sim.engine.mailbox import LocalMailbox
from sim.engine.requests import handlers_node
from sim.engine.timeline import SECOND
from sim.engine.violation import Violation
from sim.pairs.archiving import CHECK_MS, make_archiving

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.topic_table import TopicMeta
    from millstream.model.replication import ReplicaId
    from millstream.model.shared import Writer
    from millstream.peers.items import Status
    from millstream.storage.recovery.recovery import RecoveryReport
    from sim.brokers.judge import History
    from sim.brokers.world import Cluster
    from sim.pairs.several import Several

_STORAGE: Final = {"log_retention_check_interval_ms": CHECK_MS, "log_cleaner_backoff_ms": 1_000}
_EXPIRY_MS: Final = 7 * 86_400_000
_HANDOVER_US: Final = SECOND
_HANDOVER_LOOK_US: Final = 10_000


class _DeletedTopics(MetadataListener):
    """What groups have committed for a deleted topic goes, as `coordinator.router` says."""

    def __init__(self, groups: LocalGroups) -> None:
        self._groups = groups

    def topic_deleted(self, topic: TopicMeta) -> None:
        """A topic is deleted."""
        self._groups.topic_deleted(topic.name, topic.topic_id)


class Member(ControlledBroker):
    """Lifecycle: as `sim.brokers.world.Broker`; `stop` in the place of `crash` for an orderly end."""

    at_once = False
    writer: Writer | None = None
    """Its life in the store, if acknowledgements wait for that."""

    def __init__(self, cluster: Cluster, node_id: int, world: Several) -> None:
        self.history_of_archive = world
        self.slots = FaultySlots(world.chance)
        self.node_id = NodeId(node_id)
        self.settings = world.settings_of(self.node_id)
        self.jump_ms = 0
        """By how much its wall clock is ahead."""
        self.is_ready = self.begins = False
        super().__init__(cluster, node_id)

    @property
    def files(self) -> ChunkDisk:
        """Its disk, for another process."""
        return ChunkDisk(self.disk)

    # Life

    def start(self) -> None:
        """Recover and come up, as soon as the store is there if acknowledgements wait for it."""
        self.is_ready, self.begins = False, True
        if self.settings.shared_wal == "object":
            try:
                self.writer = begin_life(self.history_of_archive.faulty, self.node_id, self._incarnation().hex(), 1)
            except MillstreamError:
                self.cluster.after(SECOND, self._start_again)
                return
        self.begins = False
        super().start()

    def _start_again(self) -> None:
        if self.begins:
            self.start()

    def crash(self, *, torn: bool = True) -> None:
        """Lose what is not synced."""
        self.begins = False
        if self.shard is not None:
            super().crash(torn=torn)

    def stop(self, done: Callable[[], None]) -> None:
        """As `app.shard_main` and `app.peer_shard` stop a broker."""
        shard = self.shard
        assert shard is not None
        reactor, storage = shard.reactor, shard.storage
        limit_us = reactor.now_us() + _HANDOVER_US

        def hand_over() -> None:
            if self.raft.leave() and reactor.now_us() < limit_us:
                reactor.call_later(_HANDOVER_LOOK_US, hand_over)
            else:
                self.controller.leave(drain)

        def drain() -> None:
            self.groups.stop()
            self.transactions.stop()
            self.controller.stop(stop_storage)

        def stop_storage() -> None:
            self.archiver.stop()
            self.raft.stop()
            storage.stop(stopped)

        def stopped() -> None:
            self.shard = None
            done()

        hand_over()

    def make_shard(self, *, clean: bool) -> LocalShard:
        """Its storage, with a view of the disk of its own for each process."""
        cluster = self.cluster
        shard = LocalShard(
            self.files,
            cluster.chance(f"steps {self.replica}"),
            now_ms=cluster.now // 1000,
            clean=clean,
            settings={**_STORAGE, **self.history_of_archive.storage_settings},
            processes_disk=self.files,
        )
        shard.reactor.jump_ms = self.jump_ms
        return shard

    def recover(self) -> RecoveryReport:
        """As `app.recovery`."""
        disk, settings, known = self.files, self.settings, list[KnownGroups]()
        node = node_of(self.replica)

        def locate(group: int) -> LogPlace | None:
            if not known:
                known.append(look_at_groups(disk, DATA_DIR, node))
            if group not in known[0].held:
                return None
            topic, index = known[0].held[group]
            config = resolved_config(topic.name, topic.configs, settings)
            events, place = config.has_events, PartitionIndex(index)
            directory = log_directory(DATA_DIR, topic.topic_id, topic.name, place, events=events)
            limits = limits_of(config) if events else None
            name, is_elected = f"{topic.name}/{index}", group in known[0].elected
            return LogPlace(directory, name, config.segment_bytes, is_elected, limits, config.is_archived)

        now_ms = self.cluster.now // 1000 + self.jump_ms
        report = recover(disk, DATA_DIR, locate, shards=1, now_ms=now_ms, in_cluster=True)
        if not report.clean or read_note(disk, DATA_DIR) is not None:
            remove_stale_topics(disk, DATA_DIR, in_cluster=True, archives=True)
        remove_left_partitions(disk, DATA_DIR, node)
        forget_note(disk, DATA_DIR)
        return report

    def _incarnation(self) -> Incarnation:
        return Incarnation(self.node_id.to_bytes(16, "big"))

    # Parts

    def open_groups(self, shard: LocalShard, *, clean: bool) -> None:
        """Open the controller, which opens the rest."""
        context = shard.context
        context.mailbox, context.count, context.reactor.stats = LocalMailbox(shard.reactor), 1, shard.stats
        self.table = PartitionTable()
        self.admission = Admission(context.reactor, shard.storage)
        self.node = handlers_node(shard, self.admission)
        self.logs = InternalLogs(self.table)
        self.groups = LocalGroups(context, GroupSettings(), _EXPIRY_MS)
        self.logs.on_open(self._on_open)
        self.logs.on_close(self._on_close)
        self.lifecycle = Lifecycle(
            context, self.settings, shard.storage, self.table, self.admission, clean=clean, groups=self.raft
        )
        self.join(shard, self.settings, self.lifecycle, clean=clean)

    def equip(self) -> None:
        """What stands beside the controller, before partitions are opened."""
        shard = self.shard
        assert shard is not None
        context, cache, loop, settings = shard.context, self.cache, shard.context.reactor, self.settings
        made = make_archiving(
            self,
            settings.shared_wal_interval_ms * 1000,
            lambda: list(cache.state.topics.by_id),
            self.cache.description,
            self._begin_anew,
            calls=self.network.calls,
            held=True,
        )
        self.archiver = self.lifecycle.archiver = made.archiver
        made.sweeps.start(self._others, lambda: self.controller.is_deciding)
        client = ControllerClient(context, cache)
        self.client = client
        leading = LeadingBrokers(cache, self.network.calls)
        storage, link = shard.storage, made.link
        self.unclean = UncleanCuts(loop, storage, self.table, self.partitions, cache, client, leading, link)
        FailedReplicas(context, lambda: self.table.failed, cache, self.network.calls).start()
        home = Home(context, self.table, self.admission)
        across = AcrossBrokers(self.network.calls, cache, home.markers.write)
        self.producer_ids = ProducerIds(client, loop)
        self.transactions: Any = Transactions(
            context, settings, cache, client, self.logs, across.write, self.producer_ids.next, across
        )
        self.admission.verification.ask = self.groups.ask_coordinator = self.transactions.verify
        cache.subscribe(_DeletedTopics(self.groups))
        self.news = LeaderNews(self.network, cache, self.follower)
        self.log_in_store = None
        if made.wal is not None:
            self.log_in_store = LogInStore(context, self.table, made.wal, cache, self.controller, self._begin_anew)
            self.controller.plans.take_overs.end_lives = made.link.end_lives

    def started(self, error: MillstreamError | None) -> None:
        """The broker is registered, or refused."""
        if error is not None:
            raise Violation(f"broker {self.node_id} does not start: {error}")
        self.is_ready = True
        if self.log_in_store is not None:
            self.log_in_store.registered()

    def watch(self) -> None:
        """What starts once partitions are open."""
        shard, cache = self.shard, self.cache
        assert shard is not None
        follower = self.follower
        in_sync = InSync(
            shard.context,
            self.table,
            self.node_id,
            follower.report_leader,
            follower.report_heard,
            lambda: frozenset(cache.state.registry.alive()),
            lambda: cache.settings.replica_lag_time_max_ms * 1000,
            self.raft.quiet,
        )
        in_sync.start()
        FullDisk(shard.context.reactor, shard.storage, self.table).start()
        self.partitions.on_moved = in_sync.replicas_changed
        self.transfers = Transfers(shard.context, cache, self.network, self.raft.groups.get)
        self.transfers.start_balancing(lambda: self.controller.is_deciding)
        self.archiver.purges.resume()
        self.lifecycle.start_expiry()
        self.lifecycle.start_looks()
        self.history_of_archive.connects(self)

    def _others(self) -> list[NodeId]:
        return [node for node in self.cache.state.registry.alive() if node != self.node_id]

    def _begin_anew(self, _: str) -> None:
        life = self.life

        def again() -> None:
            if self.life == life and self.is_up:
                self.crash(torn=False)
                self.start()

        self.cluster.after(0, again)

    def hear(self, sender: ReplicaId, item: Status | Leaders) -> None:
        """Another broker says something."""
        if isinstance(item, Leaders):
            self.news.learn(sender, item.leaderships)
        else:
            super().hear(sender, item)

    def has_files(self, topic_id: bytes, index: int) -> bool:
        """Whether the disk has files of a partition."""
        topic = self.cache.topic_by_id(topic_id)
        assert topic is not None
        events = topic.config.has_events
        directory = log_directory(DATA_DIR, topic_id, topic.name, PartitionIndex(index), events=events)
        try:
            return bool(self.files.list(directory))
        except FileNotFoundError:
            return False

    # The invariants of Raft are judged by `sim.brokers`, for logs that are not compacted.

    def check(self, history: History, group: Any) -> None:
        """Nothing."""

    def note_message(self, to: ReplicaId, item: Any) -> None:
        """Nothing."""

    def note_term(self, beat: Any) -> None:
        """Nothing."""

    def step(self) -> None:
        """Do one thing."""
        assert self.shard is not None
        self.idle = not self.shard.step()
