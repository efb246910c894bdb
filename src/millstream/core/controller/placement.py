"""Which brokers hold a new partition: rack-aware, then least loaded, leaders spread evenly.

::

    candidates(state) ──► Placer.place(count, factor) ──► replicas of each partition, preferred leader first

Rules, in this order (hard constraints as in Redpanda's allocator, the spread of leaders as in Kafka's):

1. The replicas of a partition are on different brokers.
2. As many different racks as there are, up to the number of replicas. Brokers of unknown rack share one.
3. Brokers that are alive and not drained before the others; the others are never the preferred leader. A broker that
   leaves the cluster, or was declared lost, is given nothing.
4. The broker with the fewest replicas per core; for the preferred leader, the one with the fewest leaderships per core.
5. Of equal ones, the one that follows this leader least; then in turn.

The second place goes to the follower that has it least under this leader: when a broker is down, its leaderships spread
over all others.

The plan depends on the state alone: any broker that decides it decides the same. Bad input: a factor above the number
of brokers, or no broker that is alive, is ``Rejected`` in Kafka's words. Cost: brokers × replicas; 10,000 partitions of
factor 3 on three brokers, the most that one request may ask for, take about 0.25 s; 100 take 2.5 ms.

Overload: a request that would give a broker more than ``partitions.per.shard.max`` partitions a core is ``Rejected``
and says so. The controller's own moves, away from dead brokers and of internal topics, have no such limit.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager

import msgspec

from millstream.core.controller.load import Load
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode

Replicas = Sequence[tuple[int, ...]]
"""The brokers of each partition, preferred leader first."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A broker that may be given replicas."""

    node: NodeId
    rack: str
    cores: int
    """0 if unknown: a broker that is not registered."""
    fenced: bool
    """Not alive, or drained."""
    alive: bool = True


def candidates(state: ControllerState) -> tuple[Candidate, ...]:
    """The brokers of ``state`` that stay, by node id. A cluster that registers no brokers yet has the one that created
    it.
    """
    registry = state.registry
    brokers = registry.brokers
    if not brokers and state.exists:
        return (Candidate(NodeId(state.first_node), "", 0, fenced=False),)
    return tuple(
        Candidate(
            node,
            brokers[node].profile.rack,
            brokers[node].profile.shards,
            fenced=brokers[node].fenced or registry.mode(node) != "serving",
            alive=not brokers[node].fenced,
        )
        for node in registry.nodes()
        if registry.mode(node) != "leaving" and not brokers[node].is_lost
    )


class RoomRule(msgspec.Struct, frozen=True, gc=False):
    """How many partitions brokers may have, by the setting of the broker that decides."""

    per_core: int
    single_cores: int
    """Cores of a broker that is not registered, because it is no cluster."""

    @classmethod
    def of(cls, rules: Rules) -> "RoomRule":
        """The rule in force."""
        return cls(rules.settings.partitions_per_shard_max, rules.settings.shards)


