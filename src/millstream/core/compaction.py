"""Decisions of compaction: the next log, its range, the segments to merge, and the surviving records. Pure.

::

    start          clean_offset                    end            log end
      │  clean: each key │  dirty: every record      │ too young │ active segment
      │  at most once    │  as it was written        │           │
                          └── its keys are gathered ──┘
      └───────── rewritten, without what the dirty part replaced ─┘

The rules are Apache Kafka's (``LogCleanerManager``, ``LogCleaner``, KIP-58, KIP-354, KIP-534):

- the log with the largest dirty share comes first, if that share is more than ``min.cleanable.dirty.ratio``, or if its
  oldest dirty record is older than ``max.compaction.lag.ms``;
- the active segment, uncommitted records, and everything from the first segment with a record younger than
  ``min.compaction.lag.ms`` on stay as they are;
- a record survives if no later record of the gathered range has its key; a tombstone that is the last record of its key
  survives ``delete.retention.ms`` after the first compaction that found it so (its batch's *delete horizon*);
- a batch without surviving records is removed, unless it is the last of an active producer: then its header stays, so
  that a retry is recognised even if only the log is left;
- the last batch of a rewritten segment keeps at least its header, so that a segment contains its own end;
- a transaction's marker survives while a batch of the transaction is left, be it only a header, and then
  ``delete.retention.ms`` from the first pass that found none. The last marker of an active producer without batches
  survives longer, because it fences the producer's earlier epochs.

These decisions do not depend on how many keys a pass gathers. A pass that runs out of memory for keys ends early
(``Pass``), and the next one continues there.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.model.quantities import Offset, ProducerId

OFFSETS_PER_SEGMENT: Final = 2**31 - 1
"""Maximum number of offsets in a segment: an index entry has 32 bits for an offset."""


class SegmentFacts(NamedTuple):
    """The facts about a segment that compaction needs."""

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp: int
    """-1 if unknown."""

    max_timestamp: int
    """-1 if no batch has a timestamp."""


class Rules(NamedTuple):
    """A topic's properties for compaction."""

    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int


class Stretch(NamedTuple):
    """The dirty range of a log that may be compacted now, and its urgency."""

    first_dirty_offset: int
    end_offset: int
    """Exclusive end at a segment boundary. Equal to ``first_dirty_offset`` if there is nothing to do."""

    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """Time in ms by which the oldest dirty record exceeds its maximum age; 0 if it does not."""

    @property
    def ratio(self) -> float:
        """Dirty share of the compactable bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_dirty_ratio: float) -> bool:
        """Whether the log is to be compacted."""
        return self.dirty_bytes > 0 and (self.overdue_ms > 0 or self.ratio > min_dirty_ratio)


def stretch_of(
    segments: Sequence[SegmentFacts],
    *,
    clean_offset: Offset,
    start_offset: Offset,
    stable_offset: Offset,
    now_ms: int,
    rules: Rules,
) -> Stretch:
    """The range of a log that may be compacted.

    Args:
        segments: oldest first; the last one is the active one.
        clean_offset: end of the last compaction; ignored if it is outside of the log.
        start_offset: start offset of the log.
        stable_offset: end (exclusive) of the committed records.
        now_ms: wall clock.
        rules: the topic's properties.
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
    """Index of the log to compact next, from each log's range and ``min.cleanable.dirty.ratio``; None without any."""
    due = [place for place, (stretch, least) in enumerate(stretches) if stretch.is_due(least)]
    return max(due, key=lambda place: stretches[place][0].ratio, default=None)


def segments_to_rewrite(segments: Sequence[SegmentFacts], end_offset: Offset) -> int:
    """Number of segments to rewrite by a pass with keys up to ``end_offset`` (exclusive): all that start before it."""
    return sum(1 for one in segments[:-1] if one.base_offset < end_offset)


def group_segments(segments: Sequence[SegmentFacts], segment_bytes: int) -> list[int]:
    """Numbers of consecutive segments to merge, so that none exceeds the segment size.

    Sizes are those before compaction. The results are smaller, and the next pass may merge more.
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
    """The parameters of one pass over a log."""

    end_offset: int
    """End (exclusive) of the gathered keys. Records after it stay as they are."""

    now_ms: int
    delete_retention_ms: int


def survives(offset: int, latest_offset: int, *, has_value: bool, delete_horizon_ms: int | None, one: Pass) -> bool:
    """Whether a record survives.

    Args:
        offset: offset of the record.
        latest_offset: last offset with its key in the gathered range; -1 if the key is not there.
        has_value: False for a tombstone.
        delete_horizon_ms: time from which the batch's tombstones may be removed; None if not yet set.
        one: the pass.
    """
    if offset >= one.end_offset:
        return True
    if offset < latest_offset:
        return False
    return has_value or delete_horizon_ms is None or one.now_ms < delete_horizon_ms


def horizon_to_note(*, tombstones: bool, delete_horizon_ms: int | None, one: Pass) -> int | None:
    """The delete horizon to set for a batch: once, in the first pass that keeps a tombstone of it; else None."""
    if tombstones and delete_horizon_ms is None:
        return one.now_ms + one.delete_retention_ms
    return None


class OngoingTransactions:
    """Which transactions have a batch in what a pass has read so far, from the start of the log on.

    Lifecycle: one per pass. The batches are entered in their order in the log.
    """

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: set[int] = set()

    def batch(self, producer_id: ProducerId) -> None:
        """A transactional batch was read."""
        self._producers.add(producer_id)

    def marker(self, producer_id: ProducerId) -> bool:
        """A marker was read. Returns whether its transaction has no batch left."""
        if producer_id not in self._producers:
            return True
        self._producers.remove(producer_id)
        return False


def marker_goes(delete_horizon_ms: int | None, *, listed: bool, fences: bool, one: Pass) -> bool:
    """Whether a marker whose transaction has no batch left is removed.

    Args:
        delete_horizon_ms: time from which the marker may be removed; None if not yet set.
        listed: whether the partition still lists the transaction as aborted.
        fences: whether the marker is all that is known of its producer's epoch.
        one: the pass.
    """
    return delete_horizon_ms is not None and one.now_ms >= delete_horizon_ms and not listed and not fences


def header_stays(last_offset: Offset, last_of_producer: int | None, *, last_of_segment: bool) -> bool:
    """Whether a batch without surviving records keeps its header.

    Args:
        last_offset: last offset of the batch.
        last_of_producer: last offset of its producer; None if it has none or is not active.
        last_of_segment: whether it is the last batch of a rewritten segment.
    """
    return last_of_segment or last_offset == last_of_producer
