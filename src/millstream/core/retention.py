"""Which offsets of a log may go, by age and by size: a pure decision over what is known of its segments; and how much
earlier than others a log begins a new one.

Kafka's rules (``retention.ms``, ``retention.bytes``): whole segments, oldest first, none that reaches beyond the high
watermark. By age, a segment goes when its largest timestamp is older than allowed; one without timestamps is as old
as its last batch. By size, the oldest goes while what would be left is still at least as large as allowed, so a log
never shrinks below its limit.
"""

from collections.abc import Sequence
from typing import NamedTuple

UNLIMITED = -1

_GOLDEN = 2_654_435_769
"""2^32 by the golden ratio: its multiples, modulo 2^32, fill the range evenly however many there are (Knuth)."""


class SegmentFacts(NamedTuple):
    """What retention looks at."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    """-1 if no batch of it has one."""

    changed_ms: int
    """When the last batch was appended to it, at the latest."""


def roll_jitter_ms(group: int, segment_ms: int, jitter_ms: int) -> int:
    """How much earlier than `segment_ms` the log of a Raft group begins a new segment: below `jitter_ms` and
    `segment_ms`, spread evenly over the groups, always the same for one of them.
    """
    most = min(jitter_ms, segment_ms)
    return group * _GOLDEN % 2**32 * most >> 32


def start_after_retention(
    segments: Sequence[SegmentFacts], now_ms: int, retention_ms: int, retention_bytes: int, end_limit: int
) -> int | None:
    """The new start offset of the log, or None if nothing may go.

    Args:
        segments: oldest first; the last one is the active one.
        now_ms: wall clock.
        retention_ms: age allowed, `UNLIMITED` for any.
        retention_bytes: size allowed, `UNLIMITED` for any.
        end_limit: the high watermark (exclusive); nothing at or above it goes.
    """
    excess = sum(one.size_bytes for one in segments) - retention_bytes if retention_bytes != UNLIMITED else -1
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
