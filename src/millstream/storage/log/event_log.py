"""The log of an event topic's partition: a log whose segments are chunks.

It rolls as Mofka does: after the batch that brings the active chunk to ``max_events_per_chunk`` events, or its
metadata and data together to ``max_chunk_size`` bytes. And it remembers, for every batch that is in memory, which chunk
it belongs to and how far the chunk's files are written before it. Descriptors follow from that, so that events are fed
from memory before the worker has written their chunk.

A crash loses the memory; the chunks' sidecars say where the active one ends. A cut of the log's end goes back to where
the chunk ended then.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from millstream.errors import Rejected
from millstream.format.events.batch import (
    batch_overhead,
    event_for_marker,
    is_event_batch,
    is_marker,
    metadata_bytes,
)
from millstream.format.events.chunk import ChunkEnds, ChunkLimits
from millstream.model.error_code import ErrorCode
from millstream.model.events import ChunkId
from millstream.model.quantities import BytePosition
from millstream.storage.chunks.chunk_disk import is_chunk_disk
from millstream.storage.log.entries import SentBatch
from millstream.storage.log.log import Log, LogShard
from millstream.wire.batch import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.config.topic_properties import TopicConfig
    from millstream.model.quantities import Offset, TimestampMs
    from millstream.model.replication import RaftPosition, Term
    from millstream.storage.chunks.chunk_disk import ChunkDisk
    from millstream.storage.disk import Disk
    from millstream.storage.log.entries import SentEntries
    from millstream.storage.log.open_log import LogFacts
    from millstream.storage.log.opening import LoadedLog
    from millstream.storage.log.placing import Piece

_PLACES_MIN: Final = 1024
"""Batches that are remembered before those that are in memory no more are looked for."""


class EventShard(LogShard, Protocol):
    """A ``LogShard`` with its disk."""

    disk: Disk


class BatchPlace(NamedTuple):
    """Where the events of one batch go."""

    base_offset: Offset
    chunk: ChunkId
    before: ChunkEnds
    """How far the chunk's files are written before it."""


class EventLog(Log):
    """A log with chunks. ``chunk`` and ``chunk_ends`` are where the next batch goes, if the chunk takes it."""

    __slots__ = ("_chunks", "_places", "_look_at", "_limits", "chunk", "chunk_ends")

    def __init__(
        self, shard: LogShard, facts: LogFacts, config: TopicConfig, loaded: LoadedLog, chunks: ChunkDisk
    ) -> None:
        self._limits = ChunkLimits()
        super().__init__(shard, facts, config, loaded)
        self._chunks = chunks
        self._places: list[BatchPlace] = []
        self._look_at = _PLACES_MIN
        self.chunk = ChunkId(0)
        self.chunk_ends = ChunkEnds()
        self._find_end()

    def _set(self, config: TopicConfig) -> None:
        super()._set(config)
        self._limits = limits_of(config)

    @property
    def chunk_limits(self) -> ChunkLimits:
        """When a chunk is full."""
        return self._limits

    def _find_end(self) -> None:
        """Learn from the files where the active chunk ends."""
        active = self.files.segments.active
        try:
            self.chunk, self.chunk_ends = self._chunks.place(active.path)
        except FileNotFoundError:
            self.chunk, self.chunk_ends = self._chunks.next_number(self.directory), ChunkEnds()

    def place_of(self, offset: Offset) -> BatchPlace | None:
        """The batch with an offset; None if its place is not remembered, and its chunk's files have it then."""
        place = bisect_right(self._places, offset, key=_base_of) - 1
        return self._places[place] if place >= 0 else None

    def make_room(
        self, views: Sequence[memoryview], size: int, last_offset: Offset, leader_epoch: Term
    ) -> list[Piece] | None:
        """See ``Log.make_room``. A chunk that is full is sealed first.

        Raises:
            Rejected: also for a batch of records, which no chunk takes.
        """
        self._require_events(views)
        if self._limits.full(self.chunk_ends) and not self.closed:
            self.roll()
        return super().make_room(views, size, last_offset, leader_epoch)

    def check_room(self, sent: SentEntries) -> None:
        """See ``Log.check_room``. Raises Rejected also for a batch of records, which no chunk takes."""
        for one in sent.entries:
            if isinstance(one, SentBatch):
                self._require_events(one.views)
        super().check_room(sent)

    def _require_events(self, views: Sequence[memoryview]) -> None:
        head = views[0] if len(views[0]) >= HEADER_BYTES else b"".join(views)
        if not is_event_batch(head) and not is_marker(head):
            raise Rejected(f"{self.name}: a batch of records where events are due", ErrorCode.INVALID_RECORD)

    def write(
        self,
        views: Sequence[memoryview],
        size: int,
        base_offset: Offset,
        last_offset: Offset,
        leader_epoch: Term,
        max_timestamp: TimestampMs,
        pieces: list[Piece] | None,
    ) -> None:
        """See ``Log.write``. A marker, which only a leader that is not upgraded yet sends, is kept as an event."""
        head = views[0] if len(views[0]) >= HEADER_BYTES else b"".join(views)
        if is_marker(head):
            views = (memoryview(event_for_marker(b"".join(views))),)
        super().write(views, size, base_offset, last_offset, leader_epoch, max_timestamp, pieces)
        count = last_offset - base_offset + 1
        meta = metadata_bytes(views, count)
        self._places.append(BatchPlace(base_offset, self.chunk, self.chunk_ends))
        self.chunk_ends = self.chunk_ends.plus(count, meta, size - batch_overhead(count) - meta)
        if len(self._places) >= self._look_at:
            self._forget()

    def _forget(self) -> None:
        """Forget the places of batches that are in memory no more."""
        oldest = self.cache.oldest
        if oldest is not None:
            del self._places[: max(0, bisect_right(self._places, oldest.base_offset, key=_base_of) - 1)]
        self._look_at = max(_PLACES_MIN, 2 * len(self._places))

    def roll(self) -> None:
        """See ``OpenLog.roll``: the next batch starts a chunk."""
        super().roll()
        self.chunk = ChunkId(self.chunk + 1)
        self.chunk_ends = ChunkEnds()

    def cut_to(self, offset: Offset, position: BytePosition, raft_position: RaftPosition) -> None:
        """See ``OpenLog.cut_to``."""
        cut = offset < self.next_offset
        super().cut_to(offset, position, raft_position)
        if not cut:
            return
        place = bisect_right(self._places, offset - 1, key=_base_of)
        if place < len(self._places):
            self.chunk, self.chunk_ends = self._places[place][1:]
            del self._places[place:]
            return
        active = self.files.segments.active
        segment = self._chunks.segment(active.path)
        self.chunk, self.chunk_ends = segment.chunk.id, segment.ends_at(BytePosition(position - active.stream))


def open_event_log(shard: EventShard, facts: LogFacts, config: TopicConfig, loaded: LoadedLog) -> EventLog:
    """Open the log of an event topic's partition; what a crash left of chunks that were being made is removed."""
    assert is_chunk_disk(shard.disk), "an event topic needs a disk that keeps chunks"
    shard.disk.forget(facts.directory)  # the worker may have put other files in it
    shard.disk.sweep(facts.directory)
    return EventLog(shard, facts, config, loaded, shard.disk)


def limits_of(config: TopicConfig) -> ChunkLimits:
    """When a chunk of a topic is full."""
    partition = config.event_partition
    return ChunkLimits(partition.max_chunk_size, partition.max_events_per_chunk)


def _base_of(place: BatchPlace) -> int:
    return place.base_offset
