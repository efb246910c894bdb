"""Where a log starts and ends: in Kafka's offsets, and in positions of the log's stream of bytes.

::

    start_offset … written_position ≤ durable_position ≤ next position
                                      durable_offset   ≤ next_offset       (the same two places)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.format.index import NO_TIMESTAMP, SegmentSummary
from millstream.storage.log.segment_list import LATE

if TYPE_CHECKING:
    from millstream.model.quantities import BytePosition, Offset, TimestampMs
    from millstream.model.replication import RaftPosition, Term
    from millstream.storage.log.segment_list import Segment


class LogEnd(NamedTuple):
    """Where a log ended at some moment, and the state of its active segment then."""

    offset: Offset
    position: BytePosition
    segment: Segment
    max_timestamp: TimestampMs
    max_timestamp_offset: Offset
    min_timestamp: TimestampMs
    generation: int
    """Of the log: how often its end had been cut."""

    raft_position: RaftPosition
    term: Term | int
    """Newest leader epoch of the log; -1 without one."""

    write_term: Term
    """Term in which the newest write was made; see ``LogRaft.write_term``."""

    @classmethod
    def of(
        cls,
        offset: Offset,
        position: BytePosition,
        segment: Segment,
        generation: int,
        raft_position: RaftPosition,
        term: Term | int,
        write_term: Term,
    ) -> LogEnd:
        """The end of a log whose active segment is ``segment``."""
        return cls(
            offset,
            position,
            segment,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            segment.min_timestamp,
            generation,
            raft_position,
            term,
            write_term,
        )

    def summary(self) -> SegmentSummary:
        """What the index of the segment was to say then."""
        segment = self.segment
        return SegmentSummary(
            segment.base_offset,
            self.offset,
            self.position - segment.stream,
            NO_TIMESTAMP if self.min_timestamp == LATE else self.min_timestamp,
            self.max_timestamp,
            self.max_timestamp_offset,
            segment.created_ms,
            sealed=False,
            generation=segment.generation,
        )


class LogEnds:
    """The ends of one log. Each field is written only by those that its law names."""

    __slots__ = (
        "cutting",
        "durable",
        "durable_offset",
        "durable_position",
        "durable_start",
        "generation",
        "next_offset",
        "start_offset",
        "written_position",
    )

    def __init__(self, start_offset: Offset, next_offset: Offset, position: BytePosition) -> None:
        self.next_offset: Offset = next_offset
        """Offset of the next batch; ≥ ``durable_offset``. Moved by ``Log.write`` and by a cut."""
        self.durable_offset: Offset = next_offset
        """End (exclusive) of what is synced in the write-ahead log. Moved by ``synced`` and by a cut."""
        self.durable_position: BytePosition = position
        """The same in the log's stream; moves together with ``durable_offset``."""
        self.written_position: BytePosition = position
        """End of what is in the segments' page cache; ≤ ``durable_position``. Moved by ``WriteBehind`` and by a cut."""
        self.start_offset: Offset = start_offset
        """First offset that readers may see; never decreases. Equal to ``durable_start``."""
        self.durable_start: Offset = start_offset
        """The start offset after a crash now. Moved by ``trim``, when the note of the trim is durable."""
        self.durable: LogEnd
        """The newest end that is synced: a checkpoint may bring this into segments. Moves with ``durable_offset``."""
        self.generation = 0
        """How often the end was cut. What was remembered of the end before a cut is void after it."""
        self.cutting = False
        """The end is being cut: nothing may be appended until that is durable."""

    def synced(self, end: LogEnd) -> bool:
        """A tick is synced that had ``end`` as the log's end. False if that is not news, or void after a cut."""
        if end.raft_position <= self.durable.raft_position or end.generation != self.generation:
            return False
        self.durable_offset = end.offset
        self.durable_position = end.position
        self.durable = end
        return True

    def trim(self, offset: Offset) -> None:
        """The log durably starts at ``offset``, or later."""
        self.durable_start = max(self.durable_start, offset)
        self.start_offset = self.durable_start  # not before: a client that has seen it must not see less after a crash

    def cut(self, offset: Offset, position: BytePosition) -> None:
        """The log ends at ``offset``, stream ``position``, now. ``durable`` is the caller's to lower."""
        self.generation += 1
        self.next_offset = offset
        self.durable_offset = min(self.durable_offset, offset)
        self.durable_position = min(self.durable_position, position)
        self.written_position = min(self.written_position, position)
