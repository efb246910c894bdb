"""Connections that are closed because their client does nothing: it stalls while it holds memory, or it is idle.

- While a connection waits for room, one whose frame made no progress for ``PRESSED_STALL_MS`` is closed; at any time,
  one whose frame takes longer than ``socket.frame.timeout.ms`` from its first byte to its last.
- A client that takes no response bytes for ``SHORT_STALL_MS`` is closed while responses use half of their limit or
  more; for ``PRESSED_STALL_MS`` while those outside the arena are over their limit (`net.owed`).
- A connection without a request for ``connections.max.idle.ms`` is closed.

The timers run only while there is something to watch, so an idle shard has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.iobuf import MemoryClass
from millstream.telemetry.log import log

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from millstream.iobuf import Arena
    from millstream.net.budget import Budget
    from millstream.net.member import Member
    from millstream.net.owed import Owed
    from millstream.shard.reactor import Reactor, Timer
    from millstream.telemetry.log import RateLimit
    from millstream.telemetry.metrics import Counter

PRESSED_STALL_MS: Final = 1_000
SHORT_STALL_MS: Final = 10_000
SWEEP_MS: Final = 500


class Stalls:
    """The sweeps over connections that hold memory. Shard: the intake's."""

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        connections: AbstractSet[Member],
        owed: Owed,
        quiet: RateLimit,
        closed: Counter,
        stall_ms: int,
        idle_ms: int,
    ) -> None:
        """``closed`` counts what is closed here, ``quiet`` limits the log lines about it."""
        self._reactor = reactor
        self._arena = arena
        self._connections = connections
        self._owed = owed
        self._quiet = quiet
        self._closed = closed
        self.stall_ms = stall_ms
        self._idle_ms = idle_ms
        self.budget: Budget | None = None
        """Set when it is made."""
        self._sweep: Timer | None = None
        self._seen: dict[Member, tuple[int, int, int]] = {}  # progress marks and since when (µs)

    def watch(self) -> None:
        """A connection holds memory."""
        if self._sweep is None:
            self._sweep = self._reactor.call_at(self._reactor.now_us() + SWEEP_MS * 1000, self.sweep)

    def stop(self) -> None:
        """Close nothing from here on."""
        if self._sweep is not None:
            self._sweep.cancel()

    def closed(self, connection: Member) -> None:
        """Forget a connection."""
        self._seen.pop(connection, None)

    def sweep(self) -> None:
        """Close stalled connections that hold memory."""
        self._sweep = None
        now_us = self._reactor.now_us()
        assert self.budget is not None
        strangers_wait, others_wait = self.budget.keeps_waiting()
        held, limit = self._arena.reserved_bytes(MemoryClass.FETCH), self._arena.limit_bytes(MemoryClass.FETCH)
        patience_ms = SHORT_STALL_MS if 2 * held > limit else self._idle_ms
        seen: dict[Member, tuple[int, int, int]] = {}
        for connection in [c for c in self._connections if c.frame or c.responses.writing]:
            if connection.frame is not None and connection.frame.is_large and connection.reading:
                connection.on_readable()  # the kernel may have a part for which it does not wake the shard
                if connection.closed:
                    continue
            missing = 0 if connection.frame is None else connection.frame.missing
            head = connection.responses.outbox.head
            before = self._seen.get(connection)
            if before is None or before[:2] != (missing, head):
                before = (missing, head, now_us)
            seen[connection] = before
            if missing and now_us - connection.received_us >= self.stall_ms * 1000:
                limit_ms = 0  # its frame's first byte is that old, however little is sent again and again
            elif missing:
                limit_ms = PRESSED_STALL_MS
                if not (strangers_wait if connection.is_stranger else others_wait):
                    continue
            else:
                limit_ms = PRESSED_STALL_MS if connection.responses.owed and self._owed.is_over else patience_ms
            if (now_us - before[2]) // 1000 >= limit_ms:
                self._closed.inc(1)
                del seen[connection]
                if self._quiet.allows():
                    what = "did not send a request to its end" if missing else "takes no answers"
                    who, more = connection.client, self._quiet.left_out()
                    log.warning("closed the connection of %s: it %s%s", who, what, more)
                connection.close()
        self._seen = seen
        if self.budget.is_short:
            self.budget.admit()
        if seen or self.budget.is_short:
            self.watch()


class Idle:
    """Closes connections without a request for ``idle_ms``, checked four times in that span. Shard: the intake's."""

    __slots__ = ("_closed", "_connections", "_reactor", "_seen", "idle_ms", "timer")

    def __init__(self, reactor: Reactor, connections: AbstractSet[Member], closed: Counter, idle_ms: int) -> None:
        self._reactor = reactor
        self._connections = connections
        self._closed = closed
        self.idle_ms = idle_ms
        self.timer: Timer | None = None
        self._seen: dict[Member, tuple[int, int]] = {}  # requests, and since when (µs) no more

    def watch(self) -> None:
        """A connection was opened."""
        if self.timer is None:
            self._sweep()

    def stop(self) -> None:
        """Close nothing from here on."""
        if self.timer is not None:
            self.timer.cancel()

    def closed(self, connection: Member) -> None:
        """Forget a connection."""
        self._seen.pop(connection, None)

    def _sweep(self) -> None:
        now_us = self._reactor.now_us()
        fresh: dict[Member, tuple[int, int]] = {}
        for connection in list(self._connections):
            frames, since_us = self._seen.get(connection, (-1, 0))
            if frames != connection.frames or connection.responses.exchanges:
                fresh[connection] = (connection.frames, now_us)
            elif now_us - since_us < self.idle_ms * 1000:
                fresh[connection] = (frames, since_us)
            else:
                self._closed.inc()
                connection.close()
        self._seen = fresh
        again_us = now_us + self.idle_ms * 250
        self.timer = self._reactor.call_at(again_us, self._sweep) if self._connections else None
