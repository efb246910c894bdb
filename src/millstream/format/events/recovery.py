"""What of a chunk can be trusted after a crash.

Mofka recovers a chunk by scanning its ``.idx``. Index records say where events are, but not whether those bytes
reached the disk: after a crash any sector of any file may be missing. So the scan goes batch by batch through the
sidecar, and a batch counts only if

- its entry is whole, matches its checksum, and continues the entry before;
- its index records are there, match theirs, and lead from end to end;
- its ranges of ``.meta`` and ``.data`` are there and match theirs.

The first batch that fails ends the chunk: everything behind it, in all five files, is cut by the caller, and the
write-ahead log writes it again. If the failed batch was durable before the crash (``durable_offset``), then this is no
torn tail but damage: nothing may be cut, and the caller reports it. A ``.desc`` that does not match is neither; it
follows from the index and is written again.

``recover_chunk`` reads through a function of the caller and has no other effect.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.events.chunk import (
    DATA_SUFFIX,
    DESC_SUFFIX,
    META_SUFFIX,
    ChunkEnds,
    encode_descriptors,
    read_index,
)
from millstream.format.events.sidecar import (
    ENTRY_BYTES,
    SIDECAR_HEADER_BYTES,
    BatchEntry,
    SidecarHeader,
    decode_entry,
    decode_header,
)
from millstream.model.events import ChunkId
from millstream.model.quantities import FilePosition, Offset

NOT_DURABLE: Final = Offset(-1)

Ranges = Callable[[str, FilePosition, FilePosition], bytes | bytearray | memoryview]
"""``read(suffix, start, end)``: bytes of one file of the chunk; fewer where the file ends."""


class ChunkFiles(msgspec.Struct, frozen=True):
    """The small files of a chunk whole, and a way to read the others."""

    sidecar: bytes | bytearray
    index: bytes | bytearray
    read: Ranges


class RecoveredChunk(msgspec.Struct, frozen=True):
    """The trusted part of a chunk."""

    header: SidecarHeader
    batches: tuple[BatchEntry, ...]
    ends: ChunkEnds
    sidecar_end: FilePosition
    stopped: str | None
    """Why the scan ended before the end of the sidecar; None if it did not."""
    damaged: bool
    """Whether durable events are among those that cannot be trusted."""
    sound_descriptors: int
    """Number of leading events whose descriptors match; the rest of ``.desc`` is written again."""

    @property
    def next_offset(self) -> Offset:
        """Offset behind the last trusted event (exclusive)."""
        return self.batches[-1].next_offset if self.batches else self.header.base_offset


def recover_chunk(files: ChunkFiles, chunk: ChunkId, durable_offset: Offset = NOT_DURABLE) -> RecoveredChunk:
    """The trusted part of a chunk.

    Args:
        files: the chunk.
        chunk: its number, from its name.
        durable_offset: events of this chunk before it were durable before the crash; at most the base offset of the
            next chunk.

    Raises:
        Corruption: the sidecar's header is not that of this chunk. A chunk whose files were just made has none: the
            caller knows by the length of the sidecar.
    """
    header = decode_header(files.sidecar)
    if header.chunk != chunk:
        raise Corruption(f"the sidecar of chunk {header.chunk} lies beside chunk {chunk}")
    batches: list[BatchEntry] = []
    ends = ChunkEnds()
    at = FilePosition(SIDECAR_HEADER_BYTES)
    next_offset = header.base_offset
    sound = 0
    stopped: str | None = None
    while at < len(files.sidecar):
        entry = decode_entry(files.sidecar, at)
        stopped = "its entry is torn" if entry is None else _mismatch(files, entry, ends, next_offset)
        if entry is None or stopped is not None:
            break
        if sound == ends.events and _descriptors_match(files, entry, ends):
            sound = entry.ends.events
        batches.append(entry)
        ends, next_offset = entry.ends, entry.next_offset
        at = FilePosition(at + ENTRY_BYTES)
    why = None if stopped is None else f"the batch at offset {next_offset}: {stopped}"
    return RecoveredChunk(header, tuple(batches), ends, at, why, next_offset < durable_offset, sound)


def _mismatch(files: ChunkFiles, entry: BatchEntry, before: ChunkEnds, next_offset: Offset) -> str | None:
    """Why a batch cannot be trusted; None if it can."""
    ends = entry.ends
    if entry.base_offset != next_offset or not entry.count or ends.events != before.events + entry.count:
        return "it does not continue the one before"
    if ends.meta < before.meta or ends.data < before.data:
        return "it ends before it begins"
    index = files.index[before.index : ends.index]
    if len(index) < ends.index - before.index or crc32c(bytes(index)) != entry.sums.index:
        return "its index records are missing or wrong"
    try:
        records = read_index(index, before)
    except Corruption as error:
        return error.message
    last = records[-1]
    if (last.meta_position + last.meta_size, last.data_position + last.data_size) != (ends.meta, ends.data):
        return "its index records end elsewhere"
    if crc32c(files.read(META_SUFFIX, before.meta, ends.meta)) != entry.sums.meta:
        return "its metadata are missing or wrong"
    if crc32c(files.read(DATA_SUFFIX, before.data, ends.data)) != entry.sums.data:
        return "its data are missing or wrong"
    return None


def _descriptors_match(files: ChunkFiles, entry: BatchEntry, before: ChunkEnds) -> bool:
    stored = files.read(DESC_SUFFIX, before.desc, entry.ends.desc)
    return len(stored) == entry.ends.desc - before.desc and crc32c(stored) == entry.sums.desc


def descriptors_again(index: bytes | bytearray, chunk: ChunkId, before: ChunkEnds, end_count: int) -> bytes:
    """The descriptors of the events from ``before`` to event ``end_count`` (exclusive) of a recovered chunk."""
    records = read_index(index[before.index : ChunkEnds(end_count).index], before)
    return encode_descriptors(chunk, before, [one.data_size for one in records])
