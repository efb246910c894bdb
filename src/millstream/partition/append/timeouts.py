"""Produce calls that wait too long for their commit.

A commit takes a disk sync: well under a millisecond to a few milliseconds. A call that waits for seconds means a disk
that stands still. So no timer is kept per call. A sweep runs once a second while calls wait, and expires those that are
overdue: the acks of each partition of this shard, and the calls that other shards have not answered.

A sweep examines at most ``CALLS_A_SWEEP`` calls of a partition, and as many of those at other shards, so that a disk
that stands still does not cost the reactor its time, too. The next sweep continues after them. Every call is examined
in the end; one after many others is expired a second or more late.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

from millstream.partition.table import PartitionTable
from millstream.shard.reactor import Reactor

_T = TypeVar("_T")

PERIOD_US: Final = 1_000_000
CALLS_A_SWEEP: Final = 1024
"""Calls of one partition that a sweep examines."""


class Waiting(Protocol):
    """A call that may be overdue."""

    def expire(self, now_us: int) -> None: ...


class Away(Protocol):
    """Calls that other shards have to answer (``partition.hop.home.Home``)."""

    def unanswered(self) -> Sequence[Waiting]: ...


class AckTimeouts:
    """The sweeps of one shard. ``armed`` is false while no call waits; the next call that waits must ``arm``.

    ``_reached`` has the number of calls examined so far where a sweep did not examine all: by Raft group (its
    complement for acks=1), or -1 for calls at other shards. Each sweep replaces it.
    """

    __slots__ = ("_away", "_reactor", "_reached", "_table", "armed")

    def __init__(self, reactor: Reactor, table: PartitionTable, away: Away) -> None:
        self._reactor = reactor
        self._table = table
        self._away = away
        self._reached: dict[int, int] = {}
        self.armed = False

    def arm(self) -> None:
        """Have a sweep run after ``PERIOD_US``."""
        self.armed = True
        self._reactor.call_at(self._reactor.now_us() + PERIOD_US, self._sweep)

    def _sweep(self) -> None:
        self.armed = False
        reached, self._reached = self._reached, {}
        due: list[Waiting] = []
        for raft_group, partition in self._table.by_group.items():
            if partition.waiters.acks:
                due.extend(call for _, call, _ in self._next(raft_group, partition.waiters.acks, reached))
            if partition.waiters.own_acks:
                due.extend(call for _, call, _ in self._next(~raft_group, partition.waiters.own_acks, reached))
        due.extend(self._next(-1, self._away.unanswered(), reached))
        now_us = self._reactor.now_us()
        for call in due:
            call.expire(now_us)
        if due:
            self.arm()

    def _next(self, queue: int, waiting: Sequence[_T], reached: dict[int, int]) -> Iterator[_T]:
        start = reached.get(queue, 0)
        if start >= len(waiting):
            start = 0
        end = start + CALLS_A_SWEEP
        if end < len(waiting):
            self._reached[queue] = end
        return islice(waiting, start, end)
