"""Tiered buffer pools: the four of the seed, with its keys and defaults.

Tier ``k`` has buffers of ``first_size × size_multiple^k`` bytes, and ``num_buffers`` of them from the start. A request
gets a free buffer of the smallest tier that fits; if that tier has none, the pool grows by one. A request beyond the
largest tier gets a buffer of its own size, which is not kept. Pools shrink, too: a buffer that grew and was not needed
for ``IDLE_ROUNDS`` calls of ``shrink`` is freed, so one giant batch does not hold its memory for ever.

A pool belongs to one thread. Buffers are lent: who leases one gives it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from millstream.config.event_partition import PoolShape

IDLE_ROUNDS: Final = 3
"""Rounds of ``shrink`` that a free buffer outlives above ``num_buffers``."""


class Lease(msgspec.Struct, eq=False):
    """A buffer of at least the wanted size; ``tier`` is -1 for one that is not kept."""

    buffer: bytearray
    tier: int


class BufferPool:
    """Buffers of one pool. ``grown`` counts buffers that were made beyond ``num_buffers``, ``oversized`` those beyond
    the largest tier; both only rise.
    """

    def __init__(self, shape: PoolShape) -> None:
        self.sizes = shape.tier_bytes()
        self.grown = 0
        self.oversized = 0
        self._kept = shape.num_buffers
        self._free = [[bytearray(size) for _ in range(shape.num_buffers)] for size in self.sizes]
        self._made = [shape.num_buffers] * shape.num_tiers
        self._idle = [0] * shape.num_tiers
        self._lowest_free = [shape.num_buffers] * shape.num_tiers

    @property
    def held_bytes(self) -> int:
        """Bytes of all buffers, leased ones included."""
        return sum(size * made for size, made in zip(self.sizes, self._made, strict=True))

    def lease(self, size_bytes: int) -> Lease:
        """A buffer of at least ``size_bytes``. Its content is undefined."""
        tier = next((tier for tier, size in enumerate(self.sizes) if size >= size_bytes), -1)
        if tier < 0:
            self.oversized += 1
            return Lease(bytearray(size_bytes), -1)
        free = self._free[tier]
        if not free:
            self.grown += 1
            self._made[tier] += 1
            free.append(bytearray(self.sizes[tier]))
        lease = Lease(free.pop(), tier)
        self._lowest_free[tier] = min(self._lowest_free[tier], len(free))
        return lease

    def give_back(self, lease: Lease) -> None:
        """Return a buffer. Nothing may use it afterwards."""
        if lease.tier >= 0:
            self._free[lease.tier].append(lease.buffer)

    def shrink(self) -> int:
        """Free what was not needed for some rounds, down to ``num_buffers``. Call it now and then. Returns bytes."""
        freed = 0
        for tier, size in enumerate(self.sizes):
            spare = min(self._lowest_free[tier], self._made[tier] - self._kept)
            self._idle[tier] = self._idle[tier] + 1 if spare > 0 else 0
            if self._idle[tier] >= IDLE_ROUNDS:
                del self._free[tier][:spare]
                self._made[tier] -= spare
                freed += spare * size
                self._idle[tier] = 0
            self._lowest_free[tier] = len(self._free[tier])
        return freed
