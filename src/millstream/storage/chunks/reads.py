"""Reads of chunks: batches as they were produced, events for a feed, and selected data.

Events are read in runs. A run's index records are one read, its metadata one, its descriptors one; a batch that the
run starts or ends inside of is read whole, because its checksum covers it whole. Data are read for many events at
once: the selected ranges are sorted by file, neighbours are joined (``format.events.ranges``), and only they are read.
Every file comes from one LRU cache of descriptors, which closes none in use.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.format.events.chunk import (
    DATA_SUFFIX,
    DESC_SUFFIX,
    INDEX_RECORD,
    INDEX_RECORD_BYTES,
    INDEX_SUFFIX,
    META_SUFFIX,
    SIDECAR_SUFFIX,
    ChunkEnds,
    IndexRecord,
    read_index,
)
from millstream.format.events.descriptor import decode_descriptor
from millstream.format.events.ranges import FileRange, ReadSpan, coalesce
from millstream.format.events.sidecar import ENTRY_BYTES, BatchEntry, batch_pieces, decode_entry
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.storage.chunks.chunk import Chunk, entry_position
from millstream.storage.disk import read_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.storage.disk import Buffer, FileCache

RANGES_MAX: Final = 1 << 16
"""Maximum number of ranges that one call of ``fetch_data`` reads."""

_WINDOW_EVENTS: Final = 64
"""Index records that are read at once for neighbours: 2.3 KiB."""


class EventTime(NamedTuple):
    """``events`` consecutive events have this time."""

    events: int
    timestamp: TimestampMs


class FedEvents(msgspec.Struct, frozen=True):
    """Consecutive events: sizes, and metadata and descriptors back to back."""

    first_offset: Offset
    metadata_sizes: list[int]
    metadata: memoryview
    descriptor_sizes: list[int]
    descriptors: memoryview
    times: list[EventTime]


class WantedData(NamedTuple):
    """An event, and the bytes of its descriptor as a client sent them."""

    offset: Offset
    descriptor: bytes


class _Run(NamedTuple):
    """Whole batches of one chunk, with what lies before them."""

    chunk: Chunk
    before: ChunkEnds
    entries: list[BatchEntry]

    @property
    def first_offset(self) -> Offset:
        return self.entries[0].base_offset

    @property
    def ends(self) -> ChunkEnds:
        return self.entries[-1].ends


class ChunkReads:
    """Reads of one store. ``chunks`` is the store's own list."""

    def __init__(self, files: FileCache, chunks: list[Chunk]) -> None:
        self._files = files
        self._chunks = chunks

    def read_batches(self, offset: Offset, max_bytes: int) -> list[list[Buffer]]:
        """Whole batches from the one that has ``offset`` on, each in pieces; the first is returned even if it is
        larger.

        Raises:
            Rejected: the offset is before the first event (OFFSET_OUT_OF_RANGE).
            Corruption: bytes do not match their checksum.
        """
        batches: list[list[Buffer]] = []
        taken = 0
        while (chunk := self._chunk_of(offset)) is not None:
            place = chunk.batch_at(offset)
            run = self._run(chunk, place, 1)
            size = _bytes_of(run)
            if batches and taken + size > max_bytes:
                break
            records = self._records(run)
            meta = self._read(chunk, META_SUFFIX, run.before.meta, run.ends.meta)
            data = self._read(chunk, DATA_SUFFIX, run.before.data, run.ends.data)
            batches.append(batch_pieces(run.entries[0], records, meta, data))
            taken += size
            offset = run.entries[0].next_offset
        return batches

    def feed(self, offset: Offset, end_offset: Offset, events_max: int, max_bytes: int) -> FedEvents | None:
        """The events from ``offset`` on, before ``end_offset``, of one chunk; None without any.

        At most ``events_max``, and of metadata and descriptors at most ``max_bytes``, but one event at least.

        Raises:
            Rejected: the offset is before the first event (OFFSET_OUT_OF_RANGE).
            Corruption: metadata or index do not match their checksum.
        """
        chunk = self._chunk_of(offset)
        end_offset = min(end_offset, chunk.next_offset if chunk else offset)
        if chunk is None or offset >= end_offset:
            return None
        first = chunk.batch_at(offset)
        last = chunk.batch_at(Offset(min(end_offset, offset + events_max) - 1))
        run = self._run_within(chunk, first, last - first + 1, max_bytes)
        records = self._records(run)
        meta = memoryview(self._read(chunk, META_SUFFIX, run.before.meta, run.ends.meta))
        self._check_metadata(run, meta)
        skip = offset - run.first_offset
        count = min(end_offset - offset, events_max, len(records) - skip)
        chosen = _within(records[skip : skip + count], max_bytes)
        descs = self._read(chunk, DESC_SUFFIX, chosen[0].desc_position, _desc_end(chosen[-1]))
        meta_start, meta_end = chosen[0].meta_position, chosen[-1].meta_position + chosen[-1].meta_size
        return FedEvents(
            offset,
            [one.meta_size for one in chosen],
            meta[meta_start - run.before.meta : meta_end - run.before.meta],
            [one.desc_size for one in chosen],
            memoryview(descs),
            _times(run.entries, offset, len(chosen)),
        )

    def fetch_data(self, wanted: Sequence[WantedData], max_bytes: int) -> list[list[memoryview] | MillstreamError]:
        """For each event the pieces of its selected data, or the reason for their absence.

        The list ends before the event with which the data would pass ``max_bytes``; the first one is returned
        even if it is larger.
        """
        results: list[list[memoryview] | MillstreamError] = []
        places = self._places([one.offset for one in wanted])
        plans: list[tuple[Chunk, list[FileRange]] | None] = []
        taken = ranges = 0
        for one in wanted:
            try:
                chunk, selected = _selection(one, places, RANGES_MAX - ranges)
            except MillstreamError as error:
                results.append(error)
                plans.append(None)
                continue
            size = sum(end - start for start, end in selected)
            if results and taken + size > max_bytes:
                break
            taken += size
            ranges += len(selected)
            results.append([])
            plans.append((chunk, selected))
        by_chunk: dict[int, tuple[Chunk, list[FileRange]]] = {}
        for plan in plans:
            if plan is not None:
                by_chunk.setdefault(plan[0].id, (plan[0], []))[1].extend(plan[1])
        spans = {number: self._read_spans(chunk, every) for number, (chunk, every) in by_chunk.items()}
        for place, plan in enumerate(plans):
            if plan is not None:
                results[place] = [_cut_out(spans[plan[0].id], one) for one in plan[1]]
        return results

    def offset_at(self, timestamp: TimestampMs) -> Offset | None:
        """The first offset of the first batch whose largest time is not before ``timestamp``; None without one."""
        for chunk in self._chunks:
            if chunk.last_timestamp < timestamp:
                continue
            for entry in self.entries(chunk, 0, len(chunk.base_offsets)):
                if entry.max_timestamp >= timestamp:
                    return entry.base_offset
        return None

    def entries(self, chunk: Chunk, first_count: int, count: int) -> list[BatchEntry]:
        """``count`` entries of the sidecar, after the first ``first_count``. Corruption if one is not sound."""
        start = entry_position(first_count)
        data = self._read(chunk, SIDECAR_SUFFIX, start, FilePosition(start + count * ENTRY_BYTES))
        found: list[BatchEntry] = []
        for at in range(0, count * ENTRY_BYTES, ENTRY_BYTES):
            entry = decode_entry(data, FilePosition(at))
            if entry is None:
                raise Corruption(f"{chunk.path}{SIDECAR_SUFFIX} has no sound entry at byte {start + at}")
            found.append(entry)
        return found

    # -- details -------------------------------------------------------------------------------------------------------

    def _chunk_of(self, offset: Offset) -> Chunk | None:
        """The chunk that has an offset; None at or after the end. Rejected before the start."""
        if not self._chunks or offset >= self._chunks[-1].next_offset:
            return None
        place = bisect_right(self._chunks, offset, key=lambda one: one.base_offset) - 1
        if place < 0:
            start = self._chunks[0].base_offset
            raise Rejected(f"event {offset} was deleted, the first one is {start}", ErrorCode.OFFSET_OUT_OF_RANGE)
        return self._chunks[place]

    def _run(self, chunk: Chunk, first_count: int, count: int) -> _Run:
        """Batches of a chunk, after the first ``first_count``."""
        with_one_before = max(0, first_count - 1)
        entries = self.entries(chunk, with_one_before, first_count + count - with_one_before)
        before = entries.pop(0).ends if first_count else ChunkEnds()
        return _Run(chunk, before, entries)

    def _run_within(self, chunk: Chunk, first_count: int, count: int, max_bytes: int) -> _Run:
        """As many of the batches as have ``max_bytes`` of metadata, one at least."""
        run = self._run(chunk, first_count, count)
        kept = 1
        while kept < count and run.entries[kept].ends.meta - run.before.meta <= max_bytes:
            kept += 1
        return _Run(chunk, run.before, run.entries[:kept])

    def _records(self, run: _Run) -> list[IndexRecord]:
        index = self._read(run.chunk, INDEX_SUFFIX, run.before.index, run.ends.index)
        at = 0
        for entry in run.entries:
            size = entry.count * INDEX_RECORD_BYTES
            if crc32c(memoryview(index)[at : at + size]) != entry.sums.index:
                raise Corruption(f"{run.chunk.path}{INDEX_SUFFIX} does not match its checksum at {entry.base_offset}")
            at += size
        return read_index(index, run.before)

    def _check_metadata(self, run: _Run, meta: memoryview) -> None:
        at = run.before.meta
        for entry in run.entries:
            piece = meta[at - run.before.meta : entry.ends.meta - run.before.meta]
            if crc32c(piece) != entry.sums.meta:
                raise Corruption(f"{run.chunk.path}{META_SUFFIX} does not match its checksum at {entry.base_offset}")
            at = entry.ends.meta

    def _places(self, offsets: Sequence[Offset]) -> dict[Offset, tuple[Chunk, IndexRecord]]:
        """Chunk and index record of each event that there is. Neighbours are read at once."""
        places: dict[Offset, tuple[Chunk, IndexRecord]] = {}
        window_end = Offset(-1)
        for offset in sorted(set(offsets)):
            if offset < window_end or not self._chunks or offset < self._chunks[0].base_offset:
                continue
            chunk = self._chunk_of(offset)
            if chunk is None:
                break
            window_end = Offset(min(chunk.next_offset, offset + _WINDOW_EVENTS))
            at = FilePosition((offset - chunk.base_offset) * INDEX_RECORD_BYTES)
            end = FilePosition((window_end - chunk.base_offset) * INDEX_RECORD_BYTES)
            records = INDEX_RECORD.iter_unpack(self._read(chunk, INDEX_SUFFIX, at, end))
            for found, values in enumerate(records, offset):
                places[Offset(found)] = chunk, IndexRecord(*values)
        return places

    def _read_spans(self, chunk: Chunk, wanted: Sequence[FileRange]) -> list[tuple[ReadSpan, memoryview]]:
        return [
            (span, memoryview(self._read(chunk, DATA_SUFFIX, *span))) for span in coalesce(wanted, span_bytes=1 << 30)
        ]

    def _read(self, chunk: Chunk, suffix: str, start: FilePosition, end: FilePosition) -> bytearray:
        """Bytes of one file, all of them. Corruption if the file is shorter."""
        file = self._files.acquire(chunk.path + suffix)
        try:
            data = read_at(file, start, end - start)
        finally:
            self._files.release(file)
        if len(data) != end - start:
            raise Corruption(f"{chunk.path}{suffix} ends at {start + len(data)}, bytes up to {end} are missing")
        return data


