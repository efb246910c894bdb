"""The object of shared storage: record batches of many partitions in one object.

::

    block │ block │ … │ index │ footer          shared/<object id, 16 hexadecimal digits, last one first>

A **block** is the whole record batches of one partition between two offsets. Blocks stand in the order of their
partition, then of their offset. The reversed number in the key spreads the keys over a bucket. Two writers never have
one key, because no number is chosen twice; a conditional write proves it.

The **index** is a payload of ``format.sealed`` with the magic "MSOI"; integers are little-endian::

    object id u64 │ blocks u32
    per block    topic id 16 bytes │ partition u32 │ base offset i64 │ end offset i64
                 position u64 │ bytes u32 │ smallest timestamp, largest timestamp i64 │ leader epoch u32 │ CRC-32C u32
    aborted transactions u32
    per transaction  block u32 │ producer id, first offset, offset of the marker i64

The **footer** has 24 bytes: position of the index u64, bytes of the index u32, CRC-32C of these twelve bytes u32, zero
u32, and the magic "MSOF". A reader opens an object with one read of its end.

Everything that does not match is `Corruption`: a shortened object, a flipped bit, the index of another object, a block
that is not where the index says, and blocks of one partition that overlap.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption, Rejected
from millstream.format.archive import AbortedSpan, Block, SegmentIndex, segment_key
from millstream.format.sealed import seal, unseal
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.model.replication import Term
from millstream.model.shared import NO_OBJECT, ObjectId, SharedPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.format.manifest import ArchivedSegment, ArchiveId

NO_TIME: Final = TimestampMs(-1)
INDEX_MAGIC: Final = b"MSOI"
FOOTER_MAGIC: Final = b"MSOF"
VERSION: Final = 1
SHARED_FOLDER: Final = "shared/"
FOOTER_BYTES: Final = 24
BLOCK_BYTES_MAX: Final = (1 << 32) - 1

_HEAD: Final = struct.Struct("<QI")
_BLOCK: Final = struct.Struct("<16sIqqQIqqII")
_COUNT: Final = struct.Struct("<I")
_ABORTED: Final = struct.Struct("<Iqqq")
_PLACE: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<QIII4s")
_TOPIC_ID_BYTES: Final = 16


class BlockBytes(msgspec.Struct, frozen=True):
    """A block to be written: the caller owns the bytes, which stay unchanged until the object is written."""

    partition: SharedPartition
    base_offset: Offset
    end_offset: Offset
    """Exclusive."""
    max_timestamp: TimestampMs
    data: bytes | memoryview
    min_timestamp: TimestampMs = NO_TIME
    leader_epoch: Term = Term(0)
    """Leader epoch of the first batch."""
    aborted: tuple[AbortedSpan, ...] = ()
    """Aborted transactions, named with the first block that they concern."""


class SharedBlock(msgspec.Struct, frozen=True):
    """Where a block of an object is, and what it holds."""

    partition: SharedPartition
    base_offset: Offset
    end_offset: Offset
    """Exclusive."""
    position: FilePosition
    size_bytes: int
    max_timestamp: TimestampMs
    checksum: int
    """CRC-32C of its bytes."""
    min_timestamp: TimestampMs = NO_TIME
    leader_epoch: Term = Term(0)
    aborted: tuple[AbortedSpan, ...] = ()


class SharedIndex(msgspec.Struct, frozen=True):
    """The index of an object."""

    object_id: ObjectId
    blocks: tuple[SharedBlock, ...]

    def find(self, partition: SharedPartition, offset: Offset) -> SharedBlock | None:
        """The block with this offset of the partition."""
        at = bisect_right(self.blocks, (partition, offset), key=_place) - 1
        one = self.blocks[at] if at >= 0 else None
        return one if one is not None and one.partition == partition and offset < one.end_offset else None

    def within(self, partition: SharedPartition, base_offset: Offset, end_offset: Offset) -> tuple[SharedBlock, ...]:
        """The blocks of the partition that start in [``base_offset``, ``end_offset``)."""
        first = bisect_left(self.blocks, (partition, base_offset), key=_place)
        return self.blocks[first : bisect_left(self.blocks, (partition, end_offset), key=_place)]


class EncodedObject(msgspec.Struct, frozen=True):
    """An object, ready to be written."""

    index: SharedIndex
    parts: tuple[bytes | memoryview, ...]
    """Its bytes, in order; those of blocks are the caller's own."""
    size_bytes: int
    tail: bytes
    """Index and footer: the end of the object, which says what all of it must be."""


