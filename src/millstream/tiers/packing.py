"""Making a shared object: batches from the arena, checked one by one, written once and read back.

Nothing wrong is uploaded: a batch that does not match its checksum, or does not follow the one before, cancels the
upload with `Corruption`. The object is durable and has been read back when `pack` returns; before that it may be there,
and counts for nothing. The same call may be repeated: it writes the same bytes under the same number.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import Corruption
from millstream.format.archive import BLOCK_BYTES, ends_before
from millstream.format.manifest import ArchivedSegment, ArchiveId, without_timestamps
from millstream.format.segment import BATCH_HEADER_BYTES, BATCH_SPAN, WalkEnd, parse_batch
from millstream.format.shared_object import NO_TIME, BlockBytes, encode_object
from millstream.model.quantities import Offset, TimestampMs
from millstream.tiers.shared_objects import RANDOM_BITS, store_object, verify_object
from millstream.wire.records import batch_crc_ok

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.format.segment import Batch
    from millstream.format.shared_object import SharedBlock
    from millstream.iobuf import IoBuf
    from millstream.model.shared import ObjectId, SharedPartition
    from millstream.objects import ObjectStore
    from millstream.tiers.messages import Share, SharedPart
    from millstream.tiers.uploading import Pace

    OnBlock = Callable[[ArchiveId, Offset, memoryview, TimestampMs], None]


def pack(
    store: ObjectStore, command: Share, arena: memoryview, pace: Pace, on_block: OnBlock | None = None
) -> list[ArchivedSegment]:
    """Write the object; what it has of each part. ``on_block`` gets each block that is in the store.

    Raises:
        Corruption: a batch is not what it should be, or the store gave back other bytes. The object does not count.
        MillstreamError: of the store.
    """
    cut = [_cut(part, _joined(part, arena)) for part in command.parts]
    encoded = encode_object(command.object_id, [block for blocks in cut for block in blocks])
    pace.spend(encoded.size_bytes)
    store_object(store, encoded)
    verify_object(store, encoded)
    if on_block is not None:
        for block in (one for blocks in cut for one in blocks):
            on_block(archive_id(block.partition), block.base_offset, memoryview(block.data), block.max_timestamp)
    index = encoded.index
    return [
        segment_of(index.object_id, index.within(one[0].partition, one[0].base_offset, one[-1].end_offset))
        for one in cut
    ]


def end_of(data: IoBuf) -> Offset:
    """End offset (exclusive) of the batches in ``data``."""
    base = delta = at = 0
    while at + BATCH_HEADER_BYTES <= len(data):
        base, length, delta = BATCH_SPAN.unpack(data.copy(at, BATCH_SPAN.size))
        at += length + 12
    return Offset(base + delta + 1)


def archive_id(partition: SharedPartition) -> ArchiveId:
    """The name of a partition in archives."""
    return ArchiveId(uuid.UUID(bytes=partition.topic_id), partition.partition_index)


def segment_of(object_id: ObjectId, blocks: Sequence[SharedBlock]) -> ArchivedSegment:
    """The entry of an archive for blocks of one partition in an object that follow each other."""
    newest = max(one.max_timestamp for one in blocks)
    oldest = min((one.min_timestamp for one in blocks if one.min_timestamp >= 0), default=NO_TIME)
    if newest < 0:
        oldest = newest = without_timestamps(TimestampMs(object_id >> RANDOM_BITS))
    return ArchivedSegment(
        blocks[0].base_offset,
        blocks[-1].end_offset,
        sum(one.size_bytes for one in blocks),
        0,
        oldest,
        newest,
        blocks[-1].leader_epoch,
        object_id=object_id,
    )


def _joined(part: SharedPart, arena: memoryview) -> memoryview:
    spans = iter(part.spans)
    return memoryview(b"".join(arena[start:end] for start, end in zip(spans, spans, strict=True)))


def _cut(part: SharedPart, data: memoryview) -> list[BlockBytes]:
    """The blocks of a part: whole batches of one leader epoch, each block of a mebibyte at most, or as `ends_before`
    says.
    """
    where = f"partition {part.partition.partition_index} of topic {part.partition.topic_id.hex()}"
    blocks: list[BlockBytes] = []
    batches: list[Batch] = []
    at = begin = 0
    while at < len(data):
        try:
            batch = parse_batch(data, at, at, len(data))
        except WalkEnd as end:
            raise Corruption(f"{where}: byte {end.position} of what is to be uploaded: {end.reason}") from end
        expected = batches[-1].last_offset + 1 if batches else blocks[-1].end_offset if blocks else batch.base_offset
        if batch.base_offset != expected or not batch_crc_ok(data[at : at + batch.size]):
            raise Corruption(f"{where}: the batch at offset {batch.base_offset} is damaged or out of place")
        is_later = bool(batches) and batch.leader_epoch != batches[0].leader_epoch
        if is_later or ends_before(at - begin, batch.size, BLOCK_BYTES):
            blocks.append(_block(part.partition, batches, data[begin:at]))
            batches, begin = [], at
        batches.append(batch)
        at += batch.size
        if at == len(data):
            blocks.append(_block(part.partition, batches, data[begin:at]))
            batches, begin = [], at
    if not blocks or not blocks[0].base_offset <= part.from_offset or blocks[-1].end_offset != part.end_offset:
        raise Corruption(f"{where}: the batches do not have the offsets {part.from_offset} to {part.end_offset}")
    if part.aborted:
        spans = tuple(sorted(part.aborted, key=lambda one: one[1]))
        blocks[0] = msgspec.structs.replace(blocks[0], aborted=spans)
    return blocks


def _block(partition: SharedPartition, batches: Sequence[Batch], data: memoryview) -> BlockBytes:
    return BlockBytes(
        partition,
        batches[0].base_offset,
        Offset(batches[-1].last_offset + 1),
        max(one.max_timestamp for one in batches),
        data,
        min((one.first_timestamp for one in batches if one.first_timestamp >= 0), default=NO_TIME),
        batches[0].leader_epoch,
    )
