"""Which replicas of the partitions that this shard leads are in sync, reported whenever it changes.

::

    leader serves ─► at once     ┐
    every PERIOD_US              ┴► walk ─► what the group knows of its peers ─► report(topic, index, epoch, in sync)

A replica is in sync as long as it has had everything that the leader had, on its disk, within the last
``replica.lag.time.max.ms``, and its broker is alive. The leader itself always is. A new leader counts those who have
everything that is committed, and the others as soon as they do.

The answer is for clients and operators. What is committed depends on a majority of the disks, not on this.

**Crash.** Nothing is kept: a new leader begins anew. **Overload.** The walk is background work, in slices; it costs
some microseconds for each partition with several replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.model.cluster import NodeId
from millstream.model.replication import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.model.replication import RaftPosition, ReplicaId, Term
    from millstream.partition.partition import Partition
    from millstream.partition.table import PartitionTable
    from millstream.shard.reactor import Reactor

PERIOD_US: Final = 500_000
_SHARE: Final = 0.2
_SLICE: Final = 16


class _Seen:
    """What was seen of one partition in one term."""

    __slots__ = ("caught_up_us", "end", "in_sync", "term")

    def __init__(self, term: Term, end: RaftPosition) -> None:
        self.term = term
        self.end = end
        """The leader's log end at the last look."""
        self.caught_up_us: dict[ReplicaId, int] = {}
        """When a peer last had everything, as far as known; without those who never had in this term."""
        self.in_sync: tuple[int, ...] = ()
        """What was reported."""


class InSync:
    """The walk over the partitions of one shard.

    Lifecycle: ``start`` once, before the reactor runs. Shard: one each.
    """

    def __init__(
        self,
        reactor: Reactor,
        table: PartitionTable,
        node: NodeId,
        report: Callable[[bytes, int, int, tuple[int, ...]], None],
        alive: Callable[[], frozenset[int]],
        lag_us: Callable[[], int],
    ) -> None:
        """``node`` is this broker. ``report(topic id, partition index, leader epoch, node ids in sync)`` is
        called for what changed, ``alive()`` gives the brokers that are not fenced, ``lag_us()`` the time after which a
        replica that lags is not in sync.
        """
        self._reactor = reactor
        self._table = table
        self._node = node
        self._report = report
        self._alive = alive
        self._lag_us = lag_us
        self._seen: dict[int, _Seen] = {}

    def start(self) -> None:
        """Look from now on."""
        self._table.on_open(self._look_at)
        self._later()

    def _later(self) -> None:
        self._reactor.call_later(PERIOD_US, self._begin)

    def _begin(self) -> None:
        self._reactor.background("other", self._walk(), _SHARE, self._later)

    def _walk(self) -> Generator[None, None, None]:
        looked = 0
        for raft_group, partition in list(self._table.by_group.items()):
            if partition.group.is_serving:
                self._look_at(partition)
                looked += 1
                if looked % _SLICE == 0:
                    yield
            else:
                self._seen.pop(raft_group, None)
        for gone in self._seen.keys() - self._table.by_group.keys():
            del self._seen[gone]

    def _look_at(self, partition: Partition) -> None:
        group = partition.group
        peers = group.peers
        if not peers:
            return  # the only replica
        now = self._reactor.now_us()
        seen = self._seen.get(partition.raft_group)
        if seen is None or seen.term != group.term:
            seen = self._seen[partition.raft_group] = _Seen(group.term, group.committed_position)
        oldest = now - self._lag_us()
        alive = self._alive()
        in_sync = [self._node]
        for peer in peers:
            if peer.durable >= seen.end:
                seen.caught_up_us[peer.replica] = peer.contact_us
            node = NodeId(node_of(peer.replica))
            if seen.caught_up_us.get(peer.replica, oldest) > oldest and node in alive:
                in_sync.append(node)
        seen.end = group.end_position
        nodes = tuple(sorted(in_sync))
        if nodes != seen.in_sync:
            seen.in_sync = nodes
            self._report(partition.topic_id, partition.index, group.term, nodes)
