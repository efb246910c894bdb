"""One chunk as a segment: the bytes of its batches in a row, kept in the five files of Mofka's format.

A log knows segments: files of whole batches, written at a position, read at a position, cut and synced. This class is
such a file. What is written to it is cut into batches, and each batch goes to ``.meta``, ``.data``, ``.desc``, ``.idx``
and the sidecar; what is read from it is rebuilt from them, byte for byte. Group commit, write-behind, checkpoints,
recovery, checksums on read, and retention therefore treat chunks like any other segment.

A batch starts in the stream where the batch before it ends, so its position follows from the sidecar alone. The stream
ends with the last batch whose sidecar entry is sound and whose bytes the other files have; a sidecar that was torn
makes the stream shorter, and recovery writes again what is missing. A sidecar that still has bytes after its last sound
entry when recovery is through is damaged (``ChunkDisk.check_sidecars``), and its log is not served. Bytes that do not
match are passed on as they are: readers of a segment check the checksum of each batch.

A log of events has no markers. One of an earlier broker, which comes from the write-ahead log or from a leader that is
not upgraded yet, is written as an event of the same size (``format.events.batch``).

Order of writes: metadata, data, descriptors, index, sidecar. Cutting goes the other way round. A part of a batch at
the end waits in memory until the rest comes; a crash loses it, and the write-ahead log has it. A failed write changes
nothing that is read. One thread writes, others may read at the same time.
"""

from __future__ import annotations

import errno
import threading
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption
from millstream.format.events.batch import decode_event_batch, event_for_marker, is_marker, little_endian
from millstream.format.events.chunk import (
    DATA_SUFFIX,
    DESC_SUFFIX,
    INDEX_RECORD,
    INDEX_SUFFIX,
    META_SUFFIX,
    SIDECAR_SUFFIX,
    SIZE_MAX,
    SUFFIXES,
    ChunkEnds,
    encode_descriptors,
    encode_index,
)
from millstream.format.events.sidecar import (
    ENTRY_BYTES,
    SIDECAR_HEADER_BYTES,
    BatchEntry,
    SidecarHeader,
    batch_header,
    decode_entry,
    decode_header,
    encode_entry,
    encode_header,
    entry_of,
)
from millstream.model.quantities import BytePosition, FilePosition
from millstream.storage.chunks.chunk import Chunk, entry_position
from millstream.storage.disk import read_at, read_file, without, write_all
from millstream.wire.batch import HEADER_BYTES, OVERHEAD_BYTES
from millstream.wire.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.format.events.batch import EventBatch
    from millstream.model.events import ChunkId
    from millstream.storage.disk import Buffer, Disk, FileCache

_SIZES_BYTES: Final = 8
"""Of each event in a batch: the sizes of its metadata and of its data."""

_LENGTH_END: Final = 12
"""Bytes at the start of a batch that contain its length."""

CUT_ORDER: Final = (SIDECAR_SUFFIX, INDEX_SUFFIX, DESC_SUFFIX, DATA_SUFFIX, META_SUFFIX)


