"""Produce calls that wait too long for their commit.

A commit takes a disk sync, well under a millisecond to a few; a call that waits for seconds means a stuck disk. So
nothing is kept per call: once a second, and only while calls are under way, what waits is looked at for calls that are
overdue: the acks of each partition of the shard, and what other shards were given and have not answered. Of many that
wait in one place some are looked at each time, in turn, so that a stuck disk does not cost the reactor its time too;
none is passed over for ever, those behind many that were answered already are seen a second or more later.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

from millstream.partition.table import PartitionTable
from millstream.shard.reactor import Reactor

_T = TypeVar("_T")

PERIOD_US: Final = 1_000_000
CALLS_A_ROUND: Final = 1024
"""Calls in one place and look."""


class Waiting(Protocol):
    """A call that may be overdue."""

    def expire(self, now_us: int) -> None: ...


class Away(Protocol):
    """Calls that other shards have to answer (``partition.home.Home``)."""

    def unanswered(self) -> Sequence[Waiting]: ...


class AckTimeouts:
    """The look. ``armed`` is false when nothing waits, and the next waiting call must ``arm`` it."""

    __slots__ = ("_away", "_reactor", "_reached", "_table", "armed")

    def __init__(self, reactor: Reactor, table: PartitionTable, away: Away) -> None:
        self._reactor = reactor
        self._table = table
        self._away = away
        self._reached: dict[int, int] = {}
        """Raft group (its complement for acks=1), or -1 for those away, of which not all were looked at → how many
        were.
        """
        self.armed = False

    def arm(self) -> None:
        self.armed = True
        self._reactor.call_at(self._reactor.now_us() + PERIOD_US, self._look)

    def _look(self) -> None:
        self.armed = False
        reached, self._reached = self._reached, {}
        due: list[Waiting] = []
        for group, partition in self._table.by_group.items():
            if partition.acks:
                due.extend(call for _, call, _ in self._next(group, partition.acks, reached))
            if partition.own_acks:
                due.extend(call for _, call, _ in self._next(~group, partition.own_acks, reached))
        due.extend(self._next(-1, self._away.unanswered(), reached))
        now_us = self._reactor.now_us()
        for call in due:
            call.expire(now_us)
        if due:
            self.arm()

    def _next(self, place: int, waiting: Sequence[_T], reached: dict[int, int]) -> Iterator[_T]:
        start = reached.get(place, 0)
        if start >= len(waiting):
            start = 0
        end = start + CALLS_A_ROUND
        if end < len(waiting):
            self._reached[place] = end
        return islice(waiting, start, end)