class Placer:
    """Places partitions one after the other, each with those before it counted in.

    Lifecycle: one for each decision; it changes a copy of the load that it is given. What is refused is not counted.
    """

    def __init__(self, brokers: tuple[Candidate, ...], load: Load, room: RoomRule | None = None) -> None:
        """Without ``room`` a broker may have any number of partitions."""
        self._brokers = brokers
        self._load = load.copy()
        self._room = room
        self._ring = {broker.node: place for place, broker in enumerate(brokers)}
        self._next_leader = 0
        self._follows: dict[tuple[int, int], int] = {}
        """Partitions placed here by (leader, follower); ``_seconds``: those that have the follower in second place."""
        self._seconds: dict[tuple[int, int], int] = {}

    def count(self, replicas: Replicas) -> None:
        """Count partitions in whose replicas the client chose.

        Raises:
            Rejected: a broker has no room for them.
        """
        with self._counted():
            for nodes in replicas:
                self._load.add_replicas(nodes)

    def place(self, count: int, replica_count: int, *, unbounded: bool = False) -> Replicas:
        """Replicas for ``count`` new partitions; ``unbounded`` for those that the cluster itself needs.

        Raises:
            Rejected: there are fewer than ``replica_count`` brokers, none is alive, or one has no room for them.
        """
        self._check(replica_count)
        with self._counted(unbounded=unbounded):
            if len(self._brokers) > 1:
                return [self._place_one(replica_count) for _ in range(count)]
            only = tuple(broker.node for broker in self._brokers)
            for _ in range(count):
                self._load.add_replicas(only)
            return [only] * count

    def extend(self, replicas: tuple[int, ...], replica_count: int) -> tuple[int, ...]:
        """The ``replicas`` of an existing partition, already counted in, with further ones up to ``replica_count``.

        Raises:
            Rejected: as ``place``.
        """
        self._check(replica_count)
        added = replicas
        with self._counted():
            while len(added) < replica_count:
                added = (*added, self._follower(added) if added else self._leader())
                self._load.replicas[added[-1]] = self._load.replicas.get(added[-1], 0) + 1
        return added

    @contextmanager
    def _counted(self, *, unbounded: bool = False) -> Generator[None]:
        """Take back what is counted in the block, and raise `Rejected`, if a broker has too many partitions then."""
        before = self._load
        self._load = before.copy()
        try:
            yield
            if not unbounded:
                self._check_room(before)
        except Rejected:
            self._load = before
            raise

    def _check_room(self, before: Load) -> None:
        room = self._room
        if room is None:
            return
        cores = {broker.node: broker.cores or room.single_cores for broker in self._brokers}
        for node, held in self._load.replicas.items():
            allowed = room.per_core * cores.get(NodeId(node), 1)
            if held > allowed and held > before.replicas.get(node, 0):
                raise Rejected(
                    f"Broker {node} would have {held} partitions with their replicas, and partitions.per.shard.max "
                    f"allows {allowed} of them. Add brokers or shards, or raise the setting (docs/scale.md).",
                    ErrorCode.POLICY_VIOLATION,
                )

    def _check(self, factor: int) -> None:
        brokers = self._brokers
        why = ""
        if all(broker.fenced for broker in brokers):
            why = "All brokers are currently fenced."
        elif factor > len(brokers):
            why = (
                f"The target replication factor of {factor} cannot be reached because only {len(brokers)} broker(s) "
                "are registered."
            )
        if why:
            raise Rejected(
                f"Unable to replicate the partition {factor} time(s): {why}", ErrorCode.INVALID_REPLICATION_FACTOR
            )

    def _place_one(self, factor: int) -> tuple[int, ...]:
        leader = self._leader()
        replicas: tuple[int, ...] = (leader,)
        while len(replicas) < factor:
            replicas = (*replicas, self._follower(replicas))
        if factor > 2:
            replicas = self._ordered(replicas)
        self._load.add_replicas(replicas)
        for node in replicas[1:]:
            self._follows[leader, node] = self._follows.get((leader, node), 0) + 1
        return replicas

    def _ordered(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """The followers by how seldom they are second under this leader, fenced ones last."""
        leader, *followers = replicas
        seconds = self._seconds
        fenced = {broker.node for broker in self._brokers if broker.fenced}
        followers.sort(key=lambda node: (node in fenced, seconds.get((leader, node), 0)))
        seconds[leader, followers[0]] = seconds.get((leader, followers[0]), 0) + 1
        return (leader, *followers)

    def _leader(self) -> int:
        """The alive broker with the fewest leaderships per core; of equal ones the next in turn."""
        leaders = self._load.leaders
        size = len(self._brokers)
        chosen = min(
            (broker for broker in self._brokers if not broker.fenced),
            key=lambda broker: (
                leaders.get(broker.node, 0) / (broker.cores or 1),
                (self._ring[broker.node] - self._next_leader) % size,
            ),
        )
        self._next_leader = (self._ring[chosen.node] + 1) % size
        return chosen.node

    def _follower(self, replicas: tuple[int, ...]) -> int:
        """The best broker for one replica more."""
        counts = self._load.replicas
        size = len(self._brokers)
        racks = {broker.rack for broker in self._brokers if broker.node in replicas}
        leader = replicas[0]
        start = self._ring.get(NodeId(leader), 0)
        return min(
            (broker for broker in self._brokers if broker.node not in replicas),
            key=lambda broker: (
                broker.rack in racks,
                broker.fenced,
                counts.get(broker.node, 0) / (broker.cores or 1),
                self._follows.get((leader, broker.node), 0),
                (self._ring[broker.node] - start) % size,
            ),
        ).node


def assignment_problem(nodes: tuple[int, ...], brokers: Collection[int]) -> str | None:
    """Why these cannot be the replicas of a partition, as the rest of Kafka's sentence; None if they can."""
    if not nodes:
        return "includes an empty replica list."
    for node in sorted(nodes):
        if node not in brokers:
            return f"includes broker {node}, but no such broker is registered."
        if nodes.count(node) > 1:
            return f"includes the broker {node} more than once."
    return None
