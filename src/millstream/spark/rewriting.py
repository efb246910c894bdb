"""Rewrites archived segments into one new object: several joined, or one whose batches get another codec.

The offsets, timestamps, producer ids, epochs and sequences, the attributes and the leader epoch of every batch stay as
they are, and so do transaction markers. With another codec the records of a batch are decompressed and compressed
again, byte for byte the same. A batch stays as it is if it has the codec already, is a marker, has events, or has
records that cannot be decompressed, because a producer sent them so.

What is read is checked: every block and batch, and each segment against the checksum in the manifest. A difference is
`Corruption`, and no object comes to be. Memory holds one request and one block. The new object has a random revision in
its name, so it replaces nothing, and no reader needs it until its replacement is committed.
"""

import secrets
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption, Rejected
from millstream.format.archive import (
    BLOCK_BYTES,
    AbortedSpan,
    SegmentIndex,
    decode_index,
    segment_key,
)
from millstream.format.events.batch import is_event_batch
from millstream.format.manifest import REVISION_MAX, ArchivedSegment, ArchiveId, appended_ms_of
from millstream.format.segment import Batch, WalkEnd, parse_batch
from millstream.format.segment_object import SegmentObject
from millstream.model.quantities import FilePosition
from millstream.objects import ObjectKey, ObjectStore
from millstream.spark.archived_segment import task_store
from millstream.spark.scrub import block_end, block_ranges
from millstream.wire.batch import CODEC_MASK, CRC_START, HEADER, HEADER_BYTES, OVERHEAD_BYTES, parse_header
from millstream.wire.compression import compress, decompress
from millstream.wire.errors import BatchError

_PATIENCE_S: Final = 30.0
_CRC_FIELD: Final = slice(17, 21)


