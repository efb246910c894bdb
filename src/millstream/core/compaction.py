"""Which log is compacted next, how far, which of its segments become one, and which records survive: pure decisions.

::

    start          clean_offset                    end            log end
      │  clean: each key │  dirty: every record      │ too young │ active segment
      │  at most once    │  as it was written        │           │
                          └── its keys are gathered ──┘
      └───────── rewritten, without what the dirty part replaced ─┘

The rules are Apache Kafka's (``LogCleanerManager``, ``LogCleaner``, KIP-58, KIP-354, KIP-534):

- the log whose dirty part is the largest share of what could be compacted comes first, if that share is more than
  ``min.cleanable.dirty.ratio``, or if its oldest dirty record is older than ``max.compaction.lag.ms``;
- the active segment, what is not committed, and the first segment with a record younger than
  ``min.compaction.lag.ms`` with everything behind it stay as they are;
- a record survives if no later record in the gathered stretch has its key; the last one of a key that is a
  tombstone survives ``delete.retention.ms`` from the first compaction that saw it last (its batch's *delete horizon*);
- a batch of which nothing is left goes, unless it is the last of a producer that is still known: then its header stays,
  so that a retry is recognised even if the log is all that is left;
- the last batch of a rewritten segment keeps at least its header, so that a segment says itself where it ends.

What is decided here does not depend on how much a pass gathers: one that ran out of memory for keys stops early
(`Pass` ends sooner), and the next one goes on there.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

OFFSETS_PER_SEGMENT: Final = 2**31 - 1
"""An index entry has 32 bits for an offset."""


class SegmentFacts(NamedTuple):
    """What is looked at of a segment."""

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp: int
    """-1 if it is not known."""

    max_timestamp: int
    """-1 if no batch of it has one."""


class Rules(NamedTuple):
    """What a topic says about its compaction."""

    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int


class Stretch(NamedTuple):
    """The dirty part of a log that may be compacted now, and how urgent that is."""

    first_dirty_offset: int
    end_offset: int
    """Exclusive; a segment's border. Equal to `first_dirty_offset` when there is nothing to do."""

    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """By how much the oldest dirty record is older than it may be; 0 if it is not."""

    @property
    def ratio(self) -> float:
        """The share of the dirty part."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_dirty_ratio: float) -> bool:
        """Whether it is worth the work."""
        return self.dirty_bytes > 0 and (self.overdue_ms > 0 or self.ratio > min_dirty_ratio)


def stretch_of(
    segments: Sequence[SegmentFacts],
    *,
    clean_offset: int,
    start_offset: int,
    stable_offset: int,
    now_ms: int,
    rules: Rules,
) -> Stretch:
    """What of a log may be compacted.

    Args:
        segments: oldest first; the last one is the active one.
        clean_offset: where the last compaction ended; one that is outside of the log is ignored.
        start_offset: of the log.
        stable_offset: end (exclusive) of what is committed.
        now_ms: wall clock.
        rules: of the topic.
    """
    first = clean_offset if start_offset <= clean_offset <= segments[-1].end_offset else start_offset
    end = first
    dirty_bytes = 0
    oldest_ms = now_ms
    for one in segments[:-1]:
        if one.end_offset <= first:
            continue
        young = rules.min_lag_ms > 0 and one.max_timestamp > now_ms - rules.min_lag_ms
        if one.end_offset > stable_offset or young:
            break
        end = one.end_offset
        dirty_bytes += one.size_bytes
        if one.first_timestamp > 0:
            oldest_ms = min(oldest_ms, one.first_timestamp)
    clean_bytes = sum(one.size_bytes for one in segments[:-1] if one.end_offset <= first)
    return Stretch(first, end, clean_bytes, dirty_bytes, max(0, now_ms - rules.max_lag_ms - oldest_ms))


def dirtiest(stretches: Sequence[tuple[Stretch, float]]) -> int | None:
    """Which of several logs is compacted next, given each one's stretch and ``min.cleanable.dirty.ratio``."""
    due = [place for place, (stretch, least) in enumerate(stretches) if stretch.is_due(least)]
    return max(due, key=lambda place: stretches[place][0].ratio, default=None)


def segments_to_rewrite(segments: Sequence[SegmentFacts], end_offset: int) -> int:
    """How many segments a pass that gathered keys up to `end_offset` (exclusive) rewrites: all that begin before it."""
    return sum(1 for one in segments[:-1] if one.base_offset < end_offset)


def group_segments(segments: Sequence[SegmentFacts], segment_bytes: int) -> list[int]:
    """How many consecutive segments become one each time, so that none grows beyond what a segment may be.

    Sizes are those before: what really is left is smaller, and the next pass may join more.
    """
    groups: list[int] = []
    size = base = 0
    for one in segments:
        if groups and size + one.size_bytes <= segment_bytes and one.end_offset - 1 - base <= OFFSETS_PER_SEGMENT:
            groups[-1] += 1
            size += one.size_bytes
        else:
            groups.append(1)
            size, base = one.size_bytes, one.base_offset
    return groups


class Pass(NamedTuple):
    """One pass over a log: what its records are judged by."""

    end_offset: int
    """End (exclusive) of what was gathered; records behind it stay as they are."""

    now_ms: int
    delete_retention_ms: int


def survives(offset: int, latest_offset: int, *, has_value: bool, delete_horizon_ms: int | None, one: Pass) -> bool:
    """Whether a record stays.

    Args:
        offset: of the record.
        latest_offset: the last offset with its key in the gathered stretch, -1 if the key is not there.
        has_value: False for a tombstone.
        delete_horizon_ms: when the batch's tombstones may go; None if it has not been decided.
        one: the pass.
    """
    if offset >= one.end_offset:
        return True
    if offset < latest_offset:
        return False
    return has_value or delete_horizon_ms is None or one.now_ms < delete_horizon_ms


def horizon_to_note(*, tombstones: bool, delete_horizon_ms: int | None, one: Pass) -> int | None:
    """The delete horizon that a batch gets now: once, when the first pass that keeps a tombstone of it has seen it."""
    if tombstones and delete_horizon_ms is None:
        return one.now_ms + one.delete_retention_ms
    return None


def header_stays(last_offset: int, last_of_producer: int | None, *, last_of_segment: bool) -> bool:
    """Whether a batch without survivors leaves its header behind.

    Args:
        last_offset: of the batch.
        last_of_producer: the last offset that its producer wrote; None if it has none or it is forgotten.
        last_of_segment: whether it is the last batch of what is rewritten into one segment.
    """
    return last_of_segment or last_offset == last_of_producer