def _place(block: SharedBlock) -> tuple[SharedPartition, Offset]:
    return block.partition, block.base_offset


def shared_key(object_id: ObjectId) -> str:
    """The key of an object."""
    return f"{SHARED_FOLDER}{f'{object_id:016x}'[::-1]}"


def object_key(owner: ArchiveId, segment: ArchivedSegment) -> str:
    """The key of the object that has an archived range of a partition: shared, or the partition's own."""
    return shared_key(segment.object_id) if segment.object_id != NO_OBJECT else segment_key(owner, segment)


def parse_shared_key(key: str) -> ObjectId | None:
    """The object of a key; None for another kind of key."""
    name = key.removeprefix(SHARED_FOLDER)
    if name == key or len(name) != 16 or set(name) - set("0123456789abcdef"):
        return None
    return ObjectId(int(name[::-1], 16))


def encode_object(object_id: ObjectId, blocks: Sequence[BlockBytes]) -> EncodedObject:
    """The bytes of an object with these blocks, in any order.

    Raises:
        Rejected: there is no block, or one is empty or too large, or two of a partition overlap.
    """
    placed: list[SharedBlock] = []
    position = 0
    ordered = sorted(blocks, key=lambda one: (one.partition, one.base_offset))
    for one in ordered:
        size = len(one.data)
        if not 0 < size <= BLOCK_BYTES_MAX:
            raise Rejected(f"a block of {size} bytes is no part of a shared object")
        placed.append(
            SharedBlock(
                one.partition,
                one.base_offset,
                one.end_offset,
                FilePosition(position),
                size,
                one.max_timestamp,
                crc32c(one.data),
                one.min_timestamp,
                one.leader_epoch,
                one.aborted,
            )
        )
        position += size
    if problem := _disorder(placed):
        raise Rejected(problem)
    index = SharedIndex(object_id, tuple(placed))
    sealed = seal(INDEX_MAGIC, VERSION, _encode_blocks(index))
    place = _PLACE.pack(position, len(sealed))
    tail = sealed + _FOOTER.pack(position, len(sealed), crc32c(place), 0, FOOTER_MAGIC)
    parts = (*(one.data for one in ordered), tail)
    return EncodedObject(index, parts, position + len(tail), tail)


def index_place(footer: bytes | memoryview, size_bytes: int) -> tuple[FilePosition, FilePosition]:
    """Start and end of the index of an object of ``size_bytes``, by the footer. Raises Corruption."""
    if len(footer) != FOOTER_BYTES:
        raise Corruption(f"{len(footer)} bytes are no footer of a shared object")
    position, length, checksum, zero, magic = _FOOTER.unpack(footer)
    end = position + length
    if magic != FOOTER_MAGIC or zero or crc32c(_PLACE.pack(position, length)) != checksum:
        raise Corruption("a shared object does not end with its footer")
    if end + FOOTER_BYTES != size_bytes:
        raise Corruption(f"a shared object has {size_bytes} bytes, its footer says {end + FOOTER_BYTES}")
    return FilePosition(position), FilePosition(end)


def decode_object_index(object_id: ObjectId, data: bytes | memoryview) -> SharedIndex:
    """The index that `encode_object` made. Raises Corruption for anything else, and for that of another object."""
    payload = unseal(INDEX_MAGIC, VERSION, data)
    try:
        found_id, count = _HEAD.unpack_from(payload)
        place = _HEAD.size + count * _BLOCK.size
        (spans,) = _COUNT.unpack_from(payload, place)
        place += _COUNT.size
        aborted: dict[int, list[AbortedSpan]] = {}
        for at in range(spans):
            number, *span = _ABORTED.unpack_from(payload, place + at * _ABORTED.size)
            aborted.setdefault(number, []).append((span[0], span[1], span[2]))
        place += spans * _ABORTED.size
        blocks = tuple(
            _decode_block(payload, _HEAD.size + at * _BLOCK.size, tuple(aborted.pop(at, ()))) for at in range(count)
        )
    except struct.error as error:
        raise Corruption(f"the index of a shared object that cannot be read: {error}") from error
    if len(payload) != place or aborted:
        raise Corruption("the index of a shared object is longer than its blocks")
    if found_id != object_id:
        raise Corruption(f"the index of the shared object {found_id}, that of {object_id} was expected")
    if problem := _disorder(blocks):
        raise Corruption(problem)
    return SharedIndex(object_id, blocks)


