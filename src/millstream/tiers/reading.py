"""Reading archived segments: whole batches by offset, and records by time, through blocks of about a MiB.

::

    segment ──index──► blocks ──get──► hot tier ──► memory (the newest `MEMORY_BYTES_MAX`) ──► batches

A block of which a reader wants all is taken as it is; only the first and the last block of an answer are walked by
their batches. No byte leaves here unchecked: a block that does not match its checksum is read once more, past every
copy, and then is `Corruption`. Each block is read once however many readers wait for it. A reader that continues where
its last read ended gets more blocks with one request, doubling up to `AHEAD_BYTES_MAX`. Indexes and parts of manifests
are kept, the newest used ones; parts also on the disk (`parts`).

Every call blocks, and several threads call at once. Everything here is a copy and may be forgotten.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.archive import SegmentIndex, decode_index, segment_key
from millstream.format.events.batch import is_event_batch
from millstream.format.segment import WalkEnd, whole_batches
from millstream.format.shared_object import segment_index, shared_key
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.model.shared import NO_OBJECT
from millstream.objects import ObjectKey
from millstream.tiers.hot_tier.provider import Hint, Source
from millstream.tiers.kept import Kept
from millstream.tiers.manifest import find_in
from millstream.tiers.parts import Parts
from millstream.tiers.readers import Readers
from millstream.tiers.shared_objects import read_index
from millstream.wire.errors import BatchError
from millstream.wire.records import batch_crc_ok, iter_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millstream.format.archive import AbortedSpan
    from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart
    from millstream.format.segment import Batch
    from millstream.format.shared_object import SharedIndex
    from millstream.model.replication import Term
    from millstream.model.shared import ObjectId
    from millstream.objects import ObjectStore
    from millstream.tiers.hot_tier import WarmBlocks
    from millstream.tiers.messages import Find, Read, Target

MEMORY_BYTES_MAX: Final = 32 << 20
"""Blocks kept in memory."""

AHEAD_BYTES_MAX: Final = 4 << 20
"""Largest range of one request, unless one block is larger."""

_INDEXES_MAX: Final = 512
_SHARED_BLOCKS_MAX: Final = 64 * 1024
"""Blocks in the indexes of shared objects that are kept: about 20 MiB."""
_READERS_MAX: Final = 1024


class BlockKey(NamedTuple):
    """A block, independent of its object. Where segments were replaced, other blocks start at the same offsets."""

    owner: ArchiveId
    base_offset: Offset
    checksum: int


class Located(NamedTuple):
    """The index of a segment, and where its bytes are."""

    segment_index: SegmentIndex
    key: str
    position: FilePosition
    """Of the first byte in the object."""


class ReadResult(NamedTuple):
    """How a read went."""

    size_bytes: int
    """Bytes that are whole batches."""

    need_bytes: int
    """Size of the first batch, if it does not fit; else 0."""

    aborted: Sequence[AbortedSpan] = ()
    """The aborted transactions among the batches."""


class FoundRecord(NamedTuple):
    """A record, or none (offset -1)."""

    offset: Offset
    timestamp: TimestampMs
    leader_epoch: Term | int
    searched_to: Offset


class _Here(threading.local):
    """Of each thread."""

    def __init__(self) -> None:
        self.offers: list[tuple[ArchiveId, Offset, memoryview, Hint]] = []
        """Blocks for the warm cache, until the read is over."""


class _Fetches:
    """Which blocks are being fetched, so that each is fetched by one thread at a time. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[BlockKey, threading.Event] = {}

    def begin(self, key: BlockKey) -> bool:
        """Whether the caller is to fetch the block. If not, this returns when the thread that fetches it is done."""
        mine = threading.Event()
        with self._lock:
            first = self._running.setdefault(key, mine)
        if first is mine:
            return True
        first.wait()
        return False

    def end(self, key: BlockKey) -> None:
        """The block was fetched, or could not be."""
        with self._lock:
            done = self._running.pop(key)
        done.set()


