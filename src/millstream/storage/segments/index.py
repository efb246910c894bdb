"""The index of a segment in memory: where to start reading for an offset or a timestamp; loaded, extended, rebuilt.

The worker keeps those of segments that were read or written lately. Entries that are not in the file yet (``pending``)
are kept until a checkpoint has synced the segment bytes they point to. A file that is missing, damaged, ends too early
or cannot be read is no harm: what it lacks is read from the segment's batch headers (``grow_index``), as far as the
caller says that the segment is good. Until then the index says less, and who looks something up walks farther.
"""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.epochs import epoch_at
from millstream.format.index import (
    INDEX_INTERVAL_BYTES,
    NO_SUM,
    NO_TIMESTAMP,
    RunSum,
    SegmentSummary,
    encode_block,
    scan_index,
)
from millstream.format.names import INDEX_SUFFIX, SEGMENT_SUFFIX, parse_segment
from millstream.format.segment import (
    BATCH_CRC_START,
    BATCH_HEADER_BYTES,
    Batch,
    WalkEnd,
    may_follow,
    parse_batch,
)
from millstream.model.quantities import Offset, TimestampMs
from millstream.storage.disk import read_at, read_file, replace_file, write_all
from millstream.wire.records import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.format.epochs import Epochs
    from millstream.storage.disk import Buffer, Disk, File

_CHUNK_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = 4 * 1024 * 1024
_LATE: Final = 2**63 - 1
RUNS_MAX: Final = 2048
"""Runs in one answer of ``runs``: 24 KiB for 64 MiB of a segment."""


def index_path(segment_path: str) -> str:
    """The index file of a segment file."""
    return segment_path.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX


