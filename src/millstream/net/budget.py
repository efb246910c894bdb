"""Memory for what was received and is not handled yet: partial frames, and bytes of paused connections.

A frame that does not arrive whole gets fragments for its full length from the *receive* share of the arena before its
body is read. Without room its connection waits here and is not read. Frames of up to `SMALL_FRAME_BYTES` go before
larger ones. Frames other than Produce have half of the share together, plus one frame, so that there is always room for
records. Frames of *strangers*, who have not logged in where a listener demands it, have a twentieth and a line of their
own: others never wait for them. Paused connections keep at most `STASH_BYTES_MAX`; while they keep a quarter of that,
receives are small.

**Overload.** `net.stalls` closes connections that stall while others wait here. **Crash.** Nothing to clean.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.iobuf import MemoryClass, receive_buffer
from millstream.net.partial_frame import PartialFrame

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import Arena
    from millstream.net.member import Member
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import Gauge

SCRATCH_BYTES: Final = 512 * 1024  # four batches of 128 KiB, in 0.3 ms: a tenth less for each than with half of it
SMALL_FRAME_BYTES: Final = 256 * 1024
SMALL_SCRATCH_BYTES: Final = 8 * 1024
"""Bytes received at once while paused connections keep much. The remainder stays in the kernel."""
STASH_BYTES_MAX: Final = 32 << 20  # kept by paused connections of a shard, or a quarter of its arena if that is less

STRANGERS_PART: Final = 20
"""Share of the receive memory for frames of connections that are not logged in (1/n)."""

_PRODUCE: Final = b"\0\0"


class _Line:
    """Connections that wait for room for one kind of frame, with the size of each; oldest first, small ones in front.

    The kind's frames that have their room are in ``sizes``, and have at most ``bytes_max`` beside one of them.
    """

    __slots__ = ("bytes", "bytes_max", "sizes", "waiting")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  # the sum of sizes
        self.sizes: dict[Member, int] = {}
        self.waiting: deque[tuple[Member, int]] = deque()

    def enter(self, connection: Member, size: int) -> None:
        """A frame has its room."""
        self.sizes[connection] = size
        self.bytes += size

    def leave(self, connection: Member) -> None:
        """A frame has given its room back."""
        self.bytes -= self.sizes.pop(connection, 0)


class Budget:
    """The receive memory of one shard. Shard: the intake's.

    Invariant: ``stash_bytes`` is the sum of what paused connections keep.
    """

    __slots__ = (
        "_arena",
        "_gauge",
        "_is_waiting",
        "_on_wait",
        "_others",
        "_reactor",
        "_records",
        "_strangers",
        "_whole_scratch",
        "scratch",
        "stash_bytes",
        "stash_max",
    )

    def __init__(self, reactor: Reactor, arena: Arena, waiting: Gauge, on_wait: Callable[[], None]) -> None:
        """``waiting`` shows how many connections wait for room. ``on_wait`` is called when memory is held for a client
        that may stall.
        """
        share = arena.limit_bytes(MemoryClass.RECEIVE)
        self._reactor = reactor
        self._arena = arena
        self._gauge = waiting
        self._on_wait = on_wait
        self._whole_scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.scratch = self._whole_scratch
        """Where sockets are received into; used within one call."""
        self.stash_bytes = 0
        self.stash_max = min(STASH_BYTES_MAX, arena.capacity_bytes // 4)
        self._records = _Line(share)
        self._others = _Line(share // 2)
        self._strangers = _Line(share // STRANGERS_PART)
        self._is_waiting: set[Member] = set()

    @property
    def is_short(self) -> bool:
        """Whether a connection waits for room."""
        return bool(self._is_waiting)

    def keeps_waiting(self) -> tuple[bool, bool]:
        """Whether strangers wait for room, and whether others do. They do not wait for each other."""
        strangers = sum(connection.is_stranger for connection in self._is_waiting)
        return strangers > 0, len(self._is_waiting) > strangers

    def stash(self, size: int) -> bool:
        """Add ``size`` (bytes, may be negative) to what paused connections keep. False: the sum is above the limit."""
        self.stash_bytes += size
        few = self.stash_bytes <= self.stash_max // 4
        self.scratch = self._whole_scratch if few else self._whole_scratch[:SMALL_SCRATCH_BYTES]
        return self.stash_bytes <= self.stash_max

    def unstash(self, stash: bytes) -> memoryview:
        """The scratch buffer with what a paused connection has kept at its beginning."""
        self.stash(-len(stash))
        self._whole_scratch[: len(stash)] = stash
        return self._whole_scratch

    def begin_frame(self, connection: Member, size: int, received: memoryview) -> bool:
        """Reserve ``size`` bytes and copy the received part of the frame into them. False: no room now."""
        line = self._line_of(connection, received[:2])
        if line.waiting and size > SMALL_FRAME_BYTES and connection not in self._is_waiting:
            return False
        frame = receive_buffer(self._arena, size) if size <= self._room(line) else None
        if frame is None:
            return False
        line.enter(connection, size)
        connection.frame = PartialFrame(frame, size, received)
        self._on_wait()
        return True

    def end_frame(self, connection: Member) -> None:
        """Release the room of a frame that was handled or dropped, and resume waiting connections."""
        assert connection.frame is not None
        self._arena.unreserve(MemoryClass.RECEIVE, connection.frame.size)
        self._records.leave(connection)
        self._others.leave(connection)
        self._strangers.leave(connection)
        connection.frame = None
        if self._is_waiting:
            self._reactor.call_soon(self.admit)

    def wait(self, connection: Member, size: int) -> None:
        """Let a paused connection wait for ``size`` bytes for its next frame."""
        if connection.closed:
            return
        if connection not in self._is_waiting:
            waiting = self._line_of(connection, connection.stash[4:6]).waiting
            if size > SMALL_FRAME_BYTES:
                waiting.append((connection, size))
            else:
                waiting.appendleft((connection, size))
            self._is_waiting.add(connection)
            self._gauge.set(len(self._is_waiting))
        self._on_wait()

    def has_in_line(self, connection: Member) -> bool:
        """Whether the connection waits for room."""
        return connection in self._is_waiting

    def closed(self, connection: Member) -> None:
        """The connection waits no longer."""
        self._is_waiting.discard(connection)
        self._gauge.set(len(self._is_waiting))

    def admit(self) -> None:
        """Resume waiting connections, oldest first, while there is room."""
        for line in (self._records, self._others, self._strangers):
            while line.waiting and self._admit_next(line):
                pass

    def _line_of(self, connection: Member, api_key: bytes | memoryview) -> _Line:
        """Frames with records have a line of their own, and so do strangers."""
        if connection.is_stranger:
            return self._strangers
        return self._records if api_key == _PRODUCE else self._others

    def _room(self, line: _Line) -> int:
        """Maximum size of a frame of this kind now, in bytes."""
        room = self._arena.limit_bytes(MemoryClass.RECEIVE) - self._arena.reserved_bytes(MemoryClass.RECEIVE)
        return min(room, line.bytes_max - line.bytes) if line.sizes else room

    def _admit_next(self, line: _Line) -> bool:
        """Resume the first waiting connection. True: there may be room for the next."""
        connection, size = line.waiting[0]
        if connection.closed or connection not in self._is_waiting:
            line.waiting.popleft()
            return True
        if size > self._room(line):
            return False
        line.waiting.popleft()
        self.closed(connection)
        if not connection.has_caught_up():
            return True  # it waits for its own answers now, and joins the line again after them
        self._is_waiting.add(connection)
        connection.resume()
        self.closed(connection)
        if not connection.reading and not connection.closed and connection.frame is None and connection.stash:
            # The arena could not serve what the budget allowed: first in line again.
            self._is_waiting.add(connection)
            line.waiting.appendleft((connection, size))
            return False
        return True
