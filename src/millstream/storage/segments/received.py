"""What an earlier start of the broker received of another replica's log and did not complete (``segments.incoming``).

Sealed segments were checked batch by batch when they came, and synced before their index said that they are sealed:
they count as they are if they have the size that the index says. The segment after them was never synced. It is read
from its beginning, and counts up to the first batch that is not whole or does not match its checksum; the rest is cut
off. Segments after a gap or after such a cut are removed.

A crash in the middle is harmless: what is removed here was of no use before either. An OSError leaves the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.format.names import INDEX_SUFFIX, parse_segment, segment_name
from millstream.format.segment import BATCH_CRC_START, WalkEnd
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.storage.segments.files import names_in
from millstream.storage.segments.index import (
    Growing,
    SegmentIndex,
    batches_from,
    index_path,
    whole_batches_from,
)
from millstream.wire.records import checksum

if TYPE_CHECKING:
    from millstream.format.segment import Batch
    from millstream.storage.disk import Disk


class Received(NamedTuple):
    """The beginning of a log."""

    start: Offset
    """First offset of its files."""
    generation: int
    """Of all its segments."""
    created_ms: int
    """When the first segment was started."""
    last_index: SegmentIndex
    """Of the last segment, which is empty after a sealed one."""
    growing: Growing
    """How far the last segment goes."""
    last_epoch: Term
    """Leader epoch of the last batch of all."""


def find_received(disk: Disk, directory: str, index_interval_bytes: int, now_ms: int) -> Received | None:
    """What can be continued; None without anything. Useless files are removed.

    Raises:
        OSError: the disk failed.
    """
    names = sorted(filter(None, (parse_segment(name) for name in names_in(disk, directory))))
    if not names:
        return None
    start, generation = names[0]
    end, created_ms, epoch = start, now_ms, -1
    last_sealed: tuple[str, SegmentIndex, int] | None = None
    index = SegmentIndex(Offset(start), generation)
    growing = Growing(index, now_ms, index_interval_bytes)
    used = 0
    kept: set[str] = set()
    for base, own in names:
        path = f"{directory}/{segment_name(Offset(base), own)}"
        if base != end or own != generation:
            break
        used += 1
        sealed = SegmentIndex.load(disk, path, Offset(base))
        summary = sealed.summary
        if summary is not None and summary.sealed and sealed.whole and disk.size(path) == summary.size_bytes:
            created_ms = summary.created_ms if used == 1 else created_ms
            kept.add(index_path(path))
            end, last_sealed = summary.end_offset, (path, sealed, summary.size_bytes)
            index = SegmentIndex(Offset(end), generation)
            growing = Growing(index, now_ms, index_interval_bytes)
            continue
        index = SegmentIndex(Offset(base), generation)
        growing = Growing(index, now_ms, index_interval_bytes)
        last = _read_whole(disk, path, growing)
        epoch = -1 if last is None else last.leader_epoch
        break
    if epoch < 0 and last_sealed is not None:
        epoch = _last_epoch(disk, *last_sealed)
    _remove(disk, directory, names[used:], kept)
    if epoch < 0:
        return None
    return Received(Offset(start), generation, created_ms, index, growing, Term(epoch))


def _last_epoch(disk: Disk, path: str, index: SegmentIndex, size_bytes: int) -> int:
    """Leader epoch of the last batch of a sealed segment; -1 if its headers are damaged."""
    epoch = -1
    file = disk.open(path)
    try:
        for batch in batches_from(file, index.positions[-1] if len(index.positions) else 0, size_bytes):
            epoch = batch.leader_epoch
    except WalkEnd:
        return -1
    finally:
        file.close()
    return epoch


def _read_whole(disk: Disk, path: str, growing: Growing) -> Batch | None:
    """Count the sound batches at the beginning of a segment, and cut off the rest; returns the last of them."""
    last: Batch | None = None
    size = disk.size(path)
    file = disk.open(path)
    try:
        for batch, data in whole_batches_from(file, 0, size):
            sound = len(data) == batch.size and checksum([data], BATCH_CRC_START) == batch.crc
            if not sound or not growing.goes_on_with(batch):
                break
            growing.add(batch)
            last = batch
    except WalkEnd:
        pass  # it ends in the middle of a batch: an unfinished write
    finally:
        if growing.size_bytes < size:
            file.truncate(growing.size_bytes)
        file.close()
    if last is None:
        disk.unlink(path)
    return last


def _remove(disk: Disk, directory: str, segments: list[tuple[int, int]], indexes: set[str]) -> None:
    """Remove these segments, and every index but these."""
    for base, generation in segments:
        disk.unlink(f"{directory}/{segment_name(Offset(base), generation)}")
    for name in names_in(disk, directory):
        if name.endswith(INDEX_SUFFIX) and f"{directory}/{name}" not in indexes:
            disk.unlink(f"{directory}/{name}")
