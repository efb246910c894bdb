"""Which replicas of the partitions that this shard leads are in sync: reported whenever it changes, and in the metrics.

::

    leader serves ─► at once     ┐
    every PERIOD_US              ┴► walk ─► what the group knows of its peers ─► report(topic, index, epoch, in sync)

A replica is in sync as long as it has had everything that the leader had, on its disk, within the last
``replica.lag.time.max.ms``, and its broker is alive. The leader itself always is. A new leader counts those who have
everything that is committed, and the others as soon as they do. A replica that lost some of it is out at once.

A replica that follows reports its leader. One without a leader says so, after some seconds in stronger words: its
broker may be cut off from the others, and clients that ask it would be sent to a former leader.

The answer is for clients and operators, and refuses acks=all below ``min.insync.replicas``, after another look at what
the peers have: the last walk may be half a second ago. What is committed depends on a majority of the disks, not on
this.

**Crash.** No state is stored: a new leader starts without it. **Overload.** The walk is background work, in slices; it
costs some microseconds for each partition with several replicas. A partition at rest is left out while nothing has
changed: if this broker leads it and all replicas on live brokers are in sync, or if its leader was reported. Each walk
of `WHOLE` has all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from millstream.model.cluster import LOST, UNKNOWN, NodeId
from millstream.model.replication import NO_REPLICA, node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Set as AbstractSet

    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import RaftPosition, ReplicaId, Term
    from millstream.partition.partition import Partition
    from millstream.partition.table import PartitionTable
    from millstream.shard.context import Shard

PERIOD_US: Final = 500_000
AGAIN: Final = 10
"""Walks in which a leader reports after a change of replicas: others may take over the change a little later, and the
report names replicas by their places in the list.
"""
WHOLE: Final = 20
"""Every so many walks leave out nothing."""
LOST_US: Final = 3_000_000
"""An election takes less than this, unless no majority is reached."""
_SHARE: Final = 0.2
_SLICE: Final = 16


class _Seen:
    """What was seen of one partition in one term."""

    __slots__ = ("caught_up_us", "durable", "end", "in_sync", "term")

    def __init__(self, term: Term, end: RaftPosition) -> None:
        self.term = term
        self.end = end
        """The leader's log end at the last look."""
        self.caught_up_us: dict[ReplicaId, int] = {}
        """When a peer last had everything, as far as known; without those who never had in this term."""
        self.durable: dict[ReplicaId, RaftPosition] = {}
        """What a peer had on its disk at the last look."""
        self.in_sync: tuple[int, ...] = ()
        """What was reported."""


class _Figures(msgspec.Struct):
    """What one walk counts; the metrics have the same names after ``replica_``."""

    count: int = 0
    leaders: int = 0
    leaderless: int = 0
    under_replicated: int = 0
    lost: int = 0
    lag_max: int = 0
    term_max: int = 0


class _Still:
    """Partitions that walks leave out."""

    def __init__(self) -> None:
        self.alive: frozenset[int] = frozenset()
        """Brokers that were alive in the walks that found them."""
        self.leading: set[int] = set()
        """Raft groups that lead, with all replicas in sync whose brokers are alive."""
        self.short: set[int] = set()
        """Those of ``leading`` that have other replicas."""
        self.lag_max = 0
        """The largest number of records that one of the others lacked."""
        self.following: set[int] = set()
        """Raft groups whose leader was reported."""
        self.term_max = 0

    def keep(self, groups: AbstractSet[int]) -> None:
        """Forget all but ``groups``."""
        self.leading &= groups
        self.short &= groups
        self.following &= groups


