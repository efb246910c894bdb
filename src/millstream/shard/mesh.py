"""The shared memory between shards: a ring for each ordered pair, a doorbell and a sleep flag for each shard.

The supervisor creates it once, before the fork::

    flags   one cache line a shard: 1 while the shard may be asleep and wants its bell rung
    rings   (0→1) (0→2) … (1→0) (1→2) …

**How a sleeping shard is woken, and why no wake-up is lost.** The consumer, after draining its rings::

    C1  flag = 1          C2  fence          C3  look at every ring once more; something there? flag = 0 and drain
    again, else sleep in epoll

The producer, after queueing a message::

    P1  publish the record          P2  fence          P3  flag set? write the consumer's eventfd

With a full fence on both sides, one of the two loads must see the other's store: if C3 found nothing, then P1 came
after it in the memory order, so the later P3 sees C1 and rings. The eventfd stays readable until it is read, so a
doorbell rung before epoll is entered is not lost either. Without the fences both loads may be served before both stores
are visible, and the message waits for the next one. The same argument with the roles exchanged covers a full ring: the
producer sets ``waiting``, fences, and tries again; the consumer frees room, fences (C2), and rings the producer's
doorbell if ``waiting`` is set.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

from millstream.model.quantities import ShardId
from millstream.shard.ring import Ring, ring_bytes

DEFAULT_RING_BYTES: Final = 128 * 1024
_LINE: Final = 64
_CELLS_A_LINE: Final = 8


class Bell:
    """The doorbell of one process. Any process may ring it; only its owner waits for it."""

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        """Consume the rings so far. No effect if there were none."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return


class SleepFlag:
    """Whether a shard wants its doorbell rung. Only the shard itself writes it."""

    __slots__ = ("_cell", "_cells")

    def __init__(self, cells: memoryview, shard: ShardId) -> None:
        self._cells = cells
        self._cell = shard * _CELLS_A_LINE

    def sleeps(self) -> bool:
        return self._cells[self._cell] != 0

    def set(self, asleep: bool) -> None:
        self._cells[self._cell] = asleep


class Mesh:
    """All rings of a broker. Created in the supervisor; each shard gets its ends from ``outbound`` and ``inbound``."""

    def __init__(self, shard_count: int, ring_capacity_bytes: int = DEFAULT_RING_BYTES) -> None:
        self.shard_count = shard_count
        self._stride = ring_bytes(ring_capacity_bytes)
        self._first_ring = shard_count * _LINE
        self._map = mmap.mmap(-1, self._first_ring + shard_count * (shard_count - 1) * self._stride)
        self._memory = memoryview(self._map)
        flags = self._memory[: self._first_ring].cast("Q")
        self.bells = [Bell() for _ in range(shard_count)]
        self.flags = [SleepFlag(flags, ShardId(shard)) for shard in range(shard_count)]
        for flag in self.flags:
            flag.set(True)  # a shard that has not started yet finds its doorbell rung when it does

    def _ring(self, producer: int, consumer: int) -> Ring:
        if producer == consumer:
            raise ValueError(f"shard {producer} needs no ring to itself")
        column = consumer if consumer < producer else consumer - 1
        at = self._first_ring + (producer * (self.shard_count - 1) + column) * self._stride
        return Ring(self._memory[at : at + self._stride])

    def outbound(self, producer: ShardId, consumer: ShardId) -> Ring:
        """The producer's end."""
        return self._ring(producer, consumer)

    def inbound(self, consumer: ShardId, producer: ShardId) -> Ring:
        """The consumer's end."""
        return self._ring(producer, consumer)
