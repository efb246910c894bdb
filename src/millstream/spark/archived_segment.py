"""Reads an archived segment from the object store: consecutive Kafka batches, from an offset on.

The object ends with an index of blocks of whole batches (`format.archive`). It gives the start position, and lets the
reader leave out blocks that are older than the query wants. Several blocks are read with one request, the next ones
while the last ones are decoded. Each block is checked against its checksum in the index, and each batch in it against
its own.

A shared topic's range lies in an object of many partitions, whose own index says where (`format.shared_object`), or in
one like this.

A missing object is no corruption: retention or a join was faster. Reading then ends with ``NotFound``, and the
caller continues with the leader. Bytes that are there and invalid raise ``Corruption``.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.archive import SegmentIndex, decode_index
from millstream.format.manifest import ArchivedSegment, ArchiveId
from millstream.format.shared_object import SharedIndex, object_key, read_object_index, segment_index
from millstream.model.quantities import FilePosition, Offset
from millstream.model.shared import NO_OBJECT, ObjectId
from millstream.objects import ObjectKey, ObjectStore
from millstream.objects.errors import NotFound
from millstream.spark.archive import reachable_store
from millstream.spark.columns import RecordBatch
from millstream.spark.decode import AbortedSpans, Decoder

REQUEST_BYTES: Final = 8 << 20
"""Largest range of one request, unless a block is larger. Two of them are in memory."""

_OBJECTS_MAX: Final = 64
_objects: dict[tuple[int, str, ObjectId], SharedIndex] = {}
"""Indexes of the shared objects that this process read last: each is asked for once a partition."""

_stores: dict[tuple[int, str, float], ObjectStore] = {}
"""Stores of this process, by process id, because Spark's workers are forked."""


def task_store(url: str, patience_s: float) -> ObjectStore:
    """The store of a URL, opened once a process. Errors as of ``reachable_store``."""
    key = (os.getpid(), url, patience_s)
    if key not in _stores:
        _stores[key] = reachable_store(url, patience_s)
    return _stores[key]


class ArchivedSegmentReader:
    """Reads one archived segment. ``bytes_read`` counts the bytes read."""

    def __init__(self, store: ObjectStore, owner: ArchiveId, segment: ArchivedSegment) -> None:
        self.bytes_read = 0
        self._store = store
        self._owner = owner
        self._segment = segment
        self._key = ObjectKey(object_key(owner, segment))
        self._first = FilePosition(0)
        self._where = f"{store.url}/{self._key}"

    def read(self, decoder: Decoder, end: int, from_timestamp: int) -> Iterator[RecordBatch]:
        """Decode from the decoder's position to ``end`` (exclusive) or to the end of the segment, where the decoder
        then is. Blocks without a record of ``from_timestamp`` (ms) or later are left out.

        Raises:
            NotFound: the object was deleted.
            Corruption: its bytes are not what its index says.
            Unavailable, Denied: the store.
        """
        segment = self._segment
        index = self._index()
        aborted = None if index.aborted is None else AbortedSpans(index.aborted)
        ranges = list(self._ranges(index, decoder.position, end, from_timestamp))
        with ThreadPoolExecutor(1, "archive") as ahead:
            coming: Future[memoryview] | None = None
            for number, (first, last) in enumerate(ranges):
                data = self._blocks(index, first, last) if coming is None else coming.result()
                coming = ahead.submit(self._blocks, index, *ranges[number + 1]) if number + 1 < len(ranges) else None
                self.bytes_read += len(data)
                decoder.skip_to(index.blocks[first].base_offset)
                scan = decoder.scan(data, self._where)
                if scan.consumed != len(data):
                    raise decoder.corrupt(decoder.position, "a block ends inside of a batch", self._where)
                yield from decoder.decode(scan, self._where, aborted)
        decoder.skip_to(min(end, segment.end_offset))

    def _index(self) -> SegmentIndex:
        if self._segment.object_id != NO_OBJECT:
            index, self._first = segment_index(self._object_index(), self._owner, self._segment)
            return index
        size, index_bytes = self._segment.size_bytes, self._segment.index_bytes
        data = self._store.get(self._key, FilePosition(size), FilePosition(size + index_bytes))
        return decode_index(self._owner, self._segment, data)

    def _object_index(self) -> SharedIndex:
        object_id = self._segment.object_id
        key = os.getpid(), self._store.url, object_id
        found = _objects.pop(key, None)
        if found is None:
            info = self._store.head(self._key)
            if info is None:
                raise NotFound(f"{self._where} was deleted")
            found = read_object_index(object_id, info.size_bytes, partial(self._store.get, self._key))
        _objects[key] = found
        while len(_objects) > _OBJECTS_MAX:
            del _objects[next(iter(_objects))]
        return found

    def _ranges(self, index: SegmentIndex, start: int, end: int, from_timestamp: int) -> Iterator[tuple[int, int]]:
        """Wanted blocks as (first, last) of each request."""
        first = last = -1
        for number in range(index.find(Offset(max(start, index.base_offset))), len(index.blocks)):
            block = index.blocks[number]
            if block.base_offset >= end:
                break
            old = 0 <= block.max_timestamp < from_timestamp
            if first >= 0 and (old or self._end(index, number) - index.blocks[first].position > REQUEST_BYTES):
                yield first, number - 1
                first = -1
            if first < 0 and not old:
                first = number
            last = number
        if first >= 0:
            yield first, last

    def _blocks(self, index: SegmentIndex, first: int, last: int) -> memoryview:
        """The bytes of blocks, checked; a mismatch is read once more."""
        start = index.blocks[first].position
        for attempt in (1, 2):
            place = FilePosition(self._first + start), FilePosition(self._first + self._end(index, last))
            data = self._store.get(self._key, *place)
            damaged = [
                number
                for number in range(first, last + 1)
                if crc32c(data[index.blocks[number].position - start : self._end(index, number) - start])
                != index.blocks[number].checksum
            ]
            if not damaged:
                return data
            if attempt == 2:
                at = self._first + index.blocks[damaged[0]].position
                raise Corruption(f"the object {self._where} does not match its checksum at byte {at}")
        raise AssertionError("two attempts either return or raise")

    def _end(self, index: SegmentIndex, number: int) -> FilePosition:
        if number + 1 < len(index.blocks):
            return index.blocks[number + 1].position
        return FilePosition(self._segment.size_bytes)
