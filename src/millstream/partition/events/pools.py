"""The four buffer pools of an event partition, by Mofka's keys: how much memory its batches and feeds hold at once.

::

    producers.metadata_buffer_pool ┐ a push leases from both when its batch is put into the log, and gives back when the
    producers.data_buffer_pool     ┘ batch is committed (or its outcome is unknown)
    consumers.metadata_buffer_pool ┐ a feed leases from both before it reads, and gives back when its answer was sent
    consumers.desc_buffer_pool     ┘ or dropped

In Mofka a pool owns memory that is registered for RDMA, and grows if it has no free buffer. Here the memory is the
core's arena, where a batch lies from its receipt to its last reader; nothing would be gained by a copy into a buffer. A
pool counts buffers instead: ``num_buffers`` of each size ``first_size`` × ``size_multiple``^k. A lease takes the
smallest free buffer that holds its bytes, or else the largest free ones together, because memory comes in pieces. With
``num_buffers`` 0, Mofka's default, a lease takes its own bytes, and the pool's bound is the share of the core's memory
that producers' or consumers' requests have.

**Promises.** A pool never grows. A push whose bytes do not fit waits in the order of its partition
(``partition.append.pooled``); a feed takes what one free buffer holds, and waits if none is free. Other partitions do
not wait. A push or an event that is larger than the whole pool is let through when the pool is idle, and then takes all
of it; ``event_pool_oversized`` counts that. Without such leases no more bytes are out than the buffers have.

**Overload.** Who waits longer than allowed gets THROTTLING_QUOTA_EXCEEDED, which clients try again. **Bad input.** None
reaches a pool: sizes are of batches that were checked. **Crash.** Leases are memory only. A partition that closes,
resigns or fails gives all of them back with the answers of who waits. Batches of Kafka producers lease nothing: the
memory for the inspection of their records bounds them.

A change of ``events.partition`` makes new pools; what is leased from the old ones goes back to those.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.iobuf import MemoryClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.config.event_partition import BufferPools, PoolShape
    from millstream.iobuf import Arena
    from millstream.model.error_code import ErrorCode
    from millstream.model.quantities import SlotIndex
    from millstream.telemetry.metrics import StatsSlab

POOLS: Final = ("producers_metadata", "producers_data", "consumers_metadata", "consumers_desc")
_SIZE_MAX: Final = 1 << 62


class PoolMeters:
    """Counters of one of the four pools, over all partitions of a shard."""

    __slots__ = ("leased", "leases", "oversized", "waits")

    def __init__(self, stats: StatsSlab, pool: str) -> None:
        self.leased = stats.gauge("event_pool_leased_bytes", pool=pool)
        self.leases = stats.counter("event_pool_leases", pool=pool)
        self.oversized = stats.counter("event_pool_oversized", pool=pool)
        self.waits = stats.counter("event_pool_waits", pool=pool)


class Lease:
    """Buffers of one pool, until ``release``."""

    __slots__ = ("_buffers", "_pool", "size_bytes")

    def __init__(self, pool: Pool, size_bytes: int, buffers: list[int]) -> None:
        self._pool = pool
        self.size_bytes = size_bytes
        self._buffers = buffers  # by tier

    def release(self) -> None:
        self._pool.take_back(self.size_bytes, self._buffers)
        self.size_bytes = 0
        self._buffers = []


class Pool:
    """One pool of one partition.

    Invariant: ``leased`` is the sum of the sizes of all leases; without ``num_buffers`` nothing is in ``_free``.
    """

    __slots__ = ("_free", "_limit", "_meters", "leased", "sizes")

    def __init__(self, shape: PoolShape, limit_bytes: int, meters: PoolMeters) -> None:
        """``limit_bytes`` bounds a pool without ``num_buffers``."""
        self.sizes = tier_sizes(shape)
        self._free = [shape.num_buffers] * len(self.sizes)
        self._limit = limit_bytes
        self._meters = meters
        self.leased = 0

    def fits(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` can be leased now. An idle pool has room for anything."""
        if not self.leased:
            return True
        if not self.sizes:
            return self.leased + size_bytes <= self._limit
        return sum(free * one for free, one in zip(self._free, self.sizes, strict=True)) >= size_bytes

    def room(self, most_bytes: int) -> int:
        """What one lease of at most ``most_bytes`` may have now; 0 if it has to wait."""
        if not self.sizes:
            return max(0, min(most_bytes, self._limit - self.leased))
        free = [size for size, count in zip(self.sizes, self._free, strict=True) if count]
        return min(most_bytes, free[-1]) if free else 0

    def take(self, size_bytes: int) -> Lease:
        """Lease ``size_bytes``; if they do not fit, what is left."""
        self._meters.leases.inc()
        buffers: list[int] = []
        if self.sizes:
            size_bytes = self._take_buffers(size_bytes, buffers)
        elif self.leased + size_bytes > self._limit:
            self._meters.oversized.inc()
        self.leased += size_bytes
        self._meters.leased.add(size_bytes)
        return Lease(self, size_bytes, buffers)

    def _take_buffers(self, size_bytes: int, buffers: list[int]) -> int:
        """Take buffers for ``size_bytes``, and return how many bytes they have."""
        free, sizes = self._free, self.sizes
        for tier, one in enumerate(sizes):
            if one >= size_bytes and free[tier]:
                free[tier] -= 1
                buffers.append(tier)
                return one
        taken = 0
        for tier in reversed(range(len(sizes))):
            while free[tier] and taken < size_bytes:
                free[tier] -= 1
                buffers.append(tier)
                taken += sizes[tier]
        if taken < size_bytes:
            self._meters.oversized.inc()
        return taken

    def take_back(self, size_bytes: int, buffers: list[int]) -> None:
        """A lease ends."""
        for tier in buffers:
            self._free[tier] += 1
        self.leased -= size_bytes
        self._meters.leased.add(-size_bytes)

    def count_wait(self) -> None:
        """A push or a feed has to wait for this pool."""
        self._meters.waits.inc()


