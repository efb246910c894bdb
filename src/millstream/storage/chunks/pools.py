"""Tiered buffer pools: the four of the seed, with its keys and defaults.

Tier ``k`` has buffers of ``first_size × size_multiple^k`` bytes, and ``num_buffers`` of them from the start. A request
gets a free buffer of the smallest tier that fits; if that tier has none, the pool grows by one. A request beyond the
largest tier gets a buffer of its own size, which is not kept. Pools shrink, too: a buffer that grew and was not needed
for ``IDLE_ROUNDS`` calls of ``shrink`` is freed, so one giant batch does not hold its memory for ever.

A pool belongs to one thread. Buffers are lent: who leases one gives it back.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

IDLE_ROUNDS: Final = 3
"""Rounds of ``shrink`` that a free buffer outlives above ``num_buffers``."""


class PoolShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of one pool."""

    num_tiers: int = 1
    num_buffers: int = 0
    first_size: int = 64 << 10
    size_multiple: float = 4.0

    def check(self, pool: str) -> None:
        """Refuse values that the seed's schema does not allow.

        Raises:
            Rejected: with the key and what is allowed.
        """
        for key, value, holds, allowed in (
            ("num_tiers", self.num_tiers, self.num_tiers >= 1, "at least 1"),
            ("num_buffers", self.num_buffers, self.num_buffers >= 0, "at least 0"),
            ("first_size", self.first_size, self.first_size >= 1, "at least 1"),
            ("size_multiple", self.size_multiple, self.size_multiple > 1, "more than 1"),
        ):
            if not holds:
                raise Rejected(f"{pool}.{key} is {value}: {allowed} is allowed", ErrorCode.INVALID_CONFIG)

    def tier_bytes(self) -> list[int]:
        """Size of the buffers of each tier."""
        return [int(self.first_size * self.size_multiple**tier) for tier in range(self.num_tiers)]


class BufferPools(msgspec.Struct, frozen=True):
    """The four pools of a partition, by their keys in the seed."""

    producers_metadata: PoolShape = PoolShape()
    producers_data: PoolShape = PoolShape(first_size=64 << 20)
    consumers_metadata: PoolShape = PoolShape()
    consumers_desc: PoolShape = PoolShape(first_size=4 << 10)

    def check(self) -> None:
        """Refuse values that the seed's schema does not allow."""
        self.producers_metadata.check("producers.metadata_buffer_pool")
        self.producers_data.check("producers.data_buffer_pool")
        self.consumers_metadata.check("consumers.metadata_buffer_pool")
        self.consumers_desc.check("consumers.desc_buffer_pool")


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
