"""The archive process's part of a join: ranges of shared objects, and own objects before them, become one object.

Every byte is checked twice: each block against its checksum, each batch against its own and its place. A range that is
damaged or gone cancels the join, with `Corruption` or `Rejected`, and no object is there. The new object has no owner
when `join` returns: the leader has it read whole once more before it is committed (`replacing`). One that is never
committed, because of a crash or another leader, is superfluous: ``tier scrub`` removes it. A repeated join writes
another object, under a name of its own.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from crc32c import crc32c

from millstream.core.shared import JoinLimits, next_join
from millstream.errors import Corruption, MillstreamError, Unavailable
from millstream.format.archive import BLOCK_BYTES, segment_key
from millstream.format.manifest import REVISION_MAX, ArchivedSegment, appended_ms_of
from millstream.format.segment import WalkEnd, whole_batches
from millstream.format.segment_object import SegmentObject
from millstream.model.quantities import FilePosition, TimestampMs
from millstream.objects import ObjectKey
from millstream.tiers.messages import Joined
from millstream.tiers.shared_objects import stretch_of, written_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.format.archive import AbortedSpan
    from millstream.format.manifest import ArchiveId
    from millstream.objects import ObjectStore
    from millstream.tiers.messages import Join
    from millstream.tiers.reading import ArchiveReader
    from millstream.tiers.uploading import Pace

_READ_AT_ONCE: Final = 4
"""Segments that are read from the store at once: most are small, and each costs a request."""


class _Read(NamedTuple):
    """The batches of a segment, and its aborted transactions; None if they are not known."""

    data: memoryview
    aborted: Sequence[AbortedSpan] | None


def join(store: ObjectStore, reader: ArchiveReader, command: Join, pace: Pace) -> Joined:
    """Write the object.

    Raises:
        Rejected: a range is no longer in the store.
        Corruption: it is not what it should be.
        MillstreamError: of the store.
    """
    owner, before = command.owner, command.before
    if command.part is not None:
        live = [one for one in reader.segments_of(owner, command.part) if one.end_offset > command.start_offset]
        before = _of_part(live, command.target_bytes)
    if not before:
        return Joined(command.id, (), None)
    made = SegmentObject(owner, before[0].base_offset, BLOCK_BYTES)
    expected = ArchivedSegment(
        before[0].base_offset,
        before[-1].end_offset,
        0,
        0,
        TimestampMs(0),
        TimestampMs(0),
        command.term,
        revision=1 + secrets.randbelow(REVISION_MAX),
    )
    key = ObjectKey(segment_key(owner, expected))
    store.put_stream(key, _parts(store, reader, owner, before, made, pace))
    appended_ms = written_ms(before[-1]) or appended_ms_of(before[-1].min_timestamp)
    after = msgspec.structs.replace(made.segment(command.term, appended_ms), revision=expected.revision)
    info = store.head(key)
    if info is None or info.size_bytes != after.size_bytes + after.index_bytes:
        raise Unavailable(f"{store.url}: the object {key} is not there as it was written")
    return Joined(command.id, before, after)


def _of_part(segments: Sequence[ArchivedSegment], target_bytes: int) -> tuple[ArchivedSegment, ...]:
    """The first segments of a part that are to be joined; empty if it has no small range."""
    found = next_join(list(map(stretch_of, segments)), JoinLimits(target_bytes), None)
    return () if found is None else tuple(segments[found.first : found.end])


def _parts(
    store: ObjectStore,
    reader: ArchiveReader,
    owner: ArchiveId,
    before: Sequence[ArchivedSegment],
    made: SegmentObject,
    pace: Pace,
) -> Iterator[bytes]:
    """The bytes of the object, a block at a time."""
    aborted: set[AbortedSpan] = set()
    is_known = True
    for segment, data, spans in _read_in_order(store, reader, owner, before):
        if spans is None:
            is_known = False
        else:
            aborted |= set(spans)
        try:
            for batch in whole_batches(data):
                block = made.add(batch, data[batch.position : batch.position + batch.size])
                if block is not None:
                    pace.spend(len(block))
                    yield block
        except WalkEnd as end:
            raise Corruption(f"the archived range from offset {segment.base_offset} on: {end.reason}") from end
        if made.end_offset != segment.end_offset:
            raise Corruption(f"the archived range to offset {segment.end_offset} ends at {made.end_offset}")
    if (block := made.end_block()) is not None:
        pace.spend(len(block))
        yield block
    yield made.end(aborted if is_known else None)


def _read_in_order(
    store: ObjectStore, reader: ArchiveReader, owner: ArchiveId, before: Sequence[ArchivedSegment]
) -> Iterator[tuple[ArchivedSegment, memoryview, Sequence[AbortedSpan] | None]]:
    """Each segment with its batches and its aborted transactions, in order."""
    for first in range(0, len(before), _READ_AT_ONCE):
        group = before[first : first + _READ_AT_ONCE]
        results: list[_Read | MillstreamError | None] = [None] * len(group)

        def work(at: int, group: Sequence[ArchivedSegment], results: list[_Read | MillstreamError | None]) -> None:
            try:
                results[at] = _read(store, reader, owner, group[at])
            except MillstreamError as error:
                results[at] = error

        threads = [threading.Thread(target=work, args=(at, group, results)) for at in range(len(group))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for segment, result in zip(group, results, strict=True):
            if isinstance(result, MillstreamError):
                raise result
            if result is None:
                raise Unavailable(f"{store.url}: a range from offset {segment.base_offset} on could not be read")
            yield segment, result.data, result.aborted


def _read(store: ObjectStore, reader: ArchiveReader, owner: ArchiveId, segment: ArchivedSegment) -> _Read:
    """The batches of a segment, whose blocks match their checksums; what does not match is read once more."""
    located = reader.locate(owner, segment)
    blocks = located.segment_index.blocks
    ends = [*(one.position for one in blocks[1:]), FilePosition(segment.size_bytes)]
    start, end = located.position, FilePosition(located.position + segment.size_bytes)
    for _ in range(2):
        data = store.get(ObjectKey(located.key), start, end)
        if all(crc32c(data[one.position : to]) == one.checksum for one, to in zip(blocks, ends, strict=True)):
            return _Read(data, located.segment_index.aborted)
    raise Corruption(
        f"{store.url}: the object {located.key} does not match its checksums in the range of {segment.size_bytes} "
        f"bytes from byte {start} on"
    )
