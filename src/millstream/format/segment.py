"""A segment: the producers' Kafka batches (format 2), verbatim, one after the other, dense in offsets; after compaction
rewritten ones with gaps between them, the last of which still ends where the segment ends.

The broker reads no more of a batch than its 61-byte header, and of that only the fields that lie outside or beside
its checksum: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and largest
timestamp. `walk` goes from header to header; what does not look like the next batch ends it with a reason, never with
an exception, because the end of a file is expected to be odd after a crash.

The CRC-32C of a batch covers everything from the attributes on (`BATCH_CRC_START`); `wire.records.checksum` checks
it. The 21 bytes before are covered by the write-ahead log's table, and in a segment by what they must equal: the next
offset, the length, the magic, the leader epoch that the ``epochs`` file has for that offset.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.model.replication import Term
from millstream.wire.records import CRC_START, DELETE_HORIZON, HEADER_BYTES, MAGIC, OVERHEAD_BYTES

BATCH_HEADER_BYTES: Final = HEADER_BYTES
BATCH_LENGTH_OVERHEAD: Final = OVERHEAD_BYTES
BATCH_CRC_START: Final = CRC_START
MIN_BATCH_LENGTH: Final = BATCH_HEADER_BYTES - BATCH_LENGTH_OVERHEAD

BATCH_HEAD: Final = struct.Struct(">qiibIhiqq14xi")
"""base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first timestamp, largest timestamp,
record count
"""

BATCH_PREFIX: Final = struct.Struct(">qii")
"""base offset, length, leader epoch: the only bytes that a broker writes into a batch"""

BATCH_SPAN: Final = struct.Struct(">qi11xi")
"""base offset, length, last offset delta: what walking needs at least"""


class Batch(NamedTuple):
    """Where a batch lies, and what its header says."""

    position: FilePosition
    size: int
    base_offset: Offset
    last_offset: Offset
    leader_epoch: Term
    crc: int
    first_timestamp: TimestampMs
    """The largest timestamp for a compacted batch with tombstones: its header has the delete horizon in this field."""

    max_timestamp: TimestampMs
    records: int = 1
    """Records in it; 0 if compaction left nothing but the header."""


class WalkEnd(Exception):
    """The bytes at `position` are not the next batch. `beyond`: they may be the beginning of one that passes the
    limit.
    """

    def __init__(self, position: int, reason: str, *, beyond: bool = False) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.beyond = beyond


_BEGIN: Final = FilePosition(0)


def parse_batch(view: memoryview | bytes | bytearray, at: int, position: int, limit: int) -> Batch:
    """The batch whose header is at `at` of the view, which is byte `position` of a file of `limit` bytes.

    Raises:
        WalkEnd: no header fits, the bytes are not a batch header, or the batch would pass `limit`.
    """
    if position + BATCH_HEADER_BYTES > limit:
        raise WalkEnd(position, "too few bytes for a batch header", beyond=True)
    base, length, epoch, magic, crc, attributes, delta, first_timestamp, max_timestamp, count = BATCH_HEAD.unpack_from(
        view, at
    )
    if magic != MAGIC or length < MIN_BATCH_LENGTH or delta < 0 or base < 0:
        raise WalkEnd(position, "no batch header")
    size = length + BATCH_LENGTH_OVERHEAD
    if position + size > limit:
        raise WalkEnd(position, "the batch is longer than the file", beyond=True)
    if attributes & DELETE_HORIZON:
        first_timestamp = max_timestamp
    return Batch(FilePosition(position), size, base, base + delta, epoch, crc, first_timestamp, max_timestamp, count)


def may_follow(batch: Batch, next_offset: Offset, *, gaps: bool) -> bool:
    """Whether a batch may stand after those that end before `next_offset`; `gaps`: in a file that was compacted."""
    return batch.base_offset == next_offset or (gaps and batch.base_offset > next_offset)


def whole_batches(view: memoryview | bytes | bytearray, start: FilePosition = _BEGIN) -> Iterator[Batch]:
    """The batches in a view from byte `start` on.

    Raises:
        WalkEnd: the bytes there are no whole batch.
    """
    limit, position = len(view), int(start)
    while position < limit:
        batch = parse_batch(view, position, position, limit)
        yield batch
        position += batch.size


def walk(view: memoryview | bytes | bytearray, start: int = 0) -> Iterator[Batch]:
    """`whole_batches` that stop without a word where the bytes are no whole batch."""
    try:
        yield from whole_batches(view, FilePosition(start))
    except WalkEnd:
        return