class SegmentIndex:
    """Entries of one segment, rising in offset and position, never falling in timestamp.

    One thread changes it, others may look things up at the same time: an entry counts once its timestamp is there,
    which is added last, and a cut puts new arrays in place of the old.
    """

    __slots__ = (
        "_entries",
        "base_offset",
        "errno",
        "file_bytes",
        "generation",
        "lacking",
        "pending",
        "summary",
        "whole",
    )

    def __init__(self, base_offset: Offset, generation: int = 0) -> None:
        self.base_offset = base_offset
        self.generation = generation
        """Of the segment's file; from 1 on its offsets may have gaps."""

        self._entries = (array("q"), array("q"), array("I"), array("q"))  # offsets, positions, sums, timestamps
        self.pending = 0
        """Entries at the end that the file does not have."""

        self.file_bytes = 0
        """Bytes of the file that verified; the next block goes there."""

        self.summary: SegmentSummary | None = None
        """The newest that the file has."""

        self.whole = True
        """Every byte of the file is valid; False also without a file."""

        self.lacking = False
        """The file is damaged or could not be read, so that entries of the segment may be missing here."""

        self.errno = 0
        """Why the file could not be read."""

    @classmethod
    def load(cls, disk: Disk, segment_path: str, base_offset: Offset) -> SegmentIndex:
        """What the index file says: what verifies if it is damaged, nothing if it is missing or cannot be read."""
        name = parse_segment(os.path.basename(segment_path))
        index = cls(base_offset, name[1] if name is not None else 0)
        try:
            data = read_file(disk, index_path(segment_path))
        except FileNotFoundError:
            index.whole = False
            return index
        except OSError as error:
            index.whole = False
            index.lacking = True
            index.errno = error.errno or 0
            return index
        scan = scan_index(data, base_offset)
        index._entries = (scan.offsets, scan.positions, scan.sums, scan.timestamps)
        index.file_bytes = scan.valid_bytes
        index.summary = scan.summary
        index.whole = scan.whole and scan.summary is not None
        index.lacking = not scan.whole
        return index

    @property
    def offsets(self) -> array[int]:
        return self._entries[0]

    @property
    def positions(self) -> array[int]:
        return self._entries[1]

    @property
    def sums(self) -> array[int]:
        return self._entries[2]

    @property
    def timestamps(self) -> array[int]:
        return self._entries[3]

    def add(self, offset: Offset, position: int, timestamp: TimestampMs, run_sum: RunSum = NO_SUM) -> None:
        """One more entry, and the CRC-32C of the run that ends there; one that is known already is not added twice."""
        offsets, positions, sums, timestamps = self._entries
        if not positions or position > positions[-1]:
            offsets.append(offset)
            positions.append(position)
            sums.append(run_sum)
            timestamps.append(timestamp)
            self.pending += 1

    def place_before(self, offset: Offset) -> tuple[int, int]:
        """(offset, position) of the last entry at or before ``offset``; the segment's start without one."""
        offsets, positions, _, timestamps = self._entries
        place = bisect_right(offsets, offset, 0, len(timestamps)) - 1
        return (offsets[place], positions[place]) if place >= 0 else (self.base_offset, 0)

    def place_before_time(self, timestamp: TimestampMs) -> tuple[int, int]:
        """(offset, position) from which on a batch with a timestamp ≥ ``timestamp`` may come; none comes before."""
        offsets, positions, _, timestamps = self._entries
        place = bisect_left(timestamps, timestamp) - 1
        return (offsets[place], positions[place]) if place >= 0 else (self.base_offset, 0)

    def runs(self, offset: Offset) -> bytes:
        """The marks of up to ``RUNS_MAX`` runs, among them that which holds ``offset``; empty without one. A first run
        at the start of the file counts from the base offset on: compaction may have removed the first offsets.

        Three arrays of unsigned 32-bit numbers of the same length: the marks' offsets from the base offset, their
        positions, and at each the CRC-32C of the bytes from the mark before. A run lies between two marks.
        """
        offsets, positions, sums, timestamps = self._entries
        count = len(timestamps)
        place = bisect_right(offsets, offset, 0, count) - 1
        if place < 0 and count and not positions[0]:
            place = 0
        first = place // RUNS_MAX * RUNS_MAX
        last = min(first + RUNS_MAX, count - 1)
        if place < 0 or place >= last:
            return b""
        marks = slice(first, last + 1)
        relative = [one - self.base_offset for one in offsets[marks]]
        if not positions[first]:
            relative[0] = 0
        return b"".join(array("I", values).tobytes() for values in (relative, positions[marks], sums[marks]))

    def cut(self, position: int) -> None:
        """Forget the entries at or after ``position``, and that a file has any."""
        offsets, positions, sums, timestamps = self._entries
        place = bisect_left(positions, position)
        self._entries = (offsets[:place], positions[:place], sums[:place], timestamps[:place])
        self.pending = place
        self.file_bytes = 0
        self.summary = None

    def complete(self, read: SegmentIndex, size_bytes: int) -> None:
        """``read`` has every entry of the segment's first ``size_bytes``: these take the place of what is known of
        them. The file is void.
        """
        place = bisect_left(self.positions, size_bytes)
        offsets, positions, sums, timestamps = self._entries
        sums = sums[place:]
        if sums:
            sums[0] = NO_SUM  # the entry before it may be another one now
        self._entries = (
            read.offsets + offsets[place:],
            read.positions + positions[place:],
            read.sums + sums,
            read.timestamps + timestamps[place:],
        )
        self.pending = len(self.offsets)
        self.file_bytes = 0
        self.summary = None
        self.lacking = False

    def append_block(self, disk: Disk, segment_path: str, summary: SegmentSummary) -> None:
        """Write the pending entries before ``summary.size_bytes``, which is durable, and the summary, to the
        file's end.
        """
        first = len(self.offsets) - self.pending
        last = bisect_left(self.positions, summary.size_bytes)
        if last <= first and self.summary == summary:
            return
        new = slice(first, last)
        block = encode_block(summary, self.offsets[new], self.positions[new], self.timestamps[new], self.sums[new])
        file = disk.open(index_path(segment_path), create=True)
        try:
            if self.file_bytes == 0 or not self.whole:
                file.truncate(self.file_bytes)
            write_all(file, [block], self.file_bytes)
        finally:
            file.close()
        self.file_bytes += len(block)
        self.pending = len(self.offsets) - last
        self.summary = summary
        self.whole = True

    def encode(self, summary: SegmentSummary) -> bytes:
        """The whole index as a file's content."""
        return encode_block(summary, self.offsets, self.positions, self.timestamps, self.sums)

    def replace(self, disk: Disk, segment_path: str, summary: SegmentSummary) -> None:
        """Rewrite the whole index in one step."""
        block = self.encode(summary)
        replace_file(disk, index_path(segment_path), block)
        self.file_bytes = len(block)
        self.pending = 0
        self.summary = summary
        self.whole = True