class Pair:
    """The two pools of one side of a partition, and who waits for them."""

    __slots__ = ("pools", "waiting")

    def __init__(self, first: Pool, second: Pool) -> None:
        self.pools = (first, second)
        self.waiting: set[Callable[[], None]] = set()
        """Called once, when a lease goes back. They only note that, and act in a later turn."""

    def fits(self, first_bytes: int, second_bytes: int) -> bool:
        """Whether both sizes can be leased now."""
        for pool, size in zip(self.pools, (first_bytes, second_bytes), strict=True):
            if not pool.fits(size):
                pool.count_wait()
                return False
        return True

    def room(self, first_bytes: int, second_bytes: int) -> tuple[int, int] | None:
        """What one lease may have of either now, at most these; None if it has to wait."""
        rooms = self.pools[0].room(first_bytes), self.pools[1].room(second_bytes)
        for pool, room in zip(self.pools, rooms, strict=True):
            if not room:
                pool.count_wait()
                return None
        return rooms

    def take(self, first_bytes: int, second_bytes: int) -> Held:
        """Lease both."""
        return Held(self, self.pools[0].take(first_bytes), self.pools[1].take(second_bytes))

    def freed(self) -> None:
        """A lease went back."""
        waiting, self.waiting = self.waiting, set()
        for wake in waiting:
            wake()


class Held:
    """A lease of either pool of a pair. It goes back once; as an ``AckWaiter`` when its batch is settled."""

    __slots__ = ("_first", "_pair", "_second")

    def __init__(self, pair: Pair, first: Lease, second: Lease) -> None:
        self._pair: Pair | None = pair
        self._first = first
        self._second = second

    def resize(self, first_bytes: int, second_bytes: int) -> None:
        """Keep so many bytes of what was leased; one event may need more."""
        pair = self._pair
        assert pair is not None, "a lease that went back"
        self._first.release()
        self._second.release()
        self._first = pair.pools[0].take(first_bytes)
        self._second = pair.pools[1].take(second_bytes)
        pair.freed()

    def release(self) -> None:
        """Give both back."""
        pair, self._pair = self._pair, None
        assert pair is not None, "a lease goes back once"
        self._first.release()
        self._second.release()
        pair.freed()

    def acked(self, slot: SlotIndex) -> None:
        """The batch is committed."""
        _ = slot
        self.release()

    def failed(self, slot: SlotIndex, error: ErrorCode) -> None:
        """The outcome of the batch is unknown."""
        _ = slot, error
        self.release()

    def expire(self, now_us: int) -> None:
        """The batch stays in the log, however long its commit takes."""


