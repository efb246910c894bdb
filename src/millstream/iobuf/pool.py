"""A tiered pool: a fixed number of buffers of each of a few sizes, allocated once.

For work that must never wait for memory (reading chunks, a last-resort response). ``buffers_per_tier`` fragments of
each size first_size × size_multiple^k are allocated at construction and reused. ``get`` returns the smallest free
buffer that is large enough, from a higher tier if necessary. If all are in use, it allocates a fragment of the smallest
tier that fits; beyond the largest tier it raises ``ValueError``. This is Mofka's bulk buffer pool without its growth:
there, one giant request adds a tier that is never freed.

``put`` returns a buffer. ``close`` releases the free buffers to the arena; buffers in use follow when they are put.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from millstream.iobuf.sizes import tier_sizes

if TYPE_CHECKING:
    from millstream.iobuf.arena import Arena
    from millstream.iobuf.fragment import Fragment


class TieredPool:
    """A pool of buffers in tiers of sizes. Raises ``ArenaFull`` at construction if the arena cannot hold its
    buffers.
    """

    def __init__(
        self, arena: Arena, first_size: int, size_multiple: float = 4.0, tier_count: int = 1, buffers_per_tier: int = 1
    ) -> None:
        self._arena = arena
        self.sizes = tier_sizes(first_size, size_multiple, tier_count)
        self._kept = buffers_per_tier
        self._free: list[list[Fragment]] = [[] for _ in self.sizes]
        self._out: dict[int, int] = {}  # arena offset → tier
        try:
            for size, free in zip(self.sizes, self._free, strict=True):
                for _ in range(buffers_per_tier):
                    free.append(arena.allocate(size))
        except BaseException:
            self.close()
            raise

    def get(self, size_bytes: int) -> Fragment:
        """A buffer of at least ``size_bytes``. The caller holds its only reference until ``put``."""
        tier = bisect_left(self.sizes, size_bytes)
        if tier == len(self.sizes):
            raise ValueError(f"the largest buffer of this pool has {self.sizes[-1]} bytes, {size_bytes} were asked for")
        for index in range(tier, len(self.sizes)):
            if self._free[index]:
                fragment = self._free[index].pop()
                self._out[fragment.offset] = index
                return fragment
        fragment = self._arena.allocate(self.sizes[tier])
        self._out[fragment.offset] = tier
        return fragment

    def put(self, fragment: Fragment) -> None:
        """Return a buffer to its tier, or to the arena if the tier is full. No other holder may share it."""
        tier = self._out.pop(fragment.offset)
        if fragment.refs == 1 and len(self._free[tier]) < self._kept:
            self._free[tier].append(fragment)
        else:
            fragment.release()

    def close(self) -> None:
        """Release the free buffers, and keep none from now on."""
        self._kept = 0
        for free in self._free:
            while free:
                free.pop().release()
