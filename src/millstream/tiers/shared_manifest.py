"""When the manifest object of a shared partition is written.

Shared objects say themselves what they have, so most uploads need no manifest object. What was joined does not: the
manifest object names the own objects of the partition. It is written when something was joined or spilled since the
last time, and before objects that it names go. A new leader writes it once. Then `PartitionArchive.joined_to` rises,
and shared objects below it may go; a crash before that leaves them until the next leader has written it. While
nothing more is joined there is nothing to write, and the offset rises with the archive: past large ranges, and past
small ones of uploads that were cut off.
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
    mark = (inner.version, len(inner.parts), inner.parts[-1].base_offset if inner.parts else -1)
    goes = any(not isinstance(one, ArchivedSegment) or one.object_id == NO_OBJECT for one in due)
    if not inner.version or (mark == archive.manifest_mark and not goes):
        if archive.joined_seen != inner.end_offset:
            archive.joined_seen = inner.end_offset
            archive.joined_to = max(archive.joined_to, archive.joined_end())
        return None
    data = encode_manifest(inner.manifest(archive.owner, archive.log.leader_epochs))
    if mark == archive.manifest_mark and data == archive.manifest_saved:
        return None
    joined_to = archive.joined_end()

    def written() -> None:
        archive.manifest_saved, archive.manifest_mark = data, mark
        archive.joined_to = max(archive.joined_to, joined_to)

    return data, written
