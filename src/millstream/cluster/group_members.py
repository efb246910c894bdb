"""Changes the members of the Raft groups that this shard leads to those in the metadata.

::

    ReplicasMoving, BrokerReplaced ──► leader's shard: `steer`, step by step ──done──► CompleteMoves ──► controller

The members of a group are the replicas of its partition by the disks of their brokers; while the partition moves, those
that it moves to. A new leader continues after its predecessor's last step, because each step is in the group's own log.
A group with the right members costs nothing; the others are checked every ``LOOK_US``.

After an unclean cut (`core.controller.cutting`) the replica that leads tells the controller first, and has other
members only then: a replica that starts empty knows by that whether others may have seen it vote.

A replica on a disk that was declared lost is no member until another disk takes its place. While a replica is missing,
an odd number of the others votes and the rest are learners.

**Crash.** Nothing is kept here: a replica that starts to lead looks at its group once. **Failure.** A completion that
was not taken is reported again. **Overload.** The look is background work, in slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.cluster.metadata import MetadataListener
from millstream.core.controller.commands import MOVING_REPLICAS
from millstream.core.controller.requests import CompleteCut, CompleteMoves
from millstream.model.cluster import NodeId
from millstream.raft.replicated import ReplicatedGroup

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache, Steps
    from millstream.cluster.topic_table import TopicMeta
    from millstream.core.controller.requests import Results
    from millstream.errors import MillstreamError
    from millstream.model.replication import ReplicaId
    from millstream.partition.partition import Partition
    from millstream.partition.table import PartitionTable
    from millstream.shard.context import Shard

LOOK_US: Final = 100_000
_SHARE: Final = 0.2
_SLICE: Final = 16


class GroupMembers(MetadataListener):
    """The groups of one shard.

    Lifecycle: ``start`` once, before the reactor runs. Shard: one each.
    Invariant: a group that this shard leads, and that has not the members that it should have, is in ``_open``.
    """

    def __init__(self, shard: Shard, table: PartitionTable, cache: MetadataCache, client: ControllerClient) -> None:
        self._reactor = shard.reactor
        self._table = table
        self._cache = cache
        self._client = client
        self._open: set[int] = set()
        self._reported: set[int] = set()
        """Groups whose completion is on its way to the controller."""
        self._armed = False
        self._disks: dict[NodeId, ReplicaId] = self._disks_now()

    def start(self) -> None:
        """Start checking."""
        self._cache.subscribe(self)
        self._table.on_open(self._note)

    def replicas_changed(self, topic: TopicMeta, indexes: Sequence[int]) -> Steps:
        """Groups of the topic are to have other members."""
        for index in indexes:
            partition = self._table.local(topic.topic_id, index)
            if partition is not None:
                self._note(partition)

    def broker_changed(self, node: NodeId) -> Steps:
        """A broker with another disk is another member of its groups."""
        disks = self._disks_now()
        replaced = node in self._disks and self._disks[node] != disks.get(node)
        self._disks = disks
        if replaced:
            for partition in list(self._table.by_group.values()):
                self._note(partition)
                yield

    def _disks_now(self) -> dict[NodeId, ReplicaId]:
        return {node: broker.replica for node, broker in self._cache.state.registry.brokers.items()}

    def _note(self, partition: Partition) -> None:
        if partition.group.elects and partition.group.is_serving:
            self._open.add(partition.raft_group)
            self._arm(0)

    def _arm(self, delay_us: int) -> None:
        if not self._armed:
            self._armed = True
            self._reactor.call_later(delay_us, self._look)

    def _look(self) -> None:
        self._reactor.background("other", self._walk(), _SHARE, self._looked)

    def _looked(self) -> None:
        self._armed = False
        if self._open:
            self._arm(LOOK_US)

    def _walk(self) -> Generator[None, None, None]:
        done: list[tuple[int, tuple[int, ...]]] = []
        for number, raft_group in enumerate(list(self._open), 1):
            completed = self._steer(raft_group)
            if completed is not None:
                done.append((raft_group, completed))
            if number % _SLICE == 0:
                yield
        if done:
            self._tell(tuple(done))

    def _steer(self, raft_group: int) -> tuple[int, ...] | None:
        """Take the next step with one group; the replicas of a move that is done."""
        partition = self._table.by_group.get(raft_group)
        group = partition.group if partition is not None else None
        place = self._cache.group_place(raft_group)
        state = self._cache.state
        if not isinstance(group, ReplicatedGroup) or not group.is_serving or place is None:
            self._open.discard(raft_group)  # done by the replica that leads
            return None
        cut = state.cuts.get(raft_group)
        if cut is not None and not cut.done:
            if group.term >= cut.term and raft_group not in self._reported:
                self._tell_cut(raft_group, CompleteCut(*place, cut.term))
            return None  # the others may follow when the controller knows that the cut is done
        if state.feature_level < MOVING_REPLICAS:
            self._open.discard(raft_group)
            return None
        move = state.moves.get(raft_group)
        replicas = move.target if move is not None else state.topics.by_id[place[0]].partitions[place[1]].replicas
        brokers = state.registry.brokers
        if any(NodeId(node) not in brokers for node in replicas):
            return None
        here = tuple(self._disks[NodeId(node)] for node in replicas if not brokers[NodeId(node)].is_lost)
        voters = here if len(here) in (0, len(replicas)) else odd_voters(here, group.configuration.voters)
        if not voters or not group.steer(voters, tuple(one for one in here if one not in voters)):
            return None
        if len(here) < len(replicas):
            self._open.discard(raft_group)  # the others come with `broker_changed`, or the replicas change
            return None
        if move is None:
            self._open.discard(raft_group)
            return None
        return replicas if raft_group not in self._reported else None

    def _tell_cut(self, raft_group: int, request: CompleteCut) -> None:
        """Report to the controller that the replica here leads after an unclean cut, until the metadata show it."""
        self._reported.add(raft_group)

        def answered(_: Results | MillstreamError) -> None:
            self._reported.discard(raft_group)

        self._client.submit(request, answered)

    def _tell(self, done: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
        """Report finished moves to the controller until the metadata show them."""
        groups = [raft_group for raft_group, _ in done]
        self._reported.update(groups)

        def answered(_: Results | MillstreamError) -> None:
            self._reported.difference_update(groups)

        self._client.submit(CompleteMoves(done), answered)


def odd_voters(replicas: tuple[ReplicaId, ...], voting: tuple[ReplicaId, ...]) -> tuple[ReplicaId, ...]:
    """The largest odd number of ``replicas``, those that vote already first, in their order of preference."""
    count = len(replicas) - 1 + len(replicas) % 2
    chosen = sorted(replicas, key=lambda one: one not in voting)[:count]
    return tuple(one for one in replicas if one in chosen)
