"""When small ranges of a shared partition are joined into an object of the partition's own, and which of them.

::

    own │ own │ range range range range │ LARGE │ range range …        a partition's archive, oldest first
          └──────── one join ─────────┘   stays

A **range** is what one shared object has of the partition. Ranges are joined from the oldest on, so that below some
offset the partition needs no object that it shares with others: that is what frees such objects. A range of
`LARGE_BYTES` stays where it is, because an object of its own would be no better.

A join is due when `JoinLimits.target_bytes` or `RANGES_MAX` ranges have gathered, or the oldest one is
`JoinLimits.age_ms` old. That age is by the wall clock, because the number of the object says when it was made. A range
that is as far ahead of the clock counts as old, so that a clock that was set back does not stop joins.

The own objects before it are joined with it as long as they are at most as large as what follows them. So each byte is
written again at most as often as its object doubles, however quiet the partition is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.model.quantities import TimestampMs

LARGE_BYTES: Final = 8 << 20
RANGES_MAX: Final = 128
"""In one join: the commit names each of them."""


class JoinLimits(msgspec.Struct, frozen=True):
    """When to join, and how large the result may be."""

    target_bytes: int = 64 << 20
    age_ms: int = 1_200_000


class Stretch(NamedTuple):
    """One entry of a partition's archive."""

    size_bytes: int
    written_ms: TimestampMs | None
    """When its shared object was made; None for an object of the partition's own."""

    @property
    def is_small_range(self) -> bool:
        """Whether it is to be joined some time."""
        return self.written_ms is not None and self.size_bytes < LARGE_BYTES


class Join(NamedTuple):
    """Entries to be joined, by their places."""

    first: int
    end: int
    """Exclusive."""


def next_join(stretches: Sequence[Stretch], limits: JoinLimits, now_ms: TimestampMs | None) -> Join | None:
    """What is to be joined now; None if nothing is. Without ``now_ms`` every small range is old enough."""
    first = first_small_range(stretches)
    if first == len(stretches):
        return None
    end, size = first, 0
    while end < len(stretches) and stretches[end].is_small_range:
        size += stretches[end].size_bytes
        end += 1
        if size >= limits.target_bytes or end - first == RANGES_MAX:
            break
    written_ms = stretches[first].written_ms
    is_full = size >= limits.target_bytes or end - first == RANGES_MAX
    age_ms = limits.age_ms if now_ms is None or written_ms is None else now_ms - written_ms
    is_old = not -limits.age_ms < age_ms < limits.age_ms
    if not is_full and not is_old:
        return None
    while first and end - first < RANGES_MAX and stretches[first - 1].written_ms is None:
        own = stretches[first - 1].size_bytes
        if own > size or own + size > limits.target_bytes:
            break
        size += own
        first -= 1
    return Join(first, end)


def first_small_range(stretches: Sequence[Stretch]) -> int:
    """Place of the first small range; the number of entries without one."""
    return next((at for at, one in enumerate(stretches) if one.is_small_range), len(stretches))
