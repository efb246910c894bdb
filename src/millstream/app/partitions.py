"""Partitions follow the metadata: opened when a topic appears, configured and deleted as commands say.

The metadata layer knows topics, the partition layer knows logs; this module connects them on every shard. A partition
of one replica with a newer leader epoch than the metadata's (after a crash) is reported, so that all shards show the
same to clients; of several replicas the one that is elected reports itself (``partition.replica.in_sync``).
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from uuid import UUID

from millstream.cluster.follower import Follower
from millstream.cluster.metadata import MetadataCache, MetadataListener, Steps
from millstream.cluster.placement import ELSEWHERE
from millstream.cluster.topic_table import PartitionMeta, TopicMeta
from millstream.config.settings import Settings
from millstream.config.topic_properties import TopicConfig
from millstream.core.controller.cuts import Cut
from millstream.errors import MillstreamError
from millstream.format.epochs import LogState
from millstream.format.manifest import ArchiveId
from millstream.model.cluster import NodeId
from millstream.model.events import PartitionIndex
from millstream.model.quantities import Offset, RaftGroupId
from millstream.model.replication import ReplicaId, Term
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.partition.replica.cutting import Cutting
from millstream.partition.replica.members import Members
from millstream.partition.replica.moving import Place
from millstream.partition.table import Faulty, PartitionTable
from millstream.raft.replicated import ReplicatedGroup
from millstream.shard.context import Shard
from millstream.storage.shard_storage import ShardStorage
from millstream.tiers.hot_tier.provider import EVERY_OFFSET
from millstream.tiers.messages import Newest


class Partitions(MetadataListener):
    """Keeps one shard's partitions in step with its metadata cache.

    Lifecycle: made with the shard; ``open_all`` before the reactor runs.
    """

    def __init__(
        self,
        shard: Shard,
        storage: ShardStorage,
        metadata: MetadataCache,
        follower: Follower,
        table: PartitionTable,
        lifecycle: Lifecycle,
        existed: Callable[[bytes, int], bool],
        me: ReplicaId,
    ) -> None:
        """``existed(topic id, index)`` says whether a partition that the controller's log creates had files when this
        broker started: a broker of a cluster applies the last commands of its log again after a start.
        ``me`` is this broker in the configurations of Raft groups.
        """
        self._existed = existed
        self._me = lifecycle.me = me
        self._metadata = metadata
        self._follower = follower
        self._table = table
        self._lifecycle = lifecycle
        self._shard = shard
        self._storage = storage
        self.repairing: set[int] = set()
        """Raft groups of partitions that are being cut or repaired."""
        self.on_moved: Callable[[RaftGroupId], None] = _nobody
        """Called with the Raft group of a partition that others hold than before."""
        self._new: deque[tuple[int, Partition]] = deque()
        """Replicas made by commands of this broker's life that have not started, and the revision after the command."""
        follower.begin = self.begin
        metadata.subscribe(self)

    def open_all(self) -> None:
        """Open the partitions that exist when the broker starts."""
        self._lifecycle.follow(self._metadata.settings)
        for topic in self._metadata.topics():
            for index in range(len(topic.partitions)):
                self._open(topic, index, fresh=False)
        self._storage.registry.forget_summaries()
        for raft_group, cut in self._metadata.state.cuts.items():
            place = self._metadata.group_place(raft_group)
            if place is not None and cut.is_to_lead(self._me):
                self._shard.reactor.call_soon(self._cut, *place)

    def reopen(self, entry: Faulty) -> Partition | Faulty:
        """Open a partition that failed again. Raises OSError if the disk is full."""
        topic = self._metadata.topic(entry.name)
        assert topic is not None, "a deleted topic has no entry"
        opened = self._lifecycle.reopen(topic.topic_id, entry, topic.config, self._members(topic, entry.index))
        if isinstance(opened, Partition) and not opened.group.elects:
            self._report(opened, fresh=False)  # it leads in a new term
        return opened

    def cut_of(self, raft_group: RaftGroupId) -> Cut | None:
        """The newest unclean cut of a partition."""
        return self._metadata.state.cuts.get(raft_group)

    def config_of(self, entry: Faulty) -> TopicConfig:
        """The configuration of its topic."""
        return self._metadata.topic_config(entry.name)

    def _cut(self, topic_id: bytes, index: int) -> None:
        Cutting(
            self._shard.reactor, self._storage, self._table, self._lifecycle, self, topic_id, PartitionIndex(index)
        ).begin()

    def stop_voting(self, entry: Faulty) -> None:
        """A partition that failed is being repaired."""
        self._lifecycle.stop_voting(entry.raft_group)

    def metadata_of(self, entry: Faulty) -> PartitionMeta | None:
        """What this broker knows of its leader and replicas; None if it was deleted."""
        return self._metadata.partition(entry.name, entry.index)

    def has_others(self, entry: Faulty) -> bool:
        """Whether other brokers hold the partition, too, or may be members of its group already."""
        part = self.metadata_of(entry)
        return part is not None and any(node != self._metadata.node_id for node in part.replicas)

    def known_term(self, entry: Faulty) -> Term:
        """The newest term in which the partition was led or cut, as far as this broker knows."""
        part, cut = self._metadata.partition(entry.name, entry.index), self.cut_of(entry.raft_group)
        return Term(max(0, 0 if part is None else part.leader_epoch, 0 if cut is None else cut.term))

    def replay_set_aside(self, entry: Faulty) -> None:
        """Put what was set aside of a partition into its segments. Raises Corruption if it does not follow, OSError."""
        name, is_elected = f"{entry.name}/{entry.index}", self._members_of(entry).elect
        registry = self._storage.registry
        registry.replay_set_aside(entry.directory, name, self.config_of(entry), replicated=is_elected)

    def ask_store(self, entry: Faulty, known: LogState, done: Callable[[Newest | MillstreamError], None]) -> None:
        """Ask what the object store has of a partition of an archived topic (`tiers.newest`), whose end will be another
        one. ``known`` is what its ``epochs`` file says.
        """
        topic, archiver = self._metadata.topic(entry.name), self._lifecycle.archiver
        assert topic is not None and archiver is not None, "an archived topic without an archive process"
        owner = ArchiveId(UUID(bytes=topic.topic_id), PartitionIndex(entry.index))
        archiver.link.forget(owner, Offset(0), EVERY_OFFSET)  # at offsets that are given up other blocks may start
        archiver.link.ask_newest(owner, known, done, shared=topic.config.is_shared)

    def _members_of(self, entry: Faulty) -> Members:
        topic = self._metadata.topic(entry.name)
        assert topic is not None, "a deleted topic has no entry"
        return self._members(topic, entry.index)

    def topic_created(self, topic: TopicMeta) -> Steps:
        return self._open_from(topic, 0)

    def partitions_added(self, topic: TopicMeta, first_index: int) -> Steps:
        return self._open_from(topic, first_index)

    def topic_deleted(self, topic: TopicMeta) -> Steps:
        self._lifecycle.delete(topic.name, topic.topic_id)
        return None

    def replicas_changed(self, topic: TopicMeta, indexes: Sequence[int]) -> Steps:
        for index in indexes:
            part = topic.partitions[index]
            home = None if part.home_shard == ELSEWHERE else part.home_shard
            group = RaftGroupId(part.raft_group)
            place = Place(
                topic.name,
                topic.topic_id,
                PartitionIndex(index),
                group,
                home,
                topic.config,
                self._members(topic, index),
                Term(max(0, part.leader_epoch)),
            )
            self._lifecycle.change_replicas(place)
            self.on_moved(group)
            yield

    def partition_cut(self, topic: TopicMeta, index: int) -> Steps:
        self._cut(topic.topic_id, index)

    def configs_changed(self, topic: TopicMeta) -> Steps:
        self._lifecycle.configure(topic.name, topic.config)
        return None

    def settings_changed(self, settings: Settings) -> Steps:
        self._lifecycle.follow(settings)
        return None

    def begin(self, revision: int) -> Generator[None, None, None]:
        """New replicas that commands below ``revision`` have made start: their creation is noted durably."""
        while self._new and self._new[0][0] <= revision:
            group = self._new.popleft()[1].group
            if isinstance(group, ReplicatedGroup):
                group.log.guard("beginning", group.begin)
            yield

    def _open_from(self, topic: TopicMeta, first_index: int) -> Steps:
        for index in range(first_index, len(topic.partitions)):
            self._open(topic, index, fresh=not self._existed(topic.topic_id, index))
            yield

    def _wait_to_begin(self, members: Members, *, fresh: bool) -> Callable[[Partition], None] | None:
        """What to do with a replica that is about to be opened; None if it does not start (`core.raft.beginning`)."""
        revision = self._metadata.revision
        if not fresh or members.first_term is None:
            return None
        return lambda opened: self._new.append((revision, opened))

    def _open(self, topic: TopicMeta, index: int, *, fresh: bool) -> None:
        part = topic.partitions[index]
        if part.home_shard == ELSEWHERE:
            group = RaftGroupId(part.raft_group)
            self._lifecycle.enter_elsewhere(topic.name, topic.topic_id, PartitionIndex(index), group)
            return
        members = self._members(topic, index)
        self._lifecycle.open(
            topic.name,
            topic.topic_id,
            index,
            RaftGroupId(part.raft_group),
            part.home_shard,
            topic.config,
            fresh=fresh,
            members=members,
            known_term=Term(max(0, part.leader_epoch)),
            on_open=self._wait_to_begin(members, fresh=fresh) if members.elect else partial(self._report, fresh=fresh),
        )

    def _report(self, opened: Partition, *, fresh: bool) -> None:
        """The term of a partition of one replica may be another one than the metadata's, and other brokers wait for
        the leader of one that was just created (`cluster.first_leaders`).
        """
        known = self._metadata.partition(opened.name, opened.index)
        awaited = fresh and len(self._metadata.state.registry.brokers) > 1
        if known is not None and (awaited or known.leader_epoch != opened.leader_epoch):
            self._follower.report_leader(opened.topic_id, opened.index, opened.leader_epoch)

    def _members(self, topic: TopicMeta, index: int) -> Members:
        """What the replica here is given of its group's members, and of an unclean cut."""
        return self._first_members(topic, index)._replace(
            cut=self._metadata.state.cuts.get(topic.partitions[index].raft_group)
        )

    def _first_members(self, topic: TopicMeta, index: int) -> Members:
        """What the replica here is given of its group's members. A group whose members have changed is known to the
        state with its first ones; the others have had the same ever since.
        """
        part = topic.partitions[index]
        state = self._metadata.state
        brokers = state.registry.brokers
        now = tuple(brokers[NodeId(each)].replica for each in part.replicas if NodeId(each) in brokers)
        origin = state.origins.get(part.raft_group)
        alone = part.replicas in ((), (self._metadata.node_id,)) and part.raft_group not in state.moves
        restores = alone and self._lifecycle.waits_for_store(topic.config)
        if origin is None and len(part.replicas) == 1 and now in ((), (self._me,)):
            return Members(restores=restores)
        if alone and part.replicas:
            return Members((self._me,), is_alone=True, restores=restores)
        first = now if origin is None else origin.voters
        if self._me not in first or (origin is not None and self._metadata.node_id in origin.departed):
            return Members(now, learns=True, restores=restores)
        was_alone = len(first) == 1 and part.raft_group in state.moves
        created = state.topics.by_id[topic.topic_id].partitions[index]
        changed = () if origin is None else now
        return Members(first, was_alone=was_alone, now=changed, first_term=created.first_term)


def _nobody(_: int) -> None:
    """Default callback without effect."""
