"""The segments of one log, as its shard knows them: where each starts and ends, how large it is, which times it covers.

Positions in a log are counted in one *stream*: the bytes of all its segments one after the other, as they were when
the log was opened. A segment's ``stream`` is where its first byte lies in it; the cache, the write-behind and the WAL
speak in stream positions, the worker in positions in a file. The last segment is the active one; its end and size
move with every append and are filled in (``refresh``) on demand. Knows no file handles.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.format.index import NO_TIMESTAMP, SegmentSummary
from millstream.format.names import segment_name
from millstream.model.quantities import BytePosition, Offset, TimestampMs

if TYPE_CHECKING:
    from collections.abc import Iterator

LATE: Final = TimestampMs(2**63 - 1)
"""Smallest timestamp of a segment without a batch."""


class SegmentInfo(msgspec.Struct, frozen=True):
    """A segment as it is shown outside: to a manifest, to tools."""

    base_offset: Offset
    end_offset: Offset
    bytes: int
    min_timestamp: TimestampMs
    """Smallest first timestamp of its batches; -1 without one."""

    max_timestamp: TimestampMs
    path: str
    sealed: bool
    """No batch will be added."""

    flushed_bytes: int
    """What is in the file by now, the last batch of it maybe in part; equal to ``bytes`` once all of it is."""


class Segment:
    """One segment of an open log."""

    __slots__ = (
        "base_offset",
        "began_us",
        "created_ms",
        "dead",
        "end_offset",
        "entries",
        "generation",
        "max_timestamp",
        "max_timestamp_offset",
        "min_timestamp",
        "next_index",
        "path",
        "sealed",
        "size_bytes",
        "stream",
    )

    def __init__(
        self, directory: str, base_offset: Offset, stream: BytePosition, created_ms: int, generation: int = 0
    ) -> None:
        self.path = f"{directory}/{segment_name(base_offset, generation)}"
        self.generation = generation
        """How often its bytes went through compaction."""

        self.base_offset: Offset = base_offset
        self.end_offset: Offset = base_offset
        self.stream: BytePosition = stream
        self.size_bytes = 0
        self.min_timestamp: TimestampMs = LATE
        self.max_timestamp: TimestampMs = NO_TIMESTAMP
        self.max_timestamp_offset = Offset(-1)
        self.created_ms = created_ms
        """Wall clock when its first batch came, or when it was made."""

        self.began_us = -1
        """The same on the monotonic clock; -1 until housekeeping has seen the segment. Housekeeping writes it."""

        self.sealed = False
        self.dead = False
        """Its file is deleted or about to be; what is still cached of it will not be written."""

        self.entries: list[int] = []
        """Index entries the worker does not have yet: offset, position, largest timestamp before, offset, …"""

        self.next_index = 0
        """Position from which on the next batch gets an index entry."""

    @property
    def end(self) -> BytePosition:
        """Stream position after its last byte."""
        return BytePosition(self.stream + self.size_bytes)

    def summary(self, *, sealed: bool | None = None) -> SegmentSummary:
        """What its index is to say about it."""
        return SegmentSummary(
            self.base_offset,
            self.end_offset,
            self.size_bytes,
            NO_TIMESTAMP if self.min_timestamp == LATE else self.min_timestamp,
            self.max_timestamp,
            self.max_timestamp_offset,
            self.created_ms,
            self.sealed if sealed is None else sealed,
            self.generation,
        )

    @classmethod
    def of(cls, directory: str, summary: SegmentSummary, stream: BytePosition, interval_bytes: int) -> Segment:
        """The segment that a summary describes."""
        segment = cls(directory, summary.base_offset, stream, summary.created_ms, summary.generation)
        segment.end_offset = summary.end_offset
        segment.size_bytes = summary.size_bytes
        segment.min_timestamp = LATE if summary.min_timestamp == NO_TIMESTAMP else summary.min_timestamp
        segment.max_timestamp = summary.max_timestamp
        segment.max_timestamp_offset = summary.max_timestamp_offset
        segment.sealed = summary.sealed
        segment.next_index = (summary.size_bytes + interval_bytes - 1) // interval_bytes * interval_bytes
        return segment


class SegmentList:
    """Segments in order. At least one: the last, which is active."""

    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def first(self) -> Segment:
        return self._segments[0]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def all(self) -> list[Segment]:
        """Oldest first; a copy."""
        return list(self._segments)

    def add(self, segment: Segment) -> None:
        """A new active segment; the one before is sealed."""
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def changed_ms(self, now_ms: int) -> list[int]:
        """When the last batch was appended to each segment, at the latest: before the next one was started, or now."""
        return [*(one.created_ms for one in self._segments[1:]), now_ms]

    def find(self, offset: Offset) -> Segment | None:
        """The segment that holds ``offset``, or would; None if that is before the first."""
        place = bisect_right(self._bases, offset) - 1
        return self._segments[place] if place >= 0 else None

    def after(self, segment: Segment) -> Segment | None:
        """The one that follows."""
        place = bisect_right(self._bases, segment.base_offset)
        return self._segments[place] if place < len(self._segments) else None

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Put one segment in the place of several that follow each other, which are sealed.

        The stream is shifted before it, so that it stays in one piece: nothing of these segments may be cached.
        """
        place = self._segments.index(old[0])
        if self._segments[place : place + len(old)] != old or place + len(old) == len(self._segments):
            raise AssertionError(f"{new.path} replaces segments that are not there")
        self._segments[place : place + len(old)] = [new]
        self._bases[place : place + len(old)] = [new.base_offset]
        stream = self._segments[place + 1].stream
        for segment in reversed(self._segments[: place + 1]):
            stream = BytePosition(stream - segment.size_bytes)
            segment.stream = stream

    def drop_front(self, start_offset: Offset) -> list[Segment]:
        """Take out the sealed segments that hold nothing at or above ``start_offset``."""
        count = 0
        while count < len(self._segments) - 1 and self._segments[count].end_offset <= start_offset:
            count += 1
        dropped = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        return dropped

    def drop_back(self, offset: Offset) -> list[Segment]:
        """Take out the segments that start at or after ``offset``, but for the first; the last one left is
        active again.
        """
        count = bisect_right(self._bases, offset - 1)
        count = max(1, count)
        dropped = self._segments[count:]
        del self._segments[count:]
        del self._bases[count:]
        return dropped