def read_object_index(
    object_id: ObjectId, size_bytes: int, read: Callable[[FilePosition, FilePosition], Any]
) -> SharedIndex:
    """The index of an object of ``size_bytes``, by two reads. Raises Corruption, and what ``read`` raises."""
    if size_bytes <= FOOTER_BYTES:
        raise Corruption(f"the shared object {object_id} has {size_bytes} bytes")
    start, end = index_place(read(FilePosition(size_bytes - FOOTER_BYTES), FilePosition(size_bytes)), size_bytes)
    if not start < end:
        raise Corruption(f"the shared object {object_id} has no index")
    index = decode_object_index(object_id, read(start, end))
    last = index.blocks[-1]
    if last.position + last.size_bytes != start:
        raise Corruption(f"the blocks of the shared object {object_id} do not end at its index")
    return index


def segment_index(index: SharedIndex, owner: ArchiveId, segment: ArchivedSegment) -> tuple[SegmentIndex, FilePosition]:
    """The index of an archived range that lies in the object, with positions in the range, and the start of the range.

    Raises:
        Corruption: the object does not have exactly this range.
    """
    key = SharedPartition(owner.topic_id.bytes, owner.partition_index)
    blocks = index.within(key, segment.base_offset, segment.end_offset)
    size = sum(one.size_bytes for one in blocks)
    if not blocks or (blocks[0].base_offset, blocks[-1].end_offset, size) != (
        segment.base_offset,
        segment.end_offset,
        segment.size_bytes,
    ):
        raise Corruption(
            f"the shared object {index.object_id} does not have the offsets {segment.base_offset} to "
            f"{segment.end_offset}"
        )
    first = blocks[0].position
    found = SegmentIndex(
        segment.base_offset,
        segment.end_offset,
        tuple(
            Block(one.base_offset, FilePosition(one.position - first), one.max_timestamp, one.checksum)
            for one in blocks
        ),
        tuple((one.leader_epoch, one.base_offset) for one in blocks),
        tuple(span for one in blocks for span in one.aborted),
    )
    return found, first


def check_block(block: SharedBlock, data: bytes | memoryview) -> None:
    """Raises Corruption if these are not the bytes of the block."""
    if len(data) != block.size_bytes or crc32c(data) != block.checksum:
        raise Corruption(
            f"the block of offsets {block.base_offset}–{block.end_offset} at byte {block.position} of a shared object "
            "does not match its checksum"
        )


def _encode_blocks(index: SharedIndex) -> bytes:
    aborted = [(number, *span) for number, one in enumerate(index.blocks) for span in one.aborted]
    tail = _COUNT.pack(len(aborted)) + b"".join(_ABORTED.pack(*one) for one in aborted)
    blocks = b"".join(
        _BLOCK.pack(
            one.partition.topic_id,
            one.partition.partition_index,
            one.base_offset,
            one.end_offset,
            one.position,
            one.size_bytes,
            one.min_timestamp,
            one.max_timestamp,
            one.leader_epoch,
            one.checksum,
        )
        for one in index.blocks
    )
    return _HEAD.pack(index.object_id, len(index.blocks)) + blocks + tail


def _decode_block(payload: bytes, at: int, aborted: tuple[AbortedSpan, ...]) -> SharedBlock:
    topic_id, partition, base, end, position, size, oldest, newest, epoch, checksum = _BLOCK.unpack_from(payload, at)
    return SharedBlock(
        SharedPartition(topic_id, partition),
        Offset(base),
        Offset(end),
        FilePosition(position),
        size,
        TimestampMs(newest),
        checksum,
        TimestampMs(oldest),
        Term(epoch),
        aborted,
    )


def _disorder(blocks: Sequence[SharedBlock]) -> str:
    """What is wrong with the order of the blocks; empty if nothing is."""
    if not blocks:
        return "a shared object without a block"
    position, before = 0, None
    for one in blocks:
        where = f"the block of offsets {one.base_offset}–{one.end_offset} of a shared object"
        if len(one.partition.topic_id) != _TOPIC_ID_BYTES:
            return f"{where} has a topic id of {len(one.partition.topic_id)} bytes"
        if one.end_offset <= one.base_offset or one.base_offset < 0:
            return f"{where} has no offsets"
        if one.position != position or not one.size_bytes:
            return f"{where} is not after the block before it"
        if before is not None and (one.partition, one.base_offset) < (before.partition, before.end_offset):
            return f"{where} overlaps the block before it"
        position, before = position + one.size_bytes, one
    return ""
