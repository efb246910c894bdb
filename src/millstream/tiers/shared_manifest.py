"""When the manifest object of a shared partition is written.

Shared objects say themselves what they have, so most uploads need no manifest object. Two facts need it:

- **What was joined.** The manifest object names the own objects of the partition. It is written when something was
  joined or spilled since the last time, and before objects that it names go.
- **Where the log starts.** DeleteRecords and retention move the start, and a recovery from the store must not bring
  back what they deleted. It is written when the start has moved: one object for each partition and round of retention
  that deleted something.

A new leader writes it once, if there is either. Then `SmallRanges.joined_to` rises, and shared objects below it
may go; a crash before that leaves them until the next leader has written it. While nothing more is joined, the offset
rises with the archive: past large ranges, and past small ones of uploads that were cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.manifest import ArchivedSegment, encode_manifest
from millstream.model.shared import NO_OBJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.format.manifest import ManifestPart
    from millstream.tiers.manifest import PartObject
    from millstream.tiers.partition_archive import PartitionArchive


def shared_manifest(
    archive: PartitionArchive, due: Sequence[ArchivedSegment | ManifestPart | PartObject]
) -> tuple[bytes, Callable[[], None]] | None:
    """The manifest object if it is to be written now, and what to do when it is. ``due`` is what is removed next."""
    inner = archive.archive
    joined = (inner.version, len(inner.parts), inner.parts[-1].base_offset if inner.parts else -1)
    mark = (inner.start_offset, *(joined if inner.version else ()))
    goes = any(not isinstance(one, ArchivedSegment) or one.object_id == NO_OBJECT for one in due)
    says_nothing = not inner.version and not inner.start_offset
    if says_nothing or (mark == archive.saved.mark and not goes):
        if archive.small_ranges.seen_end != inner.end_offset:
            archive.small_ranges.seen_end = inner.end_offset
            archive.small_ranges.joined_to = max(archive.small_ranges.joined_to, archive.small_ranges.joined_end())
        return None
    data = encode_manifest(inner.manifest(archive.owner, archive.log.leader_epochs))
    if mark == archive.saved.mark and data == archive.saved.manifest:
        return None
    joined_to = archive.small_ranges.joined_end()

    def written() -> None:
        archive.saved.mark = mark
        archive.small_ranges.joined_to = max(archive.small_ranges.joined_to, joined_to)
        archive.manifest_written(data, mark[0])

    return data, written
