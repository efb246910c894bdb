"""Reading the batch headers of a log from its segment files, while it is being opened: to rebuild what a partition
derives from them.

Blocks the caller, which serves nobody yet. The bytes between two headers are read with them but not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption
from millstream.format.segment import BATCH_HEADER_BYTES
from millstream.storage.disk import read_at
from millstream.storage.index import SegmentIndex
from millstream.wire.records import OVERHEAD_BYTES, unpack_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.disk import Disk
    from millstream.storage.log import Log
    from millstream.storage.segments import Segment

_CHUNK_BYTES: Final = 1024 * 1024


def replay(disk: Disk, log: Log, from_offset: int, each: Callable[[tuple[int, ...]], None]) -> None:
    """See `Log.replay_headers`."""
    log.refresh()
    for segment in log.segments_list.all():
        if segment.end_offset > from_offset and segment.size_bytes:
            _segment(disk, segment, from_offset, each)


def _segment(disk: Disk, segment: Segment, from_offset: int, each: Callable[[tuple[int, ...]], None]) -> None:
    position = 0
    if from_offset > segment.base_offset:
        _, position = SegmentIndex.load(disk, segment.path, segment.base_offset).place_before(from_offset)
    file = disk.open(segment.path)
    try:
        chunk = bytearray()
        chunk_at = position
        while position < segment.size_bytes:
            at = position - chunk_at
            if at + BATCH_HEADER_BYTES > len(chunk):
                chunk = read_at(file, position, min(_CHUNK_BYTES, segment.size_bytes - position))
                chunk_at, at = position, 0
                if len(chunk) < BATCH_HEADER_BYTES:
                    raise Corruption(f"{segment.path} ends at byte {position} inside a batch")
            header = unpack_header(chunk, at)
            if header[1] < BATCH_HEADER_BYTES - OVERHEAD_BYTES or header[3] != 2:
                raise Corruption(f"{segment.path} has no batch at byte {position}")
            if header[0] + header[6] >= from_offset:
                each(header)
            position += header[1] + OVERHEAD_BYTES
    finally:
        file.close()
