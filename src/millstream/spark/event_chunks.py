"""Reads events from the chunks of an event topic's partition, straight from disk: metadata first, data where wanted.

::

    .crc   batches, times, checksums ─► which batches hold the wanted events
    .idx   where each event is       ─► checked
    .meta  metadata                  ─► checked, decoded
    .data  data                      ─► only of the events that are asked for; checked where a batch is wanted whole

The chunk with an offset is found by the sidecars' headers. A file that is missing is no corruption: retention was
faster, and the caller continues with the leader. Bytes that do not match their checksum raise ``Corruption``.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Self

from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.events import IndexRecord, read_index
from millstream.format.events.chunk import (
    DATA_SUFFIX,
    DESCRIPTOR_BYTES,
    INDEX_SUFFIX,
    META_SUFFIX,
    SIDECAR_SUFFIX,
    ChunkEnds,
    encode_descriptors,
    parse_chunk_name,
)
from millstream.format.events.sidecar import (
    ENTRY_BYTES,
    SIDECAR_HEADER_BYTES,
    BatchEntry,
    SidecarHeader,
    decode_entry,
    decode_header,
)
from millstream.model.quantities import FilePosition

_GAP_BYTES: Final = 4096
"""Unwanted bytes between two wanted ranges that are read along, because another call costs more."""


class EventRun(NamedTuple):
    """Events of one batch, in order: ids from ``first_offset`` on."""

    first_offset: int
    metadata: list[bytes]
    sizes: list[int]
    """Bytes of the data of each."""
    descriptors: list[bytes]
    timestamp: int
    """Of all of them, in ms."""


class ChunkFile:
    """One sealed chunk. ``bytes_read`` counts the bytes read. Close it, or use it as a context manager."""

    def __init__(self, directory: str, base_offset: int) -> None:
        """Find and open it.

        Raises:
            OSError: there is no such chunk on this machine.
            Corruption: its sidecar is damaged.
        """
        self.bytes_read = 0
        self._files: dict[str, int] = {}
        self._stem, self._header = _find(directory, base_offset)
        self._entries: list[tuple[ChunkEnds, BatchEntry]] = []
        self._run: tuple[ChunkEnds, BatchEntry, list[IndexRecord], int] | None = None
        try:
            for suffix in (SIDECAR_SUFFIX, INDEX_SUFFIX, META_SUFFIX, DATA_SUFFIX):
                self._files[suffix] = os.open(self._stem + suffix, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def runs(self, start: int, end: int) -> Iterator[EventRun]:
        """Events with ids [start, end), a batch at a time. ``data`` reads those of the last one that was given."""
        for before, entry in self._batches():
            if entry.next_offset <= start:
                continue
            if entry.base_offset >= end:
                return
            index = self._read(INDEX_SUFFIX, before.index, entry.ends.index)
            meta = self._read(META_SUFFIX, before.meta, entry.ends.meta)
            if crc32c(index) != entry.sums.index or crc32c(meta) != entry.sums.meta:
                raise self._damaged(entry)
            records = read_index(index, before)
            low, high = max(0, start - entry.base_offset), min(entry.count, end - entry.base_offset)
            self._run = before, entry, records, low
            wanted = records[low:high]
            packed = encode_descriptors(self._header.chunk, before, [one.data_size for one in records])
            yield EventRun(
                entry.base_offset + low,
                [_piece(meta, one.meta_position - before.meta, one.meta_size) for one in wanted],
                [one.data_size for one in wanted],
                [_piece(packed, at * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES) for at in range(low, high)],
                entry.max_timestamp,
            )

    def data(self, numbers: Sequence[int]) -> list[bytes]:
        """The data of events of the last run, by their places in it, which rise."""
        assert self._run is not None, "a run comes before its data"
        before, entry, records, low = self._run
        if len(numbers) == len(records):
            whole = self._read(DATA_SUFFIX, before.data, entry.ends.data)
            if crc32c(whole) != entry.sums.data:
                raise self._damaged(entry)
            return [_piece(whole, one.data_position - before.data, one.data_size) for one in records]
        found: list[bytes] = []
        group: list[IndexRecord] = []
        for number in numbers:
            one = records[low + number]
            if group and one.data_position - (group[-1].data_position + group[-1].data_size) > _GAP_BYTES:
                found += self._group(group)
                group = []
            group.append(one)
        return found + (self._group(group) if group else [])

    def _group(self, records: list[IndexRecord]) -> list[bytes]:
        start, last = records[0].data_position, records[-1]
        data = self._read(DATA_SUFFIX, start, FilePosition(last.data_position + last.data_size))
        return [_piece(data, one.data_position - start, one.data_size) for one in records]

    def _batches(self) -> Iterator[tuple[ChunkEnds, BatchEntry]]:
        if not self._entries:
            sidecar = self._read(
                SIDECAR_SUFFIX, FilePosition(0), FilePosition(os.fstat(self._files[SIDECAR_SUFFIX]).st_size)
            )
            before = ChunkEnds()
            for at in range(SIDECAR_HEADER_BYTES, len(sidecar), ENTRY_BYTES):
                entry = decode_entry(sidecar, FilePosition(at))
                if entry is None:
                    raise Corruption(f"{self._stem}{SIDECAR_SUFFIX} is damaged at byte {at}")
                self._entries.append((before, entry))
                before = entry.ends
        yield from self._entries

    def _read(self, suffix: str, start: FilePosition, end: FilePosition) -> bytes:
        data = os.pread(self._files[suffix], end - start, start)
        if len(data) < end - start:
            raise Corruption(f"{self._stem}{suffix} ends at byte {start + len(data)}, before byte {end}")
        self.bytes_read += len(data)
        return data

    def _damaged(self, entry: BatchEntry) -> Corruption:
        return Corruption(f"{self._stem}: the events from {entry.base_offset} on do not match their checksum")


def _find(directory: str, base_offset: int) -> tuple[str, SidecarHeader]:
    """Stem and header of the chunk that starts with an event."""
    for name in sorted(os.listdir(directory), reverse=True):
        if not name.endswith(SIDECAR_SUFFIX) or parse_chunk_name(name) is None:
            continue
        path = os.path.join(directory, name)
        with open(path, "rb") as file:
            header = decode_header(file.read(SIDECAR_HEADER_BYTES))
        if header.base_offset == base_offset:
            return path.removesuffix(SIDECAR_SUFFIX), header
    raise FileNotFoundError(f"no chunk in {directory} starts with event {base_offset}")


def _piece(data: bytes, start: int, size: int) -> bytes:
    return data[start : start + size]