class InSync:
    """The walk over the partitions of one shard.

    Lifecycle: ``start`` once, before the reactor runs. Shard: one each.
    """

    def __init__(
        self,
        shard: Shard,
        table: PartitionTable,
        node: NodeId,
        report: Callable[[bytes, int, int, tuple[int, ...]], None],
        report_heard: Callable[[bytes, int, int, int], None],
        alive: Callable[[], frozenset[int]],
        lag_us: Callable[[], int],
        quiet: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        """``node`` is this broker. ``report(topic id, partition index, leader epoch, node ids in sync)`` is called for
        what changed where this shard leads, ``report_heard(topic id, partition index, term, node of the leader, UNKNOWN
        or LOST)`` where it follows. ``alive()`` gives the brokers that are not fenced, ``lag_us()`` the time after
        which a replica that lags is not in sync. ``quiet()`` gives the Raft groups that lead and of which every peer
        has everything and was there of late, and those whose leader was there of late; none of which the term, the role
        or the leader has changed since the last call.
        """
        self._reactor = shard.reactor
        self._table = table
        self._node = node
        self._report = report
        self._report_heard = report_heard
        self._silent_since_us: dict[int, int] = {}
        """Raft groups whose replica here has no leader, and since when."""
        self._heard: dict[int, tuple[int, int]] = {}
        """What was reported last of the leader of a group that this replica follows: (term, node)."""
        self._alive = alive
        self._lag_us = lag_us
        self._quiet = quiet
        self._still = _Still()
        self._walks = 0
        self._seen: dict[int, _Seen] = {}
        self._again: dict[int, int] = {}
        """Raft groups to be reported in the next walks although nothing has changed, and in how many."""
        self._figures = _Figures()
        stats = shard.stats
        self._gauges = {
            "count": stats.gauge("replica_count"),
            "leaders": stats.gauge("replica_leaders"),
            "leaderless": stats.gauge("replica_leaderless"),
            "under_replicated": stats.gauge("replica_under_replicated"),
            "lost": stats.gauge("replica_lost"),
            "lag_max": stats.gauge("replica_lag_max"),
            "term_max": stats.gauge("replica_term_max"),
        }
        self._elections = shard.stats.counter("replica_elections")

    def start(self) -> None:
        """Look from now on."""
        self._table.on_lead(self._leads)
        self._table.on_open(self._opened)
        self._table.on_close(self._resigned)
        self._later()

    def replicas_changed(self, raft_group: RaftGroupId) -> None:
        """Other brokers hold a partition now: report again what there is to report."""
        self._again[raft_group] = AGAIN

    def _later(self) -> None:
        self._reactor.call_later(PERIOD_US, self._begin)

    def _begin(self) -> None:
        self._reactor.background("other", self._walk(), _SHARE, self._later)

    def _walk(self) -> Generator[None, None, None]:
        figures = self._figures = _Figures()
        quiet, alive, by_group = self._quiet(), self._alive(), self._table.by_group
        still = self._still
        if alive != still.alive or self._walks % WHOLE == 0:
            still = self._still = _Still()
            still.alive = alive
        self._walks += 1
        still.keep((quiet & by_group.keys()) - self._again.keys())
        figures.leaders, figures.term_max = len(still.leading), still.term_max
        figures.count = len(still.leading) + len(still.following)
        figures.under_replicated, figures.lag_max = len(still.short), still.lag_max
        for number, raft_group in enumerate(by_group.keys() - still.leading - still.following, 1):
            partition = by_group.get(raft_group)
            if partition is not None and partition.group.elects:
                try:
                    self._visit(partition, figures, still if raft_group in quiet else None)
                except Exception as error:  # noqa: BLE001 - the boundary
                    partition.failed("look at its replicas", error)
            if number % _SLICE == 0:
                yield
        for kept in (self._seen, self._heard, self._silent_since_us, self._again):
            for gone in kept.keys() - by_group.keys():
                del kept[gone]
        for name, gauge in self._gauges.items():
            gauge.set(getattr(figures, name))

    def _visit(self, partition: Partition, figures: _Figures, still: _Still | None) -> None:
        """Look at one partition. It may join ``still`` if that is given."""
        group, raft_group = partition.group, partition.raft_group
        figures.count += 1
        figures.lost += partition.log.files.lost
        figures.term_max = max(figures.term_max, group.term)
        under_replicated = figures.under_replicated
        if group.is_serving:
            figures.leaders += 1
            joins = self._look_at(partition)
        else:
            figures.leaderless += group.leader == NO_REPLICA
            self._seen.pop(raft_group, None)
            self._listen(partition)
            joins = group.leader != NO_REPLICA
        if still is not None and joins and not partition.log.files.lost:
            (still.leading if group.is_serving else still.following).add(raft_group)
            still.term_max = max(still.term_max, group.term)
            if figures.under_replicated > under_replicated:
                still.short.add(raft_group)
                still.lag_max = max(still.lag_max, *(group.end_position - peer.durable for peer in group.peers))

    def _leads(self, partition: Partition) -> None:
        """This replica leads, and does not know yet what is committed."""
        partition.replicas.recount = self._recount

    def _recount(self, partition: Partition) -> None:
        """Count the replicas in sync between two walks."""
        seen = self._seen.get(partition.raft_group)
        if partition.group.is_serving and seen is not None and seen.term == partition.group.term:
            partition.replicas.count = len(self._count(partition, seen))

    def _opened(self, partition: Partition) -> None:
        """This replica serves from now on."""
        try:
            self._look_at(partition)
        except Exception as error:  # noqa: BLE001 - the boundary
            partition.failed("look at its replicas", error)

    def _resigned(self, partition: Partition) -> None:
        """This replica leads no more; clients are not to be sent to it."""
        if partition.group.elects and not partition.closed:
            self._tell_heard(partition, UNKNOWN)

    def _listen(self, partition: Partition) -> None:
        """Report whom a replica that does not lead takes for the leader, if that has changed."""
        leader = partition.group.leader
        now = self._reactor.now_us()
        if leader != NO_REPLICA:
            self._silent_since_us.pop(partition.raft_group, None)
            self._tell_heard(partition, node_of(leader))
            return
        since = self._silent_since_us.setdefault(partition.raft_group, now)
        self._tell_heard(partition, LOST if now - since >= LOST_US else UNKNOWN)

    def _tell_heard(self, partition: Partition, leader: int) -> None:
        heard = (partition.group.term, leader)
        if self._heard.get(partition.raft_group) != heard:
            self._heard[partition.raft_group] = heard
            partition.wake_readers()  # who reads from this replica looks at the epoch again
            self._report_heard(partition.topic_id, partition.index, *heard)

    def _look_at(self, partition: Partition) -> bool:
        """Look at a partition that leads. Returns whether all its replicas are in sync whose brokers are alive, and
        that is reported.
        """
        group = partition.group
        peers = group.peers
        if not group.elects:
            return True  # always in sync with itself
        now = self._reactor.now_us()
        seen = self._seen.get(partition.raft_group)
        if seen is None or seen.term != group.term:
            seen = self._seen[partition.raft_group] = _Seen(group.term, group.committed_position)
            self._elections.inc()
            self._heard.pop(partition.raft_group, None)
            self._silent_since_us.pop(partition.raft_group, None)
            if not partition.log.next_offset:
                seen.caught_up_us = {peer.replica: now for peer in peers}
        alive = self._alive()
        nodes = self._count(partition, seen)
        self._figures.lag_max = max(self._figures.lag_max, *(group.end_position - peer.durable for peer in peers), 0)
        seen.end = group.end_position
        partition.replicas.count = len(nodes)
        self._figures.under_replicated += len(nodes) <= len(peers)
        again = self._again.pop(partition.raft_group, 0)
        if again > 1:
            self._again[partition.raft_group] = again - 1
        if nodes != seen.in_sync or again:
            seen.in_sync = nodes
            self._report(partition.topic_id, partition.index, group.term, nodes)
        return again <= 1 and len(nodes) > sum(node_of(peer.replica) in alive for peer in peers)

    def _count(self, partition: Partition, seen: _Seen) -> tuple[int, ...]:
        """The nodes of the replicas that are in sync now, this one among them, sorted."""
        oldest = self._reactor.now_us() - self._lag_us()
        alive = self._alive()
        in_sync = {int(self._node)}
        for peer in partition.group.peers:
            if peer.durable < seen.durable.get(peer.replica, peer.durable):
                seen.caught_up_us.pop(peer.replica, None)  # its disk has lost a part
            seen.durable[peer.replica] = peer.durable
            if peer.durable >= seen.end:
                seen.caught_up_us[peer.replica] = max(peer.contact_us, seen.caught_up_us.get(peer.replica, 0))
            node = NodeId(node_of(peer.replica))
            if seen.caught_up_us.get(peer.replica, oldest) > oldest and node in alive:
                in_sync.add(node)
        return tuple(sorted(in_sync))
