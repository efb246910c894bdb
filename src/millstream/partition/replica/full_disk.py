"""A leader whose disk is full hands its partitions over: producers are let in where a follower's disk has space.

::

    every LOOK_US, while the disk is full ─► each partition that leads ─► a follower that has everything leads

Whether the follower's disk has space is not known here. If it has not, the follower does the same in its turn; each
leadership is handed over by this shard once in `AGAIN_US` at most, so that full disks cost one handover in that time.
The controller's balancing brings a leadership back after a while, and it is handed over again as long as there is no
space. Where no follower has everything that is committed, the leader stays: consumers are served, producers are
refused.

**Crash.** Nothing is kept. **Overload.** A handover takes no proposals for some milliseconds; `A_LOOK` of them start
at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from millstream.errors import MillstreamError
from millstream.raft.replicated import ReplicatedGroup
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.model.replication import ReplicaId
    from millstream.partition.table import PartitionTable
    from millstream.shard.reactor import Reactor

LOOK_US: Final = 1_000_000
AGAIN_US: Final = 30_000_000
HEARD_US: Final = 2_000_000
"""A follower that answered within this time can take over."""
A_LOOK: Final = 100
"""Handovers that start in one look."""


class HasSpace(Protocol):
    """What is needed of the storage."""

    @property
    def accepts_writes(self) -> bool:
        """False while the disk is full."""
        ...


class FullDisk:
    """Hands over what one shard leads while its disk is full.

    Lifecycle: ``start`` once. Shard: one each. Invariant: ``_tried`` has the handovers of the last `AGAIN_US` while the
    disk is full, and is empty otherwise.
    """

    def __init__(self, reactor: Reactor, storage: HasSpace, table: PartitionTable) -> None:
        self._reactor = reactor
        self._storage = storage
        self._table = table
        self._tried: dict[int, int] = {}
        """When each Raft group was handed over last."""

    def start(self) -> None:
        """Look from now on."""
        self._reactor.call_later(LOOK_US, self._look)

    def _look(self) -> None:
        self._reactor.call_later(LOOK_US, self._look)
        if self._storage.accepts_writes:
            self._tried.clear()
            return
        now = self._reactor.now_us()
        begun = 0
        for number, partition in self._table.by_group.items():
            group = partition.group
            if not isinstance(group, ReplicatedGroup) or not group.leads or begun >= A_LOOK:
                continue
            if now - self._tried.get(number, now - AGAIN_US) < AGAIN_US:
                continue
            best = _has_everything(group, now)
            if best is None:
                continue
            self._tried[number] = now
            begun += 1
            try:
                group.transfer(best)
            except MillstreamError as error:
                operator_log.at(partition.log.name).debug("no handover now: %s", error.message)
            except Exception as error:  # noqa: BLE001 - the boundary
                partition.failed("handover", error)
        if begun:
            operator_log.warning("disk full: %d partitions are handed over to other brokers", begun)


def _has_everything(group: ReplicatedGroup, now: int) -> ReplicaId | None:
    """A voter that is in contact and has on its disk what is committed: the one that has most."""
    voters = group.configuration.voters
    whole = [
        (peer.durable, peer.replica)
        for peer in group.peers
        if peer.replica in voters and peer.durable >= group.committed_position and now - peer.contact_us < HEARD_US
    ]
    return max(whole)[1] if whole else None
