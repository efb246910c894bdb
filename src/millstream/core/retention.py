"""Decisions of retention: the offsets of a log that may be deleted by age and by size, and the roll jitter of a log.
Pure.

The rules are Kafka's (``retention.ms``, ``retention.bytes``): whole segments, oldest first, none beyond the high
watermark. By age, a segment is deleted when its largest timestamp is too old; a segment without timestamps has the age
of its last append. By size, the oldest segment is deleted while the remainder is at least the limit, so a log never
shrinks below its limit.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.model.quantities import RaftGroupId

UNLIMITED = -1

_GOLDEN = 2_654_435_769
"""2^32 divided by the golden ratio. Its multiples modulo 2^32 fill the range evenly for any number of them (Knuth)."""


class SegmentFacts(NamedTuple):
    """The facts about a segment that retention needs."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    """-1 if no batch has a timestamp."""

    changed_ms: int
    """Latest possible time of the last append, in ms."""


def roll_jitter_ms(group: RaftGroupId, segment_ms: int, jitter_ms: int) -> int:
    """Reduction of ``segment_ms`` for the log of a Raft group: below ``jitter_ms`` and ``segment_ms``, spread evenly
    over the groups, constant for one group.
    """
    most = min(jitter_ms, segment_ms)
    return group * _GOLDEN % 2**32 * most >> 32


def start_after_retention(
    segments: Sequence[SegmentFacts], now_ms: int, retention_ms: int, retention_bytes: int, end_limit: int
) -> int | None:
    """The new start offset of the log, or None if nothing is to be deleted.

    Args:
        segments: oldest first; the last one is the active one.
        now_ms: wall clock.
        retention_ms: maximum age, or ``UNLIMITED``.
        retention_bytes: maximum size, or ``UNLIMITED``.
        end_limit: the high watermark (exclusive); nothing at or above it is deleted.
    """
    total_bytes = sum(one.size_bytes for one in segments)
    return start_of_retained(segments, total_bytes, now_ms, retention_ms, retention_bytes, end_limit)


def start_of_retained(
    segments: Iterable[SegmentFacts],
    total_bytes: int,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    end_limit: int,
) -> int | None:
    """`start_after_retention` for segments that are not listed before they are needed; ``total_bytes`` are those of
    all of them.
    """
    excess = total_bytes - retention_bytes if retention_bytes != UNLIMITED else -1
    start: int | None = None
    for one in segments:
        if one.end_offset > end_limit or one.end_offset == one.base_offset:
            break
        newest_ms = one.max_timestamp if one.max_timestamp >= 0 else one.changed_ms
        too_old = retention_ms != UNLIMITED and newest_ms < now_ms - retention_ms
        too_large = retention_bytes != UNLIMITED and excess >= one.size_bytes
        if not too_old and not too_large:
            break
        excess -= one.size_bytes
        start = one.end_offset
    return start
