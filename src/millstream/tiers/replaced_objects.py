"""What the archive process does for a replacement before it is committed: nothing that is committed may be wrong.

Each new object is read whole. Its length, its CRC-32C, each block's and each batch's must match; its batches go from
the segment's first offset to its end; its index says what is there. Where offsets are missing, as in a log that was
compacted, the old objects are read, too: they must lack exactly the same offsets. An object that was written too long
ago is refused, because ``tier scrub`` removes what no manifest names after an hour.

If the manifest has the old segments in a part object, a part with the new ones is written, under a name of its own. A
crash after that leaves a part that no entry names, which ``tier scrub`` removes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from crc32c import crc32c

from millstream.errors import Corruption, Rejected
from millstream.format.archive import decode_index, part_key, segment_key
from millstream.format.manifest import (
    RUN_COUNT_MAX,
    decode_part,
    describe_part,
    encode_part,
    pack_run,
    unpack_run,
)
from millstream.format.segment import WalkEnd, whole_batches
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition
from millstream.objects import ObjectKey
from millstream.wire.records import batch_crc_ok

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.format.archive import SegmentIndex
    from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart
    from millstream.model.quantities import Offset
    from millstream.model.replication import Term
    from millstream.objects import ObjectStore
    from millstream.tiers.messages import Check
    from millstream.tiers.uploading import Pace

    Missing: TypeAlias = tuple[Offset, Offset]
    """A range of offsets that are in no batch; the end is exclusive."""


def check_object(
    store: ObjectStore, owner: ArchiveId, segment: ArchivedSegment, written_after_ms: int, pace: Pace
) -> list[Missing]:
    """Read the object of a segment whole. Returns the ranges of offsets that it lacks.

    Raises:
        Rejected: it does not exist (RESOURCE_NOT_FOUND), or it is not what the segment says (INVALID_RECORD).
        MillstreamError: of the store. Nothing is known of the object.
    """
    key = ObjectKey(segment_key(owner, segment))
    info = store.head(key)
    if info is None:
        raise Rejected(f"{store.url} has no object {key}", ErrorCode.RESOURCE_NOT_FOUND)
    whole = segment.size_bytes + segment.index_bytes
    if info.modified_ms < written_after_ms:
        raise Rejected(f"the object {key} was written too long ago: write it again", ErrorCode.RESOURCE_NOT_FOUND)
    try:
        if info.size_bytes != whole:
            raise Corruption(f"it has {info.size_bytes} bytes, {whole} are expected")
        index = decode_index(owner, segment, store.get(key, FilePosition(segment.size_bytes), FilePosition(whole)))
        return _check_blocks(store, key, segment, index, pace)
    except Corruption as error:
        raise Rejected(f"the object {key}: {error.message}", ErrorCode.INVALID_RECORD) from error


def require_same_gaps(store: ObjectStore, command: Check, missing: Sequence[Missing], pace: Pace) -> None:
    """Raise Rejected (INVALID_RECORD) unless the old segments lack the offsets that the new ones lack, ``missing``.
    Without any nothing is read. Errors of the store as of `check_object`.
    """
    if missing:
        before: list[Missing] = []
        for segment in command.before:
            before += check_object(store, command.owner, segment, 0, pace)
        if before != list(missing):
            first, _ = min({*missing} ^ {*before})
            raise Rejected(
                f"the new objects lack other offsets than the old ones, from offset {first} on",
                ErrorCode.INVALID_RECORD,
            )


def _check_blocks(
    store: ObjectStore, key: ObjectKey, segment: ArchivedSegment, index: SegmentIndex, pace: Pace
) -> list[Missing]:
    checksum, expected = 0, segment.base_offset
    missing: list[Missing] = []
    epochs: list[tuple[Term, Offset]] = []
    for number, block in enumerate(index.blocks):
        last = number + 1 == len(index.blocks)
        end = FilePosition(segment.size_bytes) if last else index.blocks[number + 1].position
        if not block.position < end:
            raise Corruption(f"block {number} of its index has no bytes")
        pace.spend(end - block.position)
        data = store.get(key, block.position, end)
        if crc32c(data) != block.checksum or block.base_offset != expected:
            raise Corruption(f"the block at byte {block.position} is not what the index says")
        checksum = crc32c(data, checksum)
        expected = _check_batches(data, block.position, expected, epochs, missing)
    if expected != segment.end_offset or checksum != segment.checksum:
        raise Corruption(f"it ends at offset {expected}, or its bytes do not match the checksum {segment.checksum}")
    if tuple(epochs) != index.epochs:
        raise Corruption("its leader epochs are not those of its index")
    return missing


def _check_batches(
    data: memoryview,
    position: FilePosition,
    expected: Offset,
    epochs: list[tuple[Term, Offset]],
    missing: list[Missing],
) -> Offset:
    """The end (exclusive) of the batches of a block. ``missing`` gets the ranges of offsets before them that it
    lacks.
    """
    try:
        for batch in whole_batches(data):
            if batch.base_offset < expected:
                raise Corruption(f"the batch at offset {batch.base_offset} stands where offset {expected} should")
            if batch.base_offset > expected:
                missing.append((expected, batch.base_offset))
            if not batch_crc_ok(data[batch.position : batch.position + batch.size]):
                raise Corruption(f"the batch at offset {batch.base_offset} does not match its checksum")
            if not epochs or batch.leader_epoch > epochs[-1][0]:
                epochs.append((batch.leader_epoch, batch.base_offset))
            elif batch.leader_epoch < epochs[-1][0]:
                raise Corruption(
                    f"the batch at offset {batch.base_offset} has an earlier leader epoch than one before it"
                )
            expected = type(expected)(batch.last_offset + 1)
    except WalkEnd as end:
        raise Corruption(f"byte {position + end.position}: {end.reason}") from end
    return expected


def part_with(store: ObjectStore, command: Check) -> tuple[ManifestPart, bytes]:
    """The part that has the new segments in the place of the old ones, and the bytes of its object.

    Raises:
        Rejected: the part has other segments than the command names (INVALID_RECORD).
        MillstreamError: of the store.
    """
    before = command.part_before
    assert before is not None, "the caller has a part"
    key = ObjectKey(part_key(command.owner, before))
    info = store.head(key)
    if info is None:
        raise Rejected(f"{store.url} has no object {key}", ErrorCode.RESOURCE_NOT_FOUND)
    data = store.get(key, FilePosition(0), FilePosition(info.size_bytes))
    segments = [one for run in decode_part(command.owner, before, data) for one in unpack_run(run)]
    at = next((place for place, one in enumerate(segments) if one == command.before[0]), -1)
    if at < 0 or segments[at : at + len(command.before)] != list(command.before):
        raise Rejected(f"the part {key} has other segments than the replacement names", ErrorCode.INVALID_RECORD)
    segments[at : at + len(command.before)] = command.after
    runs = [pack_run(segments[first : first + RUN_COUNT_MAX]) for first in range(0, len(segments), RUN_COUNT_MAX)]
    part = describe_part(runs, command.version)
    return part, encode_part(command.owner, runs)
