"""Cached blocks in the order in which they leave. Pure.

A heap with lazy deletion: an entry of the heap counts only if it has the block's present rank. Ranks change with
``rank``, and each change leaves a dead entry behind. When dead entries outnumber blocks by four to one, the heap is
rebuilt, so its size is bounded.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container

    from millstream.core.eviction.blocks import BlockKey

_DEAD_MAX: Final = 4
_ENTRIES_MIN: Final = 64


class Rank(NamedTuple):
    """The lowest leaves first. ``wanted`` is 0 for a block without a known reader, else 1."""

    wanted: int
    value: float


class Ranking:
    """The ranks of all blocks in a cache."""

    def __init__(self) -> None:
        self._ranks: dict[BlockKey, Rank] = {}
        self._heap: list[tuple[Rank, BlockKey]] = []

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._ranks

    def rank(self, key: BlockKey, rank: Rank) -> None:
        """Set the rank of a block, which is added if it is new."""
        if self._ranks.get(key) == rank:
            return
        self._ranks[key] = rank
        heapq.heappush(self._heap, (rank, key))
        if len(self._heap) > max(_ENTRIES_MIN, _DEAD_MAX * len(self._ranks)):
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapq.heapify(self._heap)

    def remove(self, key: BlockKey) -> None:
        """Forget a block. A missing one is no error."""
        self._ranks.pop(key, None)

    def lowest(self, busy: Container[BlockKey] = (), chosen: Container[BlockKey] = ()) -> tuple[Rank, BlockKey] | None:
        """The block that leaves first among those that are neither busy nor chosen; None without a
        candidate.
        """
        heap = self._heap
        set_aside: list[tuple[Rank, BlockKey]] = []
        found: tuple[Rank, BlockKey] | None = None
        while heap:
            rank, key = heap[0]
            if self._ranks.get(key) != rank:
                heapq.heappop(heap)
            elif key in busy or key in chosen:
                set_aside.append(heapq.heappop(heap))
            else:
                found = rank, key
                break
        for entry in set_aside:
            heapq.heappush(heap, entry)
        return found
