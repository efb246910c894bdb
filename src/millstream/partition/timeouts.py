"""Produce calls that wait too long for their commit.

A commit takes a disk sync, well under a millisecond to a few; a call that waits for seconds means a stuck disk. So
nothing is kept per call: once a second, and only while calls are under way, the partitions of the shard are looked at
for acks that are overdue. Acks stand in the order of their requests, so the look ends at the first that is young.
"""

from typing import Final

from millstream.partition.table import PartitionTable
from millstream.shard.reactor import Reactor

PERIOD_US: Final = 1_000_000
ACKS_LOOKED_AT: Final = 1024
"""Per partition and look; a slice of what waits, so that a stuck disk does not cost the reactor its time too."""


class AckTimeouts:
    """The look. ``armed`` is false when nothing waits, and the next waiting call must ``arm`` it."""

    __slots__ = ("_reactor", "_table", "armed")

    def __init__(self, reactor: Reactor, table: PartitionTable) -> None:
        self._reactor = reactor
        self._table = table
        self.armed = False

    def arm(self) -> None:
        self.armed = True
        self._reactor.call_at(self._reactor.now_us() + PERIOD_US, self._look)

    def _look(self) -> None:
        self.armed = False
        now_us = self._reactor.now_us()
        waiting = False
        for partition in self._table.by_group.values():
            if partition.acks:
                waiting = True
                for position, (_, call, _) in enumerate(partition.acks):
                    if position == ACKS_LOOKED_AT:
                        break
                    call.expire(now_us)
        if waiting:
            self.arm()
