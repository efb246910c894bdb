"""Muted connections: a client that is over its quota is not read for a while.

::

    answer with throttle_time_ms ──► mute(connection, until) ──► nothing is read ──► until has passed: read on

The answer leaves at once, and names the time; the client is expected to wait. The connection is not read until then, so
that a client that does not wait is throttled just the same. A request whose bytes are being received when the mute
starts is still received and handled: it occupies receive memory that other clients need. So a client is ahead of its
mute by one request at most.

A mute of a connection that is muted already moves its end, later only. A client that disconnects is forgotten: the
quota belongs to the user, not to the connection (``kafka.quotas``). Overload: one entry per muted connection, and
closed ones are dropped as soon as they may be as many as the open ones. Crash: nothing to clean. Shard: the
connection's.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

from millstream.net.connection import Connection

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor, Timer
    from millstream.telemetry.metrics import Gauge

_LOOK_AT: Final = 64
"""Entries from which closed connections are looked for."""


class Muting:
    """The muted connections of one shard.

    Invariants: each connection in ``_until`` holds itself (``Responses.held``) once; ``_timer`` runs until the first
    end while there is one.
    """

    __slots__ = ("_gauge", "_look_at", "_number", "_queue", "_reactor", "_timer", "_until")

    def __init__(self, reactor: "Reactor", gauge: "Gauge") -> None:
        """``gauge`` shows how many there are."""
        self._reactor = reactor
        self._gauge = gauge
        self._until: dict[Connection, int] = {}  # µs
        self._queue: list[tuple[int, int, Connection]] = []  # a heap by time; an entry that was moved is stale
        self._number = count()
        self._timer: Timer | None = None
        self._look_at = _LOOK_AT

    def __len__(self) -> int:
        return len(self._until)

    def mute(self, connection: Connection, until_us: int) -> None:
        """Read nothing of the connection until then. No effect on a closed one."""
        before_us = self._until.get(connection)
        if connection.closed or (before_us is not None and before_us >= until_us):
            return
        if before_us is None:
            connection.responses.held += 1
        self._until[connection] = until_us
        if len(self._queue) >= self._look_at:
            self._drop_stale()
        heappush(self._queue, (until_us, next(self._number), connection))
        self._gauge.set(len(self._until))
        self._watch()

    def _drop_stale(self) -> None:
        for connection in [each for each in self._until if each.closed]:
            del self._until[connection]
        self._queue = [entry for entry in self._queue if self._until.get(entry[2]) == entry[0]]
        heapify(self._queue)
        self._look_at = max(_LOOK_AT, 2 * len(self._queue))

    def _watch(self) -> None:
        first_us = self._queue[0][0]
        if self._timer is None or first_us < self._timer.deadline_us:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._reactor.call_at(first_us, self._end)

    def _end(self) -> None:
        """Read on from the connections whose time has passed."""
        self._timer = None
        now_us = self._reactor.now_us()
        queue = self._queue
        while queue and queue[0][0] <= now_us:
            until_us, _, connection = heappop(queue)
            if self._until.get(connection) != until_us:
                continue
            del self._until[connection]
            connection.responses.held -= 1
            if not connection.closed and not connection.reading and connection.has_caught_up():
                connection.resume()
        self._gauge.set(len(self._until))
        if queue:
            self._watch()
