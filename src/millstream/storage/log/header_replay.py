"""Going through the batches of a log in its segment files while it is being opened, to rebuild what a partition
derives from their headers.

Blocks the caller, which does not serve requests yet. Each batch is held against its checksum. One that does not match
is reported as a read would report it, and left out: what is derived is what was written, and a read of that batch is
refused anyway. What is no row of batches, or cannot be read, is ``Corruption``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Corruption
from millstream.format.segment import WalkEnd
from millstream.model.quantities import Offset
from millstream.storage.segments.index import SegmentIndex, whole_batches_from
from millstream.storage.segments.reads import unsound
from millstream.wire.records import CONTROL, batch_crc_ok, marker_of, unpack_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.disk import Disk
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.segments.read_faults import ReadFaults


def replay(
    disk: Disk, log: OpenLog, from_offset: Offset, each: Callable[[tuple[int, ...]], None], faults: ReadFaults
) -> None:
    """See ``Log.replay_headers``."""
    log.refresh()
    for segment in log.files.segments.all():
        if segment.end_offset > from_offset and segment.size_bytes:
            _segment(disk, log.name, segment, from_offset, each, faults)


def _segment(
    disk: Disk,
    name: str,
    segment: Segment,
    from_offset: int,
    each: Callable[[tuple[int, ...]], None],
    faults: ReadFaults,
) -> None:
    position = 0
    if from_offset > segment.base_offset:
        _, position = SegmentIndex.load(disk, segment.path, segment.base_offset).place_before(Offset(from_offset))
    file = disk.open(segment.path)
    try:
        for batch, data in whole_batches_from(file, position, segment.size_bytes):
            if batch.last_offset < from_offset:
                continue
            if batch_crc_ok(data):
                header = unpack_header(data, 0)
                each((*header, *marker_of(data)) if header[5] & CONTROL else header)
            else:
                faults.corrupt(name, segment.path, batch.base_offset, unsound(segment.path, batch))
    except WalkEnd as end:
        raise Corruption(f"{segment.path}: byte {end.position}: {end.reason}") from end
    except OSError as error:
        raise Corruption(f"{segment.path} could not be read: {error.strerror}") from error
    finally:
        file.close()
