"""The offline optimum: how many hits a cache could have had, if it had known every later read. Pure.

Belady's rule (1966): the block leaves whose next use is farthest. A block without a later use is not admitted.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

_NEVER: Final = 1 << 62


def optimal_hits(reads: Sequence[Hashable], slots_max: int) -> list[bool]:
    """Whether each read of the sequence is a hit in the best cache of ``slots_max`` slots."""
    next_uses = [_NEVER] * len(reads)
    last: dict[Hashable, int] = {}
    for index in range(len(reads) - 1, -1, -1):
        next_uses[index] = last.get(reads[index], _NEVER)
        last[reads[index]] = index
    hits: list[bool] = []
    cached: dict[Hashable, int] = {}
    farthest: list[tuple[int, int]] = []  # negated next use, and the index of the read that put it there
    for index, key in enumerate(reads):
        hits.append(key in cached)
        cached.pop(key, None)
        if next_uses[index] == _NEVER:
            continue
        cached[key] = next_uses[index]
        heapq.heappush(farthest, (-next_uses[index], index))
        while len(cached) > slots_max:
            negated, at = heapq.heappop(farthest)
            if cached.get(reads[at]) == -negated:
                del cached[reads[at]]
    return hits
