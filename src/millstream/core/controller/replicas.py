"""Which brokers hold a partition, in the controller's state: moves in flight, the first members of groups whose
members have changed, and unclean cuts (`cuts`).

::

    held by 1, 2, 3 ──ReplicasMoving (1, 2, 4)──► held by 1, 2, 4 and 3, a `Move` ──ReplicasChanged──► held by 1, 2, 4
                       first time: `Origin` (1, 2, 3)                              3 is noted as departed

The origin stays as long as the partition: a replica that opens its log for the first time has to know the first members
of its group, and one that comes back without its files must not take itself for one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.core.controller.commands import ReplicasChanged
from millstream.core.controller.cuts import Cut
from millstream.errors import Corruption
from millstream.model.cluster import NodeId
from millstream.model.replication import ReplicaId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from millstream.core.controller.commands import PartitionState, ReplicasMoving
    from millstream.core.controller.registry import BrokerState
    from millstream.core.controller.rules import Rules
    from millstream.model.quantities import RaftGroupId

    Brokers = Mapping[NodeId, BrokerState]

    Partitions = tuple[PartitionState, ...]


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A partition that moves: the brokers that shall hold it, and those that did when the move started. The replicas of
    the partition are both: first ``target``, then the others.
    """

    topic_id: bytes
    index: int
    target: tuple[int, ...]
    before: tuple[int, ...]


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """The first members of a partition's Raft group whose members have changed since, or may have."""

    voters: tuple[ReplicaId, ...]
    """Its first members, in order of preference."""
    departed: tuple[int, ...] = ()
    """Brokers that held the partition, and removed their files. One that holds it again knows nothing of its past."""


class Changes:
    """What has happened, or happens, to the members of Raft groups since their partitions exist, by Raft group."""

    __slots__ = ("cuts", "moves", "origins")

    def __init__(self) -> None:
        self.moves: dict[int, Move] = {}
        """Partitions that move."""
        self.origins: dict[int, Origin] = {}
        """For those whose members have changed."""
        self.cuts: dict[int, Cut] = {}
        """The newest unclean cut of each partition that had one."""

    def copy(self) -> Changes:
        """Changes of its own with the same content."""
        other = Changes()
        other.moves, other.origins, other.cuts = dict(self.moves), dict(self.origins), dict(self.cuts)
        return other

    def forget(self, raft_group: RaftGroupId) -> None:
        """The partition was deleted."""
        for kept in (self.moves, self.origins, self.cuts):
            kept.pop(raft_group, None)

    def stale_holders(self, partition: PartitionState, replicas: Iterable[int], rules: Rules) -> list[NodeId]:
        """Those of ``replicas`` which may still have a replica that moved away from them."""
        origin = self.origins.get(partition.raft_group)
        departed = () if origin is None else origin.departed
        return [
            NodeId(node)
            for node in replicas
            if node in departed and node not in partition.replicas and rules.is_behind(NodeId(node))
        ]

    def note_origin(self, brokers: Brokers, partition: PartitionState) -> None:
        """The members of a group are about to change: remember the first ones."""
        if partition.raft_group not in self.origins:
            voters = tuple(brokers[NodeId(node)].replica for node in partition.replicas)
            self.origins[partition.raft_group] = Origin(voters)

    def begin_moves(self, brokers: Brokers, topic: str, partitions: Partitions, command: ReplicasMoving) -> Partitions:
        """The partitions of a topic after the command; raises Corruption if it contradicts the state."""
        _check(brokers, topic, partitions, command)
        after = list(partitions)
        for change in command.changes:
            partition = after[change.index]
            group = partition.raft_group
            self.note_origin(brokers, partition)
            under_way = self.moves.get(group)
            before = partition.replicas if under_way is None else under_way.before
            self.moves[group] = Move(command.topic_id, change.index, change.replicas, before)
            others = tuple(node for node in partition.replicas if node not in change.replicas)
            after[change.index] = msgspec.structs.replace(partition, replicas=change.replicas + others)
        return tuple(after)

    def end_moves(self, brokers: Brokers, topic: str, partitions: Partitions, command: ReplicasChanged) -> Partitions:
        """The partitions of a topic after the command; raises Corruption if it contradicts the state."""
        _check(brokers, topic, partitions, command)
        after = list(partitions)
        for change in command.changes:
            before = after[change.index]
            if command.version:
                self.note_origin(brokers, before)
            leader = before.leader if before.leader in change.replicas else change.replicas[0]
            after[change.index] = msgspec.structs.replace(before, replicas=change.replicas, leader=leader)
            self.moves.pop(before.raft_group, None)
            origin = self.origins.get(before.raft_group)
            if origin is not None:
                gone = [node for node in before.replicas if node not in change.replicas and node not in origin.departed]
                self.origins[before.raft_group] = Origin(origin.voters, (*origin.departed, *gone))
        return tuple(after)


def _check(brokers: Brokers, topic: str, partitions: Partitions, command: ReplicasMoving | ReplicasChanged) -> None:
    """Raise Corruption unless the partitions exist and may have these replicas."""
    _require(bool(command.changes), f"no changed replicas of topic {topic}")
    for change in command.changes:
        replicas = change.replicas
        _require(0 <= change.index < len(partitions), f"topic {topic} has no partition {change.index}")
        _require(bool(replicas), f"partition {change.index} of topic {topic} is left without replicas")
        _require(len(set(replicas)) == len(replicas), f"a broker twice in partition {change.index} of {topic}")
        for node in replicas:
            _require(NodeId(node) in brokers, f"broker {node} of topic {topic} is not registered")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Corruption(f"the controller's log contradicts itself: {otherwise}")
