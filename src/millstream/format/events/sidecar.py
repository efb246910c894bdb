"""The ``.crc`` file beside a chunk: what the chunk's own format lacks.

::

    header  "MSCC" 4 | version 2 | 0 2 | chunk id 4 | base offset 8 | partition UUID 16 | CRC-32C 4           40 bytes
    entry   "MSCB" 4 | base offset 8 | events 4 | events so far 4 | end of .meta 8 | end of .data 8
            | leader epoch 4 | attributes 2 | producer epoch 2 | base sequence 4 | producer id 8
            | base time 8 | largest time 8 | CRC of the batch 4
            | CRC-32C of its range of .meta 4, .data 4, .idx 4, .desc 4 | CRC-32C of the entry 4              96 bytes

One entry a batch, appended with it. The entry gives back the batch header byte for byte, so the batch that was
produced can be rebuilt from chunk and sidecar, checksum included (``batch_pieces``). A reader of Mofka's format
ignores the file.

Where an entry and the chunk disagree, the chunk is not trusted from there on; ``recovery`` decides what that means.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.events.batch import Buffer, EventBatch, little_endian
from millstream.format.events.chunk import ChunkEnds, IndexRecord
from millstream.model.events import ChunkId
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.model.replication import Term
from millstream.wire.batch import HEADER, HEADER_BYTES, MAGIC, OVERHEAD_BYTES, checksum

VERSION: Final = 1
HEADER_MAGIC: Final = b"MSCC"
ENTRY_MAGIC: Final = b"MSCB"

_HEADER = struct.Struct("<4sHHIq16s")
_ENTRY = struct.Struct("<4sqIIQQiHhiqqqIIIII")
_SUM = struct.Struct("<I")
SIDECAR_HEADER_BYTES: Final = _HEADER.size + _SUM.size
ENTRY_BYTES: Final = _ENTRY.size + _SUM.size


class SidecarHeader(msgspec.Struct, frozen=True):
    """Which chunk of which partition this is, and the offset of its first event."""

    chunk: ChunkId
    base_offset: Offset
    partition_uuid: bytes


class RangeSums(msgspec.Struct, frozen=True):
    """CRC-32C of what one batch has in each file."""

    meta: int
    data: int
    index: int
    desc: int


class BatchEntry(msgspec.Struct, frozen=True):
    """One batch of a chunk."""

    base_offset: Offset
    count: int
    ends: ChunkEnds
    """Where the chunk ends with this batch."""
    leader_epoch: Term
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    batch_crc: int
    sums: RangeSums

    @property
    def next_offset(self) -> Offset:
        """Offset after the last event (exclusive)."""
        return Offset(self.base_offset + self.count)


def encode_header(header: SidecarHeader) -> bytes:
    """The first bytes of a sidecar."""
    data = _HEADER.pack(HEADER_MAGIC, VERSION, 0, header.chunk, header.base_offset, header.partition_uuid)
    return data + _SUM.pack(crc32c(data))


def decode_header(data: bytes | bytearray | memoryview) -> SidecarHeader:
    """The header of a sidecar.

    Raises:
        Corruption: the bytes are not a sidecar, or of a version that this code does not know.
    """
    if len(data) < SIDECAR_HEADER_BYTES:
        raise Corruption(f"{len(data)} bytes are too few for a sidecar")
    magic, version, _, chunk, base_offset, partition_uuid = _HEADER.unpack_from(data, 0)
    if magic != HEADER_MAGIC or crc32c(bytes(data[: _HEADER.size])) != _SUM.unpack_from(data, _HEADER.size)[0]:
        raise Corruption("no sidecar header")
    if version != VERSION:
        raise Corruption(f"a sidecar of version {version}, this code reads {VERSION}")
    return SidecarHeader(chunk, base_offset, partition_uuid)


def entry_of(batch: EventBatch, before: ChunkEnds, index: bytes, descriptors: bytes) -> BatchEntry:
    """The entry of a batch that is written at ``before``, with these index records and descriptors."""
    head = batch.header
    return BatchEntry(
        base_offset=Offset(head.base_offset),
        count=batch.count,
        ends=before.plus(batch.count, len(batch.metadata), len(batch.data)),
        leader_epoch=Term(head.leader_epoch),
        attributes=head.attributes,
        producer_id=head.producer_id,
        producer_epoch=head.producer_epoch,
        base_sequence=head.base_sequence,
        base_timestamp=TimestampMs(head.base_timestamp),
        max_timestamp=TimestampMs(head.max_timestamp),
        batch_crc=head.crc,
        sums=RangeSums(crc32c(batch.metadata), crc32c(batch.data), crc32c(index), crc32c(descriptors)),
    )


def encode_entry(entry: BatchEntry) -> bytes:
    """The 96 bytes of an entry."""
    sums = entry.sums
    data = _ENTRY.pack(
        ENTRY_MAGIC,
        entry.base_offset,
        entry.count,
        entry.ends.events,
        entry.ends.meta,
        entry.ends.data,
        entry.leader_epoch,
        entry.attributes,
        entry.producer_epoch,
        entry.base_sequence,
        entry.producer_id,
        entry.base_timestamp,
        entry.max_timestamp,
        entry.batch_crc,
        sums.meta,
        sums.data,
        sums.index,
        sums.desc,
    )
    return data + _SUM.pack(crc32c(data))


def decode_entry(data: bytes | bytearray | memoryview, at: FilePosition) -> BatchEntry | None:
    """The entry at a byte of a sidecar; None if there is no whole and sound one."""
    end = at + ENTRY_BYTES
    if end > len(data):
        return None
    body = bytes(data[at : at + _ENTRY.size])
    values = _ENTRY.unpack(body)
    if values[0] != ENTRY_MAGIC or crc32c(body) != _SUM.unpack_from(data, at + _ENTRY.size)[0]:
        return None
    _, base, count, events, meta, position, epoch, attributes, producer_epoch, sequence, producer, *rest = values
    base_timestamp, max_timestamp, batch_crc, *sums = rest
    ends = ChunkEnds(events, FilePosition(meta), FilePosition(position))
    return BatchEntry(
        base_offset=base,
        count=count,
        ends=ends,
        leader_epoch=epoch,
        attributes=attributes,
        producer_id=producer,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        batch_crc=batch_crc,
        sums=RangeSums(*sums),
    )


def batch_pieces(entry: BatchEntry, records: Sequence[IndexRecord], meta: Buffer, data: Buffer) -> list[Buffer]:
    """The batch of an entry as it was produced, in pieces, from its index records and its ranges of the chunk.

    Raises:
        Corruption: the pieces do not have the batch's checksum.
    """
    meta_sizes = little_endian(array("I", [one.meta_size for one in records]))
    data_sizes = little_endian(array("I", [one.data_size for one in records]))
    head = batch_header(entry, HEADER_BYTES + len(meta_sizes) + len(meta) + len(data_sizes) + len(data))
    pieces = [head, meta_sizes, meta, data_sizes, data]
    if checksum(pieces) != entry.batch_crc:
        raise Corruption(f"the events from {entry.base_offset} on do not match the checksum of their batch")
    return pieces


def batch_header(entry: BatchEntry, size_bytes: int) -> bytes:
    """The header of an entry's batch, which has ``size_bytes`` bytes in all."""
    return HEADER.pack(
        entry.base_offset,
        size_bytes - OVERHEAD_BYTES,
        entry.leader_epoch,
        MAGIC,
        entry.batch_crc,
        entry.attributes,
        entry.count - 1,
        entry.base_timestamp,
        entry.max_timestamp,
        entry.producer_id,
        entry.producer_epoch,
        entry.base_sequence,
        entry.count,
    )