class ChunkSegment:
    """The chunk at ``stem`` (its files without their suffix). Made by ``load`` or ``make``."""

    def __init__(self, files: FileCache, stem: str, header: SidecarHeader) -> None:
        self.chunk = Chunk(header.chunk, stem, header.base_offset)
        self.users = 0
        """Open handles. Written by ``ChunkDisk``."""
        self.whole_bytes = 0
        """End of the last batch in the stream."""
        self.sidecar_bytes = 0
        """Size of the sidecar when it was read or written last: another process may have written since."""
        self._files = files
        self._head = encode_header(header)
        self._positions: array[int] = array("q")  # where each batch starts in the stream
        self._tail = bytearray()
        self._longer = False  # the files have bytes after the last batch, which no batch needs
        self._last: tuple[int, BatchEntry, ChunkEnds, bytes, bytes] | None = None
        self._lock = threading.Lock()

    @classmethod
    def load(cls, disk: Disk, files: FileCache, stem: str, chunk: ChunkId) -> ChunkSegment:
        """The chunk as its files say.

        Raises:
            FileNotFoundError: there is no sidecar, or none whose header is whole: the chunk was being made.
            Corruption: the sidecar is that of another chunk.
        """
        sidecar = read_file(disk, stem + SIDECAR_SUFFIX)
        header = read_header(sidecar, stem)
        if header.chunk != chunk:
            raise Corruption(f"{stem}{SIDECAR_SUFFIX} belongs to chunk {header.chunk}")
        one = cls(files, stem, header)
        one.sidecar_bytes = len(sidecar)
        sizes = {suffix: _size(disk, stem + suffix) for suffix in SUFFIXES}
        for at in range(SIDECAR_HEADER_BYTES, len(sidecar), ENTRY_BYTES):
            entry = decode_entry(sidecar, FilePosition(at))
            if entry is None or not _follows(one.chunk, entry, sizes):
                break
            one._add(entry)
        ends = one.chunk.ends
        expected = {META_SUFFIX: ends.meta, DATA_SUFFIX: ends.data, DESC_SUFFIX: ends.desc, INDEX_SUFFIX: ends.index}
        longer = any(sizes[suffix] > end for suffix, end in expected.items())
        missing = any(size < 0 for size in sizes.values())
        one._longer = longer or missing or len(sidecar) > one.chunk.sidecar_end
        return one

    @classmethod
    def make(cls, files: FileCache, stem: str, header: SidecarHeader) -> ChunkSegment:
        """Make the five files of a chunk, empty. Their names are durable after a sync of the directory."""
        one = cls(files, stem, header)
        for suffix in CUT_ORDER:
            file = files.acquire(stem + suffix, create=True)
            try:
                file.truncate(0)
            finally:
                files.release(file)
        one._write(SIDECAR_SUFFIX, [one._head], FilePosition(0))
        one.sidecar_bytes = SIDECAR_HEADER_BYTES
        return one

    @property
    def size_bytes(self) -> int:
        """Bytes of the stream, the part of a batch at its end included."""
        return self.whole_bytes + len(self._tail)

    @property
    def has_tail(self) -> bool:
        """Whether a part of a batch waits in memory."""
        return bool(self._tail)

    def ends_at(self, position: BytePosition) -> ChunkEnds:
        """How far the files are written with the batches before a stream position, which is the start of one or the
        end.
        """
        count = bisect_right(self._positions, position - 1) if position < self.whole_bytes else len(self._positions)
        return self.chunk.ends if count == len(self._positions) else self._layout(count)[2]

    # -- write ---------------------------------------------------------------------------------------------------------

    def write(self, buffers: Sequence[Buffer], position: BytePosition) -> int:
        """Put bytes of batches at a position up to the end; returns how many. A batch that stands there already is
        written over if it is the same one; another one ends the stream there.

        Raises:
            Corruption: there would be a gap, or it is no event batch. Nothing is changed.
            OSError: the disk failed. Nothing that is read is changed.
        """
        with self._lock:
            count = sum(map(len, buffers))
            at, pieces = self._from_boundary(buffers, position)
            data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            begin = 0
            fresh: list[memoryview] = []
            while (size := _batch_size(data[begin:])) and begin + size <= len(data):
                batch = data[begin : begin + size]
                if is_marker(batch):
                    batch = self._without_marker(batch)
                begin += size
                place = bisect_right(self._positions, at) - 1
                if not fresh and at < self.whole_bytes and self._is_same(place, batch):
                    self._write_over(place, batch)
                    at += size
                    continue
                if not fresh and at < self.whole_bytes:
                    self._cut(place)
                fresh.append(batch)
            if fresh:
                self._append(fresh)
                at = self.whole_bytes
            if at == self.whole_bytes:
                self._tail = bytearray(data[begin:])
            return count

    def _without_marker(self, batch: memoryview) -> memoryview:
        """What is kept of a marker that an earlier broker put into the log, and that is in the write-ahead log only."""
        try:
            return memoryview(event_for_marker(batch))
        except BatchError as error:
            raise Corruption(f"{self._sidecar}: no event batch: {error}") from error

    def _from_boundary(self, buffers: Sequence[Buffer], position: int) -> tuple[int, list[Buffer]]:
        """The start of the batch that a position is in, and the bytes from there on."""
        if position > self.size_bytes:
            raise Corruption(f"{self._sidecar}: byte {position} is after the end at {self.size_bytes}")
        if position >= self.whole_bytes:
            kept = bytes(self._tail[: position - self.whole_bytes])
            return self.whole_bytes, [kept, *buffers] if kept else list(buffers)
        begin = self._positions[bisect_right(self._positions, position) - 1]
        if begin == position:
            return begin, list(buffers)
        return begin, [*self._pieces(begin, position - begin), *buffers]

    def _is_same(self, place: int, batch: memoryview) -> bool:
        entry, before = self._layout(place)[1:3]
        return _stream_bytes(entry, before) == len(batch) and self._header(place) == bytes(batch[:HEADER_BYTES])

    def _write_over(self, place: int, data: memoryview) -> None:
        """Write the bytes of a batch again where they are: a crash may have torn them."""
        batch = _decoded(data, self._sidecar)
        entry, before = self._layout(place)[1:3]
        self._last = None
        self._write(META_SUFFIX, [batch.metadata], before.meta)
        self._write(DATA_SUFFIX, [batch.data], before.data)
        self._write(DESC_SUFFIX, [encode_descriptors(self.chunk.id, before, batch.data_sizes)], before.desc)
        self._write(INDEX_SUFFIX, [encode_index(before, batch.metadata_sizes, batch.data_sizes)], before.index)
        self._write_entries([entry], place)

    def _append(self, batches: Sequence[memoryview]) -> None:
        """Batches after the last one, in one write a file."""
        if self._longer:
            self._cut(len(self._positions))
        first = ends = self.chunk.ends
        metadata: list[Buffer] = []
        payload: list[Buffer] = []
        descriptors: list[Buffer] = []
        index: list[Buffer] = []
        entries: list[BatchEntry] = []
        for data in batches:
            batch = _decoded(data, self._sidecar)
            records = encode_index(ends, batch.metadata_sizes, batch.data_sizes)
            described = encode_descriptors(self.chunk.id, ends, batch.data_sizes)
            entry = entry_of(batch, ends, records, described)
            metadata.append(batch.metadata)
            payload.append(batch.data)
            descriptors.append(described)
            index.append(records)
            entries.append(entry)
            ends = entry.ends
        self._longer = True
        self._write(META_SUFFIX, metadata, first.meta)
        self._write(DATA_SUFFIX, payload, first.data)
        self._write(DESC_SUFFIX, descriptors, first.desc)
        self._write(INDEX_SUFFIX, index, first.index)
        self._write_entries(entries, len(self._positions))
        for entry in entries:
            self._add(entry)
        self._longer = False
        self.sidecar_bytes = self.chunk.sidecar_end

    def _write_entries(self, entries: Sequence[BatchEntry], place: int) -> None:
        """The sidecar's entries from ``place`` on. The first goes with the header once more: a start after a sync that
        failed finds the header in memory, where no later sync takes it from.
        """
        head, position = ([], entry_position(place)) if place else ([self._head], FilePosition(0))
        self._write(SIDECAR_SUFFIX, [*head, *map(encode_entry, entries)], position)

    def _add(self, entry: BatchEntry) -> None:
        before = self.chunk.ends
        self._positions.append(self.whole_bytes)
        self.chunk.add(entry)
        self.whole_bytes += _stream_bytes(entry, before)

    def truncate(self, size_bytes: int) -> None:
        """Cut the stream at the start of a batch. Raises Corruption for other places: no log is cut there."""
        with self._lock:
            if size_bytes >= self.whole_bytes:
                del self._tail[size_bytes - self.whole_bytes :]
                if self._longer:
                    self._cut(len(self._positions))
                return
            place = bisect_right(self._positions, size_bytes) - 1
            if self._positions[place] != size_bytes:
                raise Corruption(f"{self._sidecar}: byte {size_bytes} is inside of a batch")
            self._tail.clear()
            self._cut(place)

    def _cut(self, count: int) -> None:
        """Cut the files to the first ``count`` batches."""
        chunk = self.chunk
        if count < len(self._positions):
            ends = self._layout(count)[2]
            whole = self._positions[count]
            kept = [self._entry(one) for one in range(count)]
            self._last = None
            self.whole_bytes = whole
            self._positions = self._positions[:count]
            chunk.base_offsets = chunk.base_offsets[:count]
            chunk.ends = ends
            chunk.last_timestamp = max((one.max_timestamp for one in kept), default=-1)
        self._longer = True
        ends = chunk.ends
        lengths = {
            SIDECAR_SUFFIX: chunk.sidecar_end,
            INDEX_SUFFIX: ends.index,
            DESC_SUFFIX: ends.desc,
            DATA_SUFFIX: ends.data,
            META_SUFFIX: ends.meta,
        }
        for suffix in CUT_ORDER:
            file = self._files.acquire(chunk.path + suffix, create=True)  # a crash may have lost its name
            try:
                if file.size() > lengths[suffix]:
                    file.truncate(lengths[suffix])
            finally:
                self._files.release(file)
        self._longer = False
        self.sidecar_bytes = chunk.sidecar_end

    def sync(self) -> None:
        """Make every batch so far durable. No batch needs a file that is missing: a crash has lost its name, or the
        chunk is being removed, whose names are not to come back.
        """
        for suffix in SUFFIXES:
            try:
                file = self._files.acquire(self.chunk.path + suffix)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                self._files.release(file)

    # -- read ----------------------------------------------------------------------------------------------------------

    def read_into(self, buffers: Sequence[bytearray | memoryview], position: BytePosition) -> int:
        """Fill the buffers with the stream from a position on; returns how many bytes there were."""
        room = sum(map(len, buffers))
        filled = 0
        rest: Sequence[bytearray | memoryview] = buffers
        for piece in self._pieces(position, room):
            source = memoryview(piece)
            while len(source):
                target = memoryview(rest[0])
                count = min(len(target), len(source))
                target[:count] = source[:count]
                source = source[count:]
                filled += count
                rest = without(rest, count)  # type: ignore[assignment]
        return filled

    def _pieces(self, position: int, size: int) -> list[Buffer]:
        """Up to ``size`` bytes of the stream."""
        pieces: list[Buffer] = []
        whole = self.whole_bytes
        end = min(position + size, whole)
        at = position
        while at < end:
            place = bisect_right(self._positions, at) - 1
            begin = self._positions[place]
            entry, before = self._layout(place)[1:3]
            stop = min(end, begin + _stream_bytes(entry, before))
            pieces += self._of_batch(place, at - begin, stop - begin)
            at = stop
        if position + size > whole:
            tail = bytes(self._tail)
            pieces.append(tail[max(0, position - whole) : position + size - whole])
        return [piece for piece in pieces if len(piece)]

    def _of_batch(self, place: int, start: int, end: int) -> list[Buffer]:
        """Bytes of one batch: header, metadata sizes, metadata, data sizes, data."""
        _, entry, before, meta_sizes, data_sizes = self._layout(place)
        meta, data = entry.ends.meta - before.meta, entry.ends.data - before.data
        pieces: list[Buffer] = []
        at = 0
        for length, fixed, suffix, origin in (
            (HEADER_BYTES, self._header(place), "", 0),
            (len(meta_sizes), meta_sizes, "", 0),
            (meta, b"", META_SUFFIX, before.meta),
            (len(data_sizes), data_sizes, "", 0),
            (data, b"", DATA_SUFFIX, before.data),
        ):
            low, high = max(start - at, 0), min(end - at, length)
            if low < high:
                pieces.append(self._read(suffix, origin + low, origin + high) if suffix else fixed[low:high])
            at += length
        return pieces

    def _header(self, place: int) -> bytes:
        _, entry, before, _, _ = self._layout(place)
        return batch_header(entry, _stream_bytes(entry, before))

    def _layout(self, place: int) -> tuple[int, BatchEntry, ChunkEnds, bytes, bytes]:
        """A batch's number, its entry, where the files end before it, and the two runs of sizes."""
        last = self._last
        if last is not None and last[0] == place:
            return last
        before = self._entry(place - 1).ends if place else ChunkEnds()
        entry = self._entry(place)
        index = self._read(INDEX_SUFFIX, before.index, entry.ends.index)
        records = list(INDEX_RECORD.iter_unpack(index))
        sizes = [little_endian(array("I", [one[column] for one in records])) for column in (1, 3)]
        self._last = last = (place, entry, before, sizes[0], sizes[1])
        return last

    def _entry(self, place: int) -> BatchEntry:
        at = entry_position(place)
        entry = decode_entry(self._read(SIDECAR_SUFFIX, at, at + ENTRY_BYTES), FilePosition(0))
        if entry is None:
            raise Corruption(f"{self._sidecar} has no sound entry at byte {at}")
        return entry

    # -- files ---------------------------------------------------------------------------------------------------------

    @property
    def _sidecar(self) -> str:
        return self.chunk.path + SIDECAR_SUFFIX

    def _read(self, suffix: str, start: int, end: int) -> bytearray:
        """Bytes of one file; zeros where it is shorter, which no checksum matches."""
        file = self._files.acquire(self.chunk.path + suffix)
        try:
            data = read_at(file, start, end - start)
        finally:
            self._files.release(file)
        data += bytes(end - start - len(data))
        return data

    def _write(self, suffix: str, buffers: Sequence[Buffer], position: FilePosition) -> None:
        file = self._files.acquire(self.chunk.path + suffix)
        try:
            write_all(file, [one for one in buffers if len(one)], position)
        finally:
            self._files.release(file)


