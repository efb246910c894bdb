"""The ``quarantine`` file of a partition: its records of the write-ahead log, kept when the log's files are used again.

::

    file   │ chunk │ chunk │ …                        one chunk per frame that had records of the partition, in order
    chunk  │ head 40 │ table 36 × n │ payload, payload, … │

A chunk holds the table entries and payloads of one frame (``format.wal``), without those of other groups. Its head says
from which shard's write-ahead log it comes and which frame it was. Chunks are appended; only the last can be torn, and
a torn one is void: the write-ahead log still has its frame, because that is released only after the chunk was synced.

Bad input: `chunks` ends at the first chunk whose head or table does not verify. A payload that was damaged in the
write-ahead log is marked; it is given as None.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.format.wal import RECORD, RECORD_BYTES, FrameSequence, WalRecord
from millstream.model.quantities import ShardId

MAGIC: Final = 0x31514D57  # "WMQ1"
HEAD: Final = struct.Struct("<IIIIQQQ")
"""magic, CRC-32C of everything after it in the chunk, shard, records, sequence, payload bytes, flags"""

_CRC_FROM: Final = 8
_DOUBTFUL: Final = 1
_DAMAGED: Final = 1
"""Second byte of a table entry whose payload did not verify when it was copied; 0 otherwise."""


class Chunk(NamedTuple):
    """The records of one frame."""

    shard: ShardId
    sequence: FrameSequence
    records: tuple[tuple[WalRecord, memoryview | None], ...]
    """Each with its payload; None if that was damaged."""

    doubtful: bool = False
    """Frames before this one could not be read, and may have had records of the partition."""


def encode_chunk(
    shard: ShardId,
    sequence: FrameSequence,
    records: Sequence[tuple[WalRecord, bytes | memoryview | None]],
    *,
    doubtful: bool = False,
) -> bytes:
    """A chunk of one frame; a payload that is None is damaged."""
    table, payloads = bytearray(), bytearray()
    for one, payload in records:
        size = one.size if payload is not None else 0
        damaged = _DAMAGED if payload is None else 0
        table += RECORD.pack(one.kind, damaged, 0, one.group, one.leader_epoch, one.base, one.last, size, one.crc)
        payloads += payload or b""
    head = HEAD.pack(MAGIC, 0, shard, len(records), sequence, len(payloads), _DOUBTFUL if doubtful else 0)
    crc = crc32c(bytes(payloads), crc32c(bytes(table), crc32c(head[_CRC_FROM:])))
    return head[:4] + crc.to_bytes(4, "little") + head[_CRC_FROM:] + table + payloads


def chunks(data: bytes | bytearray | memoryview) -> Iterator[Chunk]:
    """The whole chunks of a file, in order."""
    view = memoryview(data)
    at = 0
    while at + HEAD.size <= len(view):
        magic, crc, shard, count, sequence, size, flags = HEAD.unpack_from(view, at)
        payload_at = at + HEAD.size + count * RECORD_BYTES
        end = payload_at + size
        if magic != MAGIC or end > len(view) or crc32c(view[at + _CRC_FROM : end]) != crc:
            return
        records: list[tuple[WalRecord, memoryview | None]] = []
        position = payload_at
        for entry in RECORD.iter_unpack(view[at + HEAD.size : payload_at]):
            kind, damaged, _, group, epoch, base, last, length, payload_crc = entry
            payload = None if damaged else view[position : position + length]
            records.append((WalRecord(kind, group, epoch, base, last, length, payload_crc), payload))
            position += length
        yield Chunk(ShardId(shard), FrameSequence(sequence), tuple(records), bool(flags & _DOUBTFUL))
        at = end