def _selection(
    wanted: WantedData, places: Mapping[Offset, tuple[Chunk, IndexRecord]], limit: int
) -> tuple[Chunk, list[FileRange]]:
    """The ranges of the chunk's ``.data`` that a descriptor selects, checked against the index."""
    if wanted.offset not in places:
        raise Rejected(f"there is no event {wanted.offset}", ErrorCode.OFFSET_OUT_OF_RANGE)
    chunk, record = places[wanted.offset]
    descriptor = decode_descriptor(wanted.descriptor)
    start = record.data_position
    if not descriptor.is_of(wanted.offset, chunk.id, start, record.data_size):
        raise Rejected(f"the descriptor is not that of event {wanted.offset}")
    return chunk, [
        FileRange(FilePosition(start + one.offset), FilePosition(start + one.end)) for one in descriptor.flatten(limit)
    ]


def _bytes_of(run: _Run) -> int:
    return run.ends.meta - run.before.meta + run.ends.data - run.before.data


def _desc_end(record: IndexRecord) -> FilePosition:
    return FilePosition(record.desc_position + record.desc_size)


def _within(records: Sequence[IndexRecord], max_bytes: int) -> Sequence[IndexRecord]:
    """The first records whose metadata and descriptors have ``max_bytes`` together, one at least."""
    taken = 0
    for count, one in enumerate(records):
        taken += one.meta_size + one.desc_size
        if taken > max_bytes and count:
            return records[:count]
    return records


def _times(entries: Sequence[BatchEntry], offset: Offset, count: int) -> list[EventTime]:
    """The times of ``count`` events from ``offset`` on, in runs."""
    times: list[EventTime] = []
    end = offset + count
    for entry in entries:
        overlap = min(entry.next_offset, end) - max(entry.base_offset, offset)
        if overlap > 0:
            times.append(EventTime(overlap, entry.max_timestamp))
    return times


def _cut_out(spans: Sequence[tuple[ReadSpan, memoryview]], wanted: FileRange) -> memoryview:
    """A wanted range out of the spans that were read, one of which has it whole."""
    place = bisect_right(spans, wanted.start, key=lambda one: one[0].start) - 1
    span, data = spans[place]
    return data[wanted.start - span.start : wanted.end - span.start]