class ArchiveReader:
    """Reads of one shard's archived partitions. Safe for threads."""

    def __init__(
        self,
        store: ObjectStore,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        warm: WarmBlocks | None = None,
        served: Callable[[str], None] = lambda _: None,
        parts: Parts | None = None,
    ) -> None:
        """``served`` is called with the source of each block: ``memory``, ``hot_tier`` or ``store``. ``parts`` are
        those of the manifests; without it they are kept in memory alone.
        """
        self._store = store
        self._parts = Parts(store) if parts is None else parts
        self._warm = warm
        self._served = served
        self.readers = Readers()
        self._indexes: Kept[tuple[ArchiveId, ArchivedSegment], Located] = Kept(_INDEXES_MAX, lambda _: 1)
        self._objects: Kept[ObjectId, SharedIndex] = Kept(_SHARED_BLOCKS_MAX, lambda index: len(index.blocks))
        self._blocks: Kept[BlockKey, memoryview] = Kept(memory_bytes_max, len)
        self._ahead: Kept[tuple[ArchiveId, Offset], int] = Kept(_READERS_MAX, lambda _: 1)
        """Bytes to read at once, by the offset at which a reader will continue."""

        self._here = _Here()
        self._unread: Kept[BlockKey, Hint] = Kept(_READERS_MAX, lambda _: 1)
        """Blocks that were read ahead, with what the warm cache is to know of them once they are read."""

        self._fetches = _Fetches()

    def read(self, command: Read, views: Sequence[memoryview]) -> ReadResult:
        """Fill ``views`` with batches.

        Raises:
            Rejected: the segment is no longer in the store.
            Corruption: it is not what it should be.
            Unavailable: the store.
        """
        try:
            return self._read(command, views)
        finally:
            self._offer()

    def _read(self, command: Read, views: Sequence[memoryview]) -> ReadResult:
        owner = command.owner
        segment = self._segment(owner, command.target, command.offset)
        located = self._index(owner, segment)
        index = located.segment_index
        room = sum(map(len, views))
        taken: list[memoryview] = []
        size = 0
        offset = command.offset
        number = index.find(offset)
        newest = TimestampMs(-1)
        ahead = self._ahead.get((owner, offset)) or 0
        limit = min(room, command.max_bytes)
        while number < len(index.blocks) and size < min(room, command.max_bytes or 1):
            next_bytes = _end(index, segment, number) - index.blocks[number].position
            if size + next_bytes > limit and 8 * size >= 7 * limit > 0:
                break  # the answer ends with a block, as the next one may start with it
            block = self._block(owner, segment, located, number, ahead)
            newest = index.blocks[number].max_timestamp
            end = index.blocks[number + 1].base_offset if number + 1 < len(index.blocks) else index.end_offset
            whole = offset <= index.blocks[number].base_offset and end <= command.end_offset
            if whole and size + len(block) <= limit:
                taken.append(block)
                size += len(block)
                offset = end
                number += 1
                continue
            full = False
            for batch, data in _batches(block, segment):
                if batch.last_offset < offset:
                    continue
                late = batch.base_offset >= command.end_offset
                if late or (size + batch.size > limit and (size or not command.minimum_one)):
                    full = True
                    break
                if batch.size > room:
                    return ReadResult(0, batch.size)
                taken.append(data)
                size += batch.size
                offset = Offset(batch.last_offset + 1)
            if full:
                break
            number += 1
        if size:
            self._ahead.put((owner, offset), min(max(2 * ahead, 1 << 20), AHEAD_BYTES_MAX))
            reader = self.readers.moved(
                owner, command.offset, offset, segment.size_bytes / (segment.end_offset - segment.base_offset)
            )
            if self._warm is not None:
                self._warm.tier.reader_at(owner, reader, offset, newest)
        _copy(taken, views)
        aborted = [one for one in index.aborted or () if one[1] < offset and one[2] >= command.offset]
        return ReadResult(size, 0, aborted)

    def find(self, command: Find) -> FoundRecord:
        """The first record of the target that is late enough, or that with the largest time. Errors as of `read`."""
        try:
            return self._find_largest(command) if command.largest else self._find(command)
        finally:
            self._offer()

    def _find(self, command: Find) -> FoundRecord:
        owner = command.owner
        searched = command.target.end_offset
        for segment in self._segments(owner, command.target):
            searched = segment.end_offset
            if segment.max_timestamp < command.timestamp or segment.end_offset <= command.start_offset:
                continue
            if segment.base_offset >= command.end_offset:
                break
            found = self._find_in(owner, segment, command)
            if found is not None:
                return found
        return FoundRecord(Offset(-1), TimestampMs(-1), -1, searched)

    def _find_in(self, owner: ArchiveId, segment: ArchivedSegment, command: Find) -> FoundRecord | None:
        located = self._index(owner, segment)
        index = located.segment_index
        for number, one in enumerate(index.blocks):
            end = index.blocks[number + 1].base_offset if number + 1 < len(index.blocks) else index.end_offset
            if one.max_timestamp < command.timestamp or end <= command.start_offset:
                continue
            for batch, data in _batches(self._block(owner, segment, located, number, 0), segment):
                if batch.max_timestamp < command.timestamp or batch.last_offset < command.start_offset:
                    continue
                if batch.base_offset >= command.end_offset:
                    return None
                found = _find_record(batch, data, command)
                if found is not None:
                    return found
        return None

    def _find_largest(self, command: Find) -> FoundRecord:
        """Segments, and blocks within them, from the one with the largest time on; what can hold no larger one than was
        found, or an equal one before it, is not read.
        """
        owner = command.owner
        best: FoundRecord | None = None
        inside = [one for one in self._segments(owner, command.target) if _overlaps(one, command)]
        for segment in sorted(inside, key=lambda one: (-one.max_timestamp, one.base_offset)):
            if best is not None and not _is_later(segment.max_timestamp, segment.base_offset, best):
                break
            located = self._index(owner, segment)
            blocks = enumerate(located.segment_index.blocks)
            for number, one in sorted(blocks, key=lambda block: (-block[1].max_timestamp, block[0])):
                if best is not None and not _is_later(one.max_timestamp, one.base_offset, best):
                    break
                if one.base_offset >= command.end_offset:
                    continue
                for batch, data in _batches(self._block(owner, segment, located, number, 0), segment):
                    best = _larger(batch, data, command, best)
        return best or FoundRecord(Offset(-1), TimestampMs(-1), -1, command.target.end_offset)

    # -- segments and indexes ------------------------------------------------------------------------------------------

    def segments_of(self, owner: ArchiveId, part: ManifestPart) -> list[ArchivedSegment]:
        """The segments in a part of the manifest. Errors as of `read`."""
        return self._parts.segments_of(owner, part)

    def _segments(self, owner: ArchiveId, target: Target) -> list[ArchivedSegment]:
        if target.segment is not None:
            return [target.segment]
        assert target.part is not None, "a target is a segment or a part"
        return self.segments_of(owner, target.part)

    def _segment(self, owner: ArchiveId, target: Target, offset: Offset) -> ArchivedSegment:
        found = find_in(self._segments(owner, target), offset)
        if found is None:
            raise Corruption(f"offset {offset} is in no segment of the part that should have it")
        return found

    def _index(self, owner: ArchiveId, segment: ArchivedSegment) -> Located:
        found = self._indexes.get((owner, segment))
        if found is None:
            found = self.locate(owner, segment)
            self._indexes.put((owner, segment), found)
        return found

    def locate(self, owner: ArchiveId, segment: ArchivedSegment) -> Located:
        """The index of a segment, from the store. Errors as of `read`."""
        if segment.object_id != NO_OBJECT:
            return self._shared(owner, segment)
        start = FilePosition(segment.size_bytes)
        end = FilePosition(segment.size_bytes + segment.index_bytes)
        key = segment_key(owner, segment)
        return Located(decode_index(owner, segment, self._store.get(ObjectKey(key), start, end)), key, FilePosition(0))

    def _shared(self, owner: ArchiveId, segment: ArchivedSegment) -> Located:
        """The index of a segment that lies in a shared object."""
        object_id = segment.object_id
        whole = self._objects.get(object_id)
        if whole is None:
            whole = read_index(self._store, object_id)
            self._objects.put(object_id, whole)
        index, first = segment_index(whole, owner, segment)
        return Located(index, shared_key(object_id), first)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _block(
        self, owner: ArchiveId, segment: ArchivedSegment, located: Located, number: int, ahead_bytes: int
    ) -> memoryview:
        """The bytes of a block, checked. With ``ahead_bytes`` those that follow are read in the same request."""
        block = located.segment_index.blocks[number]
        key = BlockKey(owner, block.base_offset, block.checksum)
        while True:
            found = self._blocks.get(key)
            if found is not None:
                self._served("memory")
                if (hint := self._unread.get(key)) is not None:
                    self._unread.drop(key)
                    self._here.offers.append((owner, block.base_offset, found, hint))
                return found
            if self._fetches.begin(key):
                break
        try:
            return self._fetch(owner, segment, located, number, ahead_bytes)
        finally:
            self._fetches.end(key)

    def _fetch(
        self, owner: ArchiveId, segment: ArchivedSegment, located: Located, number: int, ahead_bytes: int
    ) -> memoryview:
        index = located.segment_index
        if self._warm is not None:
            warm = self._warm.tier.get(owner, index.blocks[number].base_offset, index.blocks[number].checksum)
            if warm is not None:
                self._served("hot_tier")
                self._blocks.put(BlockKey(owner, index.blocks[number].base_offset, index.blocks[number].checksum), warm)
                return warm
        start = index.blocks[number].position
        last = number
        while last + 1 < len(index.blocks) and _end(index, segment, last + 1) - start <= ahead_bytes:
            last += 1
        key, place = ObjectKey(located.key), located.position
        for attempt in (1, 2):
            end = FilePosition(place + _end(index, segment, last))
            data = self._store.get(key, FilePosition(place + start), end)
            blocks = [
                data[index.blocks[one].position - start : _end(index, segment, one) - start]
                for one in range(number, last + 1)
            ]
            damaged = [one for one, block in enumerate(blocks) if crc32c(block) != index.blocks[number + one].checksum]
            if not damaged:
                break
            if attempt == 2:
                place += index.blocks[number + damaged[0]].position
                raise Corruption(f"{self._store.url}: the object {key} does not match its checksum at byte {place}")
        self._served("store")
        for one, block in enumerate(blocks):
            # A copy of its own, so that a block that stays keeps no other one in memory.
            kept = memoryview(bytes(block)) if len(blocks) > 1 else block
            known = index.blocks[number + one]
            self._blocks.put(BlockKey(owner, known.base_offset, known.checksum), kept)
            if self._warm is not None and self._warm.fills_on_read:
                if one:
                    key_ahead = BlockKey(owner, known.base_offset, known.checksum)
                    self._unread.put(key_ahead, Hint(known.max_timestamp, Source.AHEAD))
                else:
                    hint = Hint(known.max_timestamp, Source.DEMAND)
                    self._here.offers.append((owner, known.base_offset, kept, hint))
        return blocks[0]

    def _offer(self) -> None:
        """Offer the blocks of a read to the warm cache, now that it knows that this reader has passed them: before
        that, it would make room for what no other reader may want.
        """
        offers, self._here.offers = self._here.offers, []
        if self._warm is not None:
            for one in offers:
                self._warm.filling.put(*one)