class Growing:
    """A segment's summary while batches are added to it, and the checksums of its runs as far as the bytes are given.

    A run of which not every byte was given has no checksum (``NO_SUM``): a reader looks at each of its batches.
    """

    __slots__ = (
        "_index",
        "_interval",
        "_max",
        "_max_offset",
        "_min",
        "_next_index",
        "_run_sum",
        "created_ms",
        "end_offset",
        "size_bytes",
    )

    def __init__(self, index: SegmentIndex, created_ms: int, interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self._index = index
        self._interval = interval_bytes
        summary = index.summary
        self._min = _LATE if summary is None or summary.min_timestamp == NO_TIMESTAMP else summary.min_timestamp
        self._max = NO_TIMESTAMP if summary is None else summary.max_timestamp
        self._max_offset = -1 if summary is None else summary.max_timestamp_offset
        self.created_ms = created_ms if summary is None else summary.created_ms
        self.end_offset = index.base_offset if summary is None else summary.end_offset
        self.size_bytes = 0 if summary is None else summary.size_bytes
        self._next_index = (self.size_bytes + interval_bytes - 1) // interval_bytes * interval_bytes
        self._run_sum = 0 if not self.size_bytes else None
        """CRC-32C of the bytes since the last entry; None if not all of them were given."""

    def goes_on_with(self, batch: Batch) -> bool:
        """Whether this batch may follow: with the next offset, or with a later one if the segment was compacted."""
        return may_follow(batch, Offset(self.end_offset), gaps=self._index.generation > 0)

    def add(self, batch: Batch, data: Sequence[Buffer] = ()) -> None:
        """The batch follows; its position is ``size_bytes``. ``data`` are its bytes as they are written there, which
        the caller has checked, with the leader epoch; empty if it has not.
        """
        if self.size_bytes >= self._next_index:
            known = NO_SUM if self._run_sum is None else RunSum(self._run_sum)
            self._index.add(batch.base_offset, self.size_bytes, self._max, known)
            self._next_index = self.size_bytes + self._interval
            self._run_sum = 0 if self._index.positions[-1] == self.size_bytes else None
        if not data:
            self._run_sum = None
        elif self._run_sum is not None:
            for part in data:
                self._run_sum = crc32c(part, self._run_sum)
        if batch.max_timestamp > self._max:
            self._max = batch.max_timestamp
            self._max_offset = batch.base_offset
        self._min = min(self._min, batch.first_timestamp)
        self.end_offset = batch.last_offset + 1
        self.size_bytes += batch.size

    def summary(self, *, sealed: bool) -> SegmentSummary:
        """As of now."""
        low = NO_TIMESTAMP if self._min == _LATE else self._min
        return SegmentSummary(
            Offset(self._index.base_offset),
            Offset(self.end_offset),
            self.size_bytes,
            TimestampMs(low),
            self._max,
            Offset(self._max_offset),
            self.created_ms,
            sealed,
            self._index.generation,
        )


def grow_index(
    disk: Disk, path: str, index: SegmentIndex, size: int, now_ms: int, epochs: Epochs | None = None
) -> Growing:
    """Extend an index over the batches of a segment that it does not cover, up to byte ``size``. Runs get checksums
    only with ``epochs``, those of the log.

    Raises:
        Corruption: they are not whole batches with dense offsets, or rising ones where compaction has been.
        OSError: they cannot be read.
    """
    growing = Growing(index, now_ms)
    file = disk.open(path)
    try:
        for batch, data in sound_batches_from(file, growing, size, epochs):
            if not growing.goes_on_with(batch):
                raise Corruption(
                    f"{path}: offset {batch.base_offset} at byte {batch.position} follows {growing.end_offset}"
                )
            growing.add(batch, data)
    except WalkEnd as end:
        raise Corruption(f"{path}: byte {end.position}: {end.reason}") from end
    finally:
        file.close()
    return growing


def sound_batches_from(
    file: File, growing: Growing, size_bytes: int, epochs: Epochs | None
) -> Iterator[tuple[Batch, Sequence[Buffer]]]:
    """The batches of a segment file from the end of ``growing`` up to ``size_bytes``. Each comes with its bytes if
    these match its checksum, and its leader epoch is that of the log, as far as it is known; with nothing otherwise, or
    if it is larger than any run that is read as a whole. Without ``epochs`` only headers are read.

    Raises:
        WalkEnd: what stands at the end is not a whole batch. Reaching ``size_bytes`` exactly ends without it.
    """
    if epochs is None:
        for batch in batches_from(file, growing.size_bytes, size_bytes):
            yield batch, ()
        return
    for batch, data in whole_batches_from(file, growing.size_bytes, size_bytes, _PIECE_BYTES):
        sound = len(data) == batch.size and checksum([data], BATCH_CRC_START) == batch.crc
        known = epoch_at(epochs, Offset(batch.base_offset))
        yield batch, (data,) if sound and known in {-1, batch.leader_epoch} else ()


def whole_batches_from(
    file: File, position: int, limit: int, batch_bytes_max: int = sys.maxsize
) -> Iterator[tuple[Batch, memoryview]]:
    """The batches of a segment file from ``position`` on, each with its bytes, read in large pieces. Those larger than
    ``batch_bytes_max`` come without.

    Raises:
        WalkEnd: what stands at the end is not a whole batch. Reaching ``limit`` exactly ends without it.
    """
    data, begin = memoryview(b""), position
    while position < limit:
        at = position - begin
        if at + BATCH_HEADER_BYTES > len(data):
            data, begin, at = memoryview(read_at(file, position, min(_PIECE_BYTES, limit - position))), position, 0
            if len(data) < BATCH_HEADER_BYTES:
                raise _too_short(position, limit)
        batch = parse_batch(data, at, position, limit)
        if batch.size > batch_bytes_max:
            yield batch, memoryview(b"")
            position += batch.size
            continue
        if at + batch.size > len(data):
            size = min(max(_PIECE_BYTES, batch.size), limit - position)
            data, begin, at = memoryview(read_at(file, position, size)), position, 0
        yield batch, data[at : at + batch.size]
        position += batch.size


def batches_from(file: File, position: int, limit: int) -> Iterator[Batch]:
    """The batches of a segment file from ``position`` on, by their headers.

    Raises:
        WalkEnd: what stands at the end is not a whole batch. Reaching ``limit`` exactly ends without it.
    """
    chunk = bytearray()
    chunk_at = position
    while position < limit:
        at = position - chunk_at
        if at < 0 or at + BATCH_HEADER_BYTES > len(chunk):
            chunk = read_at(file, position, min(_CHUNK_BYTES, limit - position))
            chunk_at, at = position, 0
            if len(chunk) < BATCH_HEADER_BYTES:
                raise _too_short(position, limit)
        batch = parse_batch(chunk, at, position, limit)
        yield batch
        position += batch.size


def sound_bytes(file: File, batch: Batch) -> memoryview | None:
    """The bytes of a batch as they are in its file now; None if they do not match its checksum."""
    data = memoryview(read_at(file, batch.position, batch.size))
    return data if len(data) == batch.size and checksum([data], BATCH_CRC_START) == batch.crc else None


def _too_short(position: int, limit: int) -> WalkEnd:
    """The file ends before a batch header does: before the limit, or because that is so near."""
    beyond = position + BATCH_HEADER_BYTES > limit
    return WalkEnd(position, "too few bytes for a batch header", beyond=beyond)