class Group(msgspec.Struct, frozen=True):
    """Segments of one partition that one new object is to replace, in order and without gaps."""

    topic_id: str
    """In hexadecimal."""

    partition: int
    before: tuple[ArchivedSegment, ...]

    @property
    def owner(self) -> ArchiveId:
        """Whose segments they are."""
        return ArchiveId(uuid.UUID(self.topic_id), self.partition)

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments."""
        return sum(one.size_bytes for one in self.before)


class Rewritten(msgspec.Struct, frozen=True):
    """A new object. ``after`` is None if there was nothing to change, and no object was written."""

    group: Group
    after: ArchivedSegment | None = None
    batches: int = 0
    reencoded: int = 0
    """Batches with another codec than before."""

    left: int = 0
    """Batches whose records cannot be decompressed: they stay as they are."""


class _Tally:
    def __init__(self) -> None:
        self.batches = self.reencoded = self.left = 0
        self.aborted: set[AbortedSpan] | None = set()


def rewrite(group: Group, url: str, codec: int | None) -> Rewritten:
    """Write the object of a group, with another codec unless ``codec`` is None.

    Raises:
        Corruption: a segment is not what the manifest says.
        MillstreamError: the store does not have it, does not answer, or refuses.
    """
    store = task_store(url, _PATIENCE_S)
    if codec is not None and not any(_can_change(data, codec) for _, data in _batches(store, group, _Tally())):
        return Rewritten(group)
    tally = _Tally()
    # Gaps of the old segments stay: the leader compares them.
    made = SegmentObject(group.owner, group.before[0].base_offset, BLOCK_BYTES, gaps=True)
    expected = msgspec.structs.replace(
        group.before[0],
        end_offset=group.before[-1].end_offset,
        term=max(one.term for one in group.before),
        revision=1 + secrets.randbelow(REVISION_MAX),
    )
    key = ObjectKey(segment_key(group.owner, expected))
    store.put_stream(key, _parts(store, group, made, codec, tally))
    appended_ms = appended_ms_of(group.before[-1].min_timestamp)
    after = msgspec.structs.replace(made.segment(expected.term, appended_ms), revision=expected.revision)
    info = store.head(key)
    if info is None or info.size_bytes != after.size_bytes + after.index_bytes:
        raise Rejected(f"{store.url}: the object {key} is not there as it was written")
    return Rewritten(group, after, tally.batches, tally.reencoded, tally.left)


def _parts(store: ObjectStore, group: Group, made: SegmentObject, codec: int | None, tally: _Tally) -> Iterator[bytes]:
    """The bytes of the new object."""
    for batch, data in _batches(store, group, tally):
        tally.batches += 1
        new = None
        if codec is not None and _changed(data, codec):
            try:
                new = with_codec(data, codec)
                tally.reencoded += 1
            except BatchError:
                tally.left += 1
        block = made.add(batch, data if new is None else memoryview(new))
        if block is not None:
            yield block
    if (block := made.end_block()) is not None:
        yield block
    if made.end_offset != group.before[-1].end_offset:
        raise Corruption(f"the segments end at offset {made.end_offset}, not at {group.before[-1].end_offset}")
    yield made.end(tally.aborted)


def _changed(data: memoryview, codec: int) -> bool:
    """Whether a batch gets another codec."""
    header = parse_header(data)
    return header.codec != codec and not header.is_control and not is_event_batch(data)


def _can_change(data: memoryview, codec: int) -> bool:
    """Whether a batch gets another codec, and its records can be decompressed."""
    if not _changed(data, codec):
        return False
    try:
        decompress(parse_header(data).codec, data[HEADER_BYTES:])
    except BatchError:
        return False
    return True


def with_codec(batch: memoryview, codec: int) -> bytes:
    """The batch with its records compressed by another codec; everything else stays.

    Raises:
        BatchError: the records cannot be decompressed.
    """
    fields = list(HEADER.unpack_from(batch))
    payload = compress(codec, decompress(fields[5] & CODEC_MASK, batch[HEADER_BYTES:]))
    fields[1] = HEADER_BYTES - OVERHEAD_BYTES + len(payload)
    fields[5] = fields[5] & ~CODEC_MASK | codec
    made = bytearray(HEADER.pack(*fields)) + payload
    made[_CRC_FIELD] = crc32c(memoryview(made)[CRC_START:]).to_bytes(4, "big")
    return bytes(made)


def _batches(store: ObjectStore, group: Group, tally: _Tally) -> Iterator[tuple[Batch, memoryview]]:
    """Every batch of the group, checked, with its bytes. ``tally`` gets the aborted transactions."""
    for segment in group.before:
        key = ObjectKey(segment_key(group.owner, segment))
        size, whole = segment.size_bytes, segment.size_bytes + segment.index_bytes
        index = decode_index(group.owner, segment, store.get(key, FilePosition(size), FilePosition(whole)))
        if index.aborted is None or tally.aborted is None:
            tally.aborted = None  # of the new object it is not known, either
        else:
            tally.aborted |= set(index.aborted)
        checksum = 0
        for data in _ranges(store, key, index, segment):
            checksum = crc32c(data, checksum)
            at = 0
            while at < len(data):
                try:
                    batch = parse_batch(data, at, at, len(data))
                except WalkEnd as end:
                    raise Corruption(f"the object {key}: {end.reason}") from None
                yield batch, data[at : at + batch.size]
                at += batch.size
        if checksum != segment.checksum:
            raise Corruption(f"the object {key} does not match the checksum in the manifest")


def _ranges(store: ObjectStore, key: ObjectKey, index: SegmentIndex, segment: ArchivedSegment) -> Iterator[memoryview]:
    """Whole blocks, checked."""
    for first, last in block_ranges(index, segment.size_bytes):
        start = index.blocks[first].position
        data = store.get(key, start, FilePosition(block_end(index, segment.size_bytes, last)))
        for number in range(first, last + 1):
            part = data[index.blocks[number].position - start : block_end(index, segment.size_bytes, number) - start]
            if crc32c(part) != index.blocks[number].checksum:
                raise Corruption(f"the object {key} is damaged at byte {index.blocks[number].position}")
        yield data


def plan_merge(
    segments: Sequence[Sequence[ArchivedSegment]], target_bytes: int, count_max: int
) -> list[tuple[ArchivedSegment, ...]]:
    """Neighbours to be joined: each at most half of the target, together at most the target. ``segments`` come in
    sequences over whose borders nothing is joined.
    """
    groups: list[tuple[ArchivedSegment, ...]] = []
    for part in segments:
        group: list[ArchivedSegment] = []
        for one in part:
            small = one.size_bytes <= target_bytes // 2
            full = sum(other.size_bytes for other in group) + one.size_bytes > target_bytes
            if group and (not small or full or len(group) == count_max):
                groups.append(tuple(group))
                group = []
            if small:
                group.append(one)
        groups.append(tuple(group))
    return [group for group in groups if len(group) > 1]
