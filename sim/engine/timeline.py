"""Time and chance of a simulation: what happens later, and the random numbers of each purpose.

Every simulation has its own clock in whole microseconds and moves it to what its `Timeline` says is due. Random numbers
come from streams with names, so that a new purpose does not shift the numbers of the others.
"""

from __future__ import annotations

import heapq
import random
from typing import Final, Generic, TypeVar

SECOND: Final = 1_000_000
"""Of simulated time, in microseconds."""

T = TypeVar("T")


def stream(seed: int, name: str) -> random.Random:
    """The random numbers of a seed for one purpose."""
    return random.Random(f"{seed}/{name}")


class Streams:
    """The streams of one seed. Each continues where its last user stopped."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[str, random.Random] = {}

    def __call__(self, name: str) -> random.Random:
        """The random numbers of one purpose."""
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = stream(self._seed, name)
        return found


class Timeline(Generic[T]):
    """What is due, in order of time. Of two things at one time the one that was added first comes first."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0

    def add(self, at_us: int, what: T) -> None:
        """``what`` is due at ``at_us``."""
        self._count += 1
        heapq.heappush(self._heap, (at_us, self._count, what))

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next(self) -> T:
        """What is due next."""
        return self._heap[0][2]

    def due_us(self) -> int | None:
        """When the next is due; None if nothing is."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> T:
        """Take the next."""
        return heapq.heappop(self._heap)[2]

    def take_all_at(self, at_us: int) -> list[T]:
        """Take what is due at that very time, in order."""
        taken = sorted(one for one in self._heap if one[0] == at_us)
        self._heap = [one for one in self._heap if one[0] != at_us]
        heapq.heapify(self._heap)
        return [what for _, _, what in taken]