def read_header(sidecar: bytes | bytearray, stem: str) -> SidecarHeader:
    """The header of a sidecar; FileNotFoundError where it did not reach the disk, Corruption where it is damaged."""
    head = sidecar[:SIDECAR_HEADER_BYTES]
    if len(head) < SIDECAR_HEADER_BYTES or not any(head):
        raise FileNotFoundError(errno.ENOENT, "the chunk was being made", stem + SIDECAR_SUFFIX)
    return decode_header(head)


def _follows(chunk: Chunk, entry: BatchEntry, sizes: dict[str, int]) -> bool:
    """Whether an entry continues the chunk at its end, and the files have its bytes."""
    before, ends = chunk.ends, entry.ends
    return (
        entry.base_offset == chunk.next_offset
        and ends.events == before.events + entry.count
        and sizes[DESC_SUFFIX] >= 0
        and before.meta <= ends.meta <= sizes[META_SUFFIX]
        and before.data <= ends.data <= sizes[DATA_SUFFIX]
        and ends.index <= sizes[INDEX_SUFFIX]
    )


def _stream_bytes(entry: BatchEntry, before: ChunkEnds) -> int:
    """Size of a batch in the stream."""
    ends = entry.ends
    return HEADER_BYTES + entry.count * _SIZES_BYTES + ends.meta - before.meta + ends.data - before.data


def _batch_size(data: memoryview) -> int:
    """Size of the batch that starts here; 0 if its header is not complete."""
    return int.from_bytes(data[8:_LENGTH_END], "big") + OVERHEAD_BYTES if len(data) >= _LENGTH_END else 0


def _decoded(data: memoryview, path: str) -> EventBatch:
    try:
        return decode_event_batch(data, event_bytes_max=2 * SIZE_MAX, verify=False)
    except BatchError as error:
        raise Corruption(f"{path}: no event batch: {error}") from error


def _size(disk: Disk, path: str) -> int:
    """Size of a file; -1 if it does not exist."""
    try:
        return disk.size(path)
    except FileNotFoundError:
        return -1
