"""A tiered pool: a few buffers of each of a few sizes, held for good.

For work that must never wait for memory (a reader that hydrates chunks, a response of last resort):
`buffers_per_tier` fragments of sizes first_size × size_multiple^k are taken from the arena at once and handed out
again and again. `get` returns the smallest free buffer that is large enough, also one of a higher tier; when all are
out, a fresh fragment of the smallest tier that fits; above the largest tier a plain `ValueError`. This is the bulk
buffer pool of Mofka, without its growth: there one giant request adds a tier that is never freed.

Give buffers back with `put`. `close` returns what lies in the pool to the arena; buffers still out follow as they are
put.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from millstream.iobuf.sizes import tier_sizes

if TYPE_CHECKING:
    from millstream.iobuf.arena import Arena
    from millstream.iobuf.fragment import Fragment


class TieredPool:
    """See the module. Raises `ArenaFull` at construction when the arena cannot hold its buffers."""

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
        """A buffer of at least `size_bytes`; the caller holds its one reference until `put`."""
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
        """Back into its tier; to the arena when the tier is full. Nobody else may still share it."""
        tier = self._out.pop(fragment.offset)
        if fragment.refs == 1 and len(self._free[tier]) < self._kept:
            self._free[tier].append(fragment)
        else:
            fragment.release()

    def close(self) -> None:
        """Release what lies in the pool and keep nothing from now on."""
        self._kept = 0
        for free in self._free:
            while free:
                free.pop().release()