def _end(index: SegmentIndex, segment: ArchivedSegment, number: int) -> FilePosition:
    """Where a block ends."""
    if number + 1 < len(index.blocks):
        return index.blocks[number + 1].position
    return FilePosition(segment.size_bytes)


def _batches(block: memoryview, segment: ArchivedSegment) -> Iterator[tuple[Batch, memoryview]]:
    """The batches of a block that matched its checksum."""
    try:
        for batch in whole_batches(block):
            yield batch, block[batch.position : batch.position + batch.size]
    except WalkEnd as end:
        raise Corruption(f"the archived segment from offset {segment.base_offset} on: {end.reason}") from end


def _overlaps(segment: ArchivedSegment, command: Find) -> bool:
    return segment.base_offset < command.end_offset and segment.end_offset > command.start_offset


def _is_later(timestamp: TimestampMs, offset: Offset, best: FoundRecord) -> bool:
    """Whether a record at or after ``offset`` with this time, the largest there, would be a better answer."""
    return (timestamp, -offset) > (best.timestamp, -best.offset)


def _larger(batch: Batch, data: memoryview, command: Find, best: FoundRecord | None) -> FoundRecord | None:
    """The record with the largest time of a batch, or ``best``."""
    if batch.last_offset < command.start_offset or batch.base_offset >= command.end_offset:
        return best
    if best is not None and not _is_later(batch.max_timestamp, batch.base_offset, best):
        return best
    for record in _timed_records(batch, data, command):
        if best is None or _is_later(record.timestamp, record.offset, best):
            best = record
    return best