class EventPools:
    """The pools of one partition. Lifecycle: as the partition. Shard: its home."""

    __slots__ = ("_asked", "_limits", "_meters", "_shapes", "consumers", "producers", "pushes", "retrying")

    def __init__(self, limits: tuple[int, int], shapes: BufferPools, meters: Sequence[PoolMeters]) -> None:
        """``limits`` (of producers, of consumers) bound pools without ``num_buffers``. ``meters`` are by ``POOLS``."""
        self._limits = limits
        self._meters = meters
        self._shapes = shapes
        self.producers, self.consumers = self._made()
        self.pushes: deque[object] = deque()
        """Batches that wait, in order; kept by ``partition.append.pooled``."""
        self.retrying = False
        """The first of ``pushes`` is being appended: it does not wait for itself."""
        self._asked: tuple[int, int] | None = None

    def _made(self) -> tuple[Pair, Pair]:
        one, two, three, four = self._meters
        shapes, (receive, fetch) = self._shapes, self._limits
        return (
            Pair(Pool(shapes.producers_metadata, receive, one), Pool(shapes.producers_data, receive, two)),
            Pair(Pool(shapes.consumers_metadata, fetch, three), Pool(shapes.consumers_desc, fetch, four)),
        )

    @property
    def at_rest(self) -> bool:
        """Whether nothing is leased and no push waits."""
        out = sum(pool.leased for pair in (self.producers, self.consumers) for pool in pair.pools)
        return not (out or self.pushes)

    def reshape(self, shapes: BufferPools) -> None:
        """The topic's configuration may have changed."""
        if shapes == self._shapes:
            return
        self._shapes = shapes
        before = (self.producers, self.consumers)
        self.producers, self.consumers = self._made()
        for pair in before:
            pair.freed()

    def waits_behind(self) -> bool:
        """Whether a batch that comes now has to join the row."""
        return bool(self.pushes) and not self.retrying

    def admits(self, metadata_bytes: int, data_bytes: int) -> bool:
        """Whether a batch of these sizes may be put into the log now; then `lease` follows."""
        fits = self.producers.fits(metadata_bytes, data_bytes)
        self._asked = (metadata_bytes, data_bytes) if fits else None
        return fits

    def exempt(self) -> None:
        """The next batch leases nothing."""
        self._asked = None

    def lease(self) -> Held | None:
        """Buffers for the batch that was admitted last and is in the log now."""
        asked, self._asked = self._asked, None
        return None if asked is None else self.producers.take(*asked)


def pool_meters(stats: StatsSlab) -> tuple[PoolMeters, ...]:
    """Of one shard, by ``POOLS``."""
    return tuple(PoolMeters(stats, pool) for pool in POOLS)


def pool_limits(arena: Arena) -> tuple[int, int]:
    """Bounds of pools without ``num_buffers``."""
    return arena.limit_bytes(MemoryClass.RECEIVE), arena.limit_bytes(MemoryClass.FETCH)


def tier_sizes(shape: PoolShape) -> tuple[int, ...]:
    """Sizes of the buffers of a pool, first_size × size_multiple^k for k below num_tiers; none without buffers."""
    sizes: list[int] = []
    size = float(shape.first_size)
    for _ in range(shape.num_tiers if shape.num_buffers else 0):
        sizes.append(int(min(size, _SIZE_MAX)))
        size *= shape.size_multiple
    return tuple(sizes)
