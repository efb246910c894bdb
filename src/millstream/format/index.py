"""The sparse index of a segment: from an offset, and from a timestamp, to a place to start reading.

::

    file   │ block │ block │ …                         one block per checkpoint, the last when the segment is sealed
    block  │ header 80 │ entry 20 × n │
    entry  │ offset − base offset u32 │ position u32 │ largest timestamp before position i64 │ run's CRC-32C u32 │

One entry per 32 KiB of segment, at a batch's start. The timestamp is the largest of all batches *before* that
position, so it never falls from entry to entry: the first batch with a timestamp ≥ t lies after the last entry whose
value is < t. What lies between an entry and the one before is a *run*: whole batches, whose bytes together have this
CRC-32C. 0 says that it is not known. Blocks of the version before (``MIX1``) have entries of 16 bytes without it.

Each header repeats what is known of the segment up to the block's end, so the last block alone says how
long the segment is.

A block is appended only after the segment bytes that it describes were synced, and carries its own CRC-32C. Reading
stops at the first block that does not verify; what is missing from there on is rebuilt from the segment
(`storage.segments.index`). An index is therefore never trusted beyond what was durable when it was written. All
integers are little-endian.
"""

import struct
from array import array
from typing import Final, NamedTuple, NewType

import msgspec
from crc32c import crc32c

from millstream.model.quantities import Offset, TimestampMs

INDEX_MAGIC: Final = 0x3258494D  # "MIX2"
MAGIC_WITHOUT_SUMS: Final = 0x3158494D  # "MIX1"
SEALED: Final = 1
ENTRY_BYTES: Final = 20
RunSum = NewType("RunSum", int)
"""CRC-32C of the bytes between two entries."""

NO_SUM: Final = RunSum(0)
"""The checksum of a run of which not every byte was seen when it was written."""

INDEX_INTERVAL_BYTES: Final = 32 * 1024
NO_TIMESTAMP: Final = TimestampMs(-1)
OFFSETS_PER_SEGMENT: Final = 2**31 - 1
"""An entry has 32 bits for an offset; Kafka's limit is the same."""

_HEADER: Final = struct.Struct("<IIIIqqqqqqqq")
"""magic, CRC of what follows, entries, flags, then the fields of `SegmentSummary`"""
HEADER_BYTES: Final = _HEADER.size
_CRC_START: Final = 8
_ENTRY: Final = struct.Struct("<IIqI")
_ENTRY_WITHOUT_SUM: Final = struct.Struct("<IIq")


class SegmentSummary(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a segment without reading it."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    min_timestamp: TimestampMs = NO_TIMESTAMP
    """Smallest first timestamp of its batches; -1 without one."""

    max_timestamp: TimestampMs = NO_TIMESTAMP
    """No record of it has a larger timestamp. Larger than that of all records after the segment's tail was cut."""

    max_timestamp_offset: Offset = Offset(-1)
    """Base offset of the batch with the largest timestamp."""

    created_ms: int = 0
    sealed: bool = False
    generation: int = 0
    """How often its bytes went through compaction; a part of its file's name."""


class IndexScan(NamedTuple):
    """What an index file says as far as it verifies."""

    summary: SegmentSummary | None
    """Summary of the last valid block; None without one."""

    offsets: "array[int]"
    positions: "array[int]"
    timestamps: "array[int]"
    sums: "array[int]"
    """CRC-32C of the bytes from the entry before up to this one; ``NO_SUM`` where it is not known."""

    valid_bytes: int
    whole: bool
    """Whether every byte of the file verified."""


def encode_block(
    summary: SegmentSummary,
    offsets: "array[int]",
    positions: "array[int]",
    timestamps: "array[int]",
    sums: "array[int] | None" = None,
) -> bytes:
    """One block: the entries that are new since the last one, and the summary as of now. Without ``sums`` no run's
    checksum is known.
    """
    base = summary.base_offset
    known = sums if sums is not None else array("I", bytes(4 * len(offsets)))
    entries = b"".join(
        _ENTRY.pack(offset - base, position, timestamp, crc)
        for offset, position, timestamp, crc in zip(offsets, positions, timestamps, known, strict=True)
    )
    header = _HEADER.pack(
        INDEX_MAGIC,
        0,
        len(offsets),
        SEALED if summary.sealed else 0,
        base,
        summary.end_offset,
        summary.size_bytes,
        summary.min_timestamp,
        summary.max_timestamp,
        summary.max_timestamp_offset,
        summary.created_ms,
        summary.generation,
    )
    crc = crc32c(entries, crc32c(header[_CRC_START:]))
    return header[:4] + crc.to_bytes(4, "little") + header[_CRC_START:] + entries


def scan_index(data: bytes | bytearray, base_offset: Offset) -> IndexScan:
    """Read the blocks of the index of the segment that starts at `base_offset`, up to the first bad one."""
    offsets, positions, timestamps, sums = array("q"), array("q"), array("q"), array("I")
    summary: SegmentSummary | None = None
    at = 0
    view = memoryview(data)
    while at + HEADER_BYTES <= len(view):
        fields = _HEADER.unpack_from(view, at)
        magic, crc, count, flags, base, end, size, low, high, high_offset, created, generation = fields
        entry = _ENTRY if magic == INDEX_MAGIC else _ENTRY_WITHOUT_SUM
        until = at + HEADER_BYTES + count * entry.size
        if (
            magic not in {INDEX_MAGIC, MAGIC_WITHOUT_SUMS}
            or base != base_offset
            or until > len(view)
            or crc32c(view[at + _CRC_START : until]) != crc
        ):
            break
        while positions and positions[-1] >= size:
            # The log's end was cut: what an earlier block says about bytes after it is void.
            offsets.pop()
            positions.pop()
            timestamps.pop()
            sums.pop()
        for offset, position, timestamp, *known in entry.iter_unpack(view[at + HEADER_BYTES : until]):
            offsets.append(base + offset)
            positions.append(position)
            timestamps.append(timestamp)
            sums.append(known[0] if known else NO_SUM)
        sealed = bool(flags & SEALED)
        summary = SegmentSummary(base, end, size, low, high, high_offset, created, sealed, generation)
        at = until
    return IndexScan(summary, offsets, positions, timestamps, sums, at, at == len(view))