def _find_record(batch: Batch, data: memoryview, command: Find) -> FoundRecord | None:
    """The first record of a batch that is late enough."""
    return next((one for one in _timed_records(batch, data, command) if one.timestamp >= command.timestamp), None)


def _timed_records(batch: Batch, data: memoryview, command: Find) -> Iterator[FoundRecord]:
    """The records of a batch that the command may find."""
    if not batch_crc_ok(data):
        raise Corruption(f"the archived batch at offset {batch.base_offset} does not match its checksum")
    end = Offset(batch.last_offset + 1)
    whole = FoundRecord(max(batch.base_offset, command.start_offset), batch.max_timestamp, batch.leader_epoch, end)
    if is_event_batch(data):  # its events have one time
        yield whole
        return
    try:
        for record in iter_records(data):
            if command.start_offset <= record.offset < command.end_offset:
                yield FoundRecord(Offset(record.offset), TimestampMs(record.timestamp), batch.leader_epoch, end)
    except BatchError:
        yield whole  # the producer's own bytes: no broker can look into them


def _copy(taken: Sequence[memoryview], views: Sequence[memoryview]) -> None:
    """Fill the views, one after the other."""
    place, at = 0, 0
    for data in taken:
        done = 0
        while done < len(data):
            view = views[place]
            count = min(len(data) - done, len(view) - at)
            view[at : at + count] = data[done : done + count]
            done += count
            at += count
            if at == len(view):
                place, at = place + 1, 0
