"""Uploading a closed segment: read from the local file, checked batch by batch, in one object with its index.

Nothing wrong is archived: a batch that does not match its checksum, or is out of place, cancels the upload with
`Corruption`. The object is complete and durable when `upload` returns; before that it does not exist. A repeated upload
of the same offsets in the same term writes the same bytes again.

A file that was compacted has gaps: before its first batch, and between batches. Its name says so (`format.names`), and
only then may offsets be missing. The archived segment has the gaps in its range: it starts where the archive ends, so
that archived segments always follow each other. At the end there is no gap, because a compacted file keeps its last
batch.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from millstream.errors import Corruption
from millstream.format.archive import BLOCK_BYTES, segment_key
from millstream.format.manifest import ArchivedSegment
from millstream.format.names import parse_segment
from millstream.format.segment import WalkEnd
from millstream.format.segment_object import SegmentObject
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.objects import ObjectKey
from millstream.storage.chunks.chunk_disk import is_chunk_disk
from millstream.storage.segments import index as local_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.format.segment import Batch
    from millstream.objects import ObjectStore
    from millstream.storage.disk import Disk, File
    from millstream.tiers.messages import Upload

    OnBlock = Callable[[Offset, memoryview, TimestampMs], None]


class Pace:
    """Keeps all uploads together below a number of bytes per second; at most a second's worth at once. Safe for
    threads.
    """

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._pause = pause
        self._due_s = clock()
        self._lock = threading.Lock()

    def spend(self, size_bytes: int) -> None:
        """Wait until so many bytes may go."""
        with self._lock:
            now_s = self._clock()
            due_s = self._due_s = max(self._due_s, now_s - 1.0) + size_bytes / self._bytes_per_s
        if due_s > now_s:
            self._pause(due_s - now_s)


def upload(
    store: ObjectStore, disk: Disk, command: Upload, pace: Pace, on_block: OnBlock | None = None
) -> ArchivedSegment:
    """Upload the batches of a segment file from the one with ``command.from_offset`` on. ``on_block`` gets each block:
    its base offset, its bytes and its largest timestamp.

    Raises:
        Corruption: the file is not what it should be. Nothing was uploaded.
        OSError: it cannot be read. Nothing was uploaded.
        MillstreamError: of the store.
    """
    file = disk.open(command.path)
    try:
        start = _start(disk, file, command)
        base_offset = min(start.base_offset, command.from_offset)
        walk = _Walk(command, base_offset, on_block)
        expected = ArchivedSegment(base_offset, command.end_offset, 0, 0, TimestampMs(0), TimestampMs(0), command.term)
        key = ObjectKey(segment_key(command.owner, expected))
        store.put_stream(key, walk.parts(file, start.position, pace))
    except WalkEnd as end:
        raise Corruption(f"{command.path}: byte {end.position}: {end.reason}") from end
    finally:
        file.close()
        if is_chunk_disk(disk):
            disk.close_segment(command.path)  # a descriptor kept here would keep the bytes of a chunk that is deleted
    segment = walk.segment()
    found = store.head(key)
    stored_bytes = -1 if found is None else found.size_bytes
    if stored_bytes != segment.size_bytes + segment.index_bytes:
        raise Corruption(f"{store.url}: the object {key} has {stored_bytes} bytes after its upload")
    return segment


def _start(disk: Disk, file: File, command: Upload) -> Batch:
    """The batch with the first offset, or the first one after it."""
    index = local_index.SegmentIndex.load(disk, command.path, command.base_offset)
    _, position = index.place_before(command.from_offset)
    for batch in local_index.batches_from(file, position, command.size_bytes):
        if batch.last_offset >= command.from_offset:
            return batch
    raise Corruption(f"{command.path}: offset {command.from_offset} is not in its {command.size_bytes} bytes")


class _Walk:
    """One upload: what was seen of its batches."""

    def __init__(self, command: Upload, base_offset: Offset, on_block: OnBlock | None) -> None:
        self._on_block = on_block
        self._command = command
        name = parse_segment(os.path.basename(command.path))
        self._object = SegmentObject(command.owner, base_offset, BLOCK_BYTES, gaps=name is not None and name[1] > 0)

    def parts(self, file: File, position: FilePosition, pace: Pace) -> Iterator[bytes]:
        """The bytes of the object, a block at a time."""
        made, command = self._object, self._command
        for batch, data in local_index.whole_batches_from(file, position, command.size_bytes):
            try:
                block = made.add(batch, data)
            except Corruption as error:
                raise Corruption(f"{command.path}: {error.message}") from error
            if block is not None:
                yield self._block(block, pace)
        if (block := made.end_block()) is not None:
            yield self._block(block, pace)
        if made.end_offset != command.end_offset:
            raise Corruption(f"{command.path} ends at offset {made.end_offset}, {command.end_offset} was expected")
        yield made.end(command.aborted)

    def _block(self, block: bytes, pace: Pace) -> bytes:
        pace.spend(len(block))
        if self._on_block is not None:
            known = self._object.blocks[-1]
            self._on_block(known.base_offset, memoryview(block), known.max_timestamp)
        return block

    def segment(self) -> ArchivedSegment:
        """What was uploaded."""
        return self._object.segment(self._command.term, self._command.appended_ms)
