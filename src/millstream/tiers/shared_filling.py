"""What one object is made of, while it is filled and on its way. `shared_uploads.SharedUploads` writes all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.iobuf import IoBuf
from millstream.raft.group import GroupRole
from millstream.tiers.messages import SharedPart

if TYPE_CHECKING:
    from millstream.core.shared import Pack, Upload
    from millstream.core.shared.backlog import Part
    from millstream.format.manifest import ArchivedSegment
    from millstream.model.quantities import Offset
    from millstream.model.replication import Term
    from millstream.model.shared import SharedPartition
    from millstream.tiers.partition_archive import PartitionArchive


class Filled:
    """What one object will have of one partition."""

    __slots__ = ("archive", "chain", "end_offset", "from_offset", "partition", "segment", "term")

    def __init__(self, archive: PartitionArchive, partition: SharedPartition, from_offset: Offset) -> None:
        self.archive = archive
        self.partition = partition
        self.from_offset = from_offset
        self.end_offset = from_offset
        self.chain = IoBuf()
        self.segment: ArchivedSegment | None = None
        """None until the object is verified, and when the range is given up."""
        self.term: Term | None = None
        """That in which the entry was proposed."""

    def message(self) -> SharedPart:
        """What the archive process needs to know."""
        spans: list[int] = []
        for piece, start, end in self.chain.parts:
            spans += (piece.offset + start, piece.offset + end)
        known = self.archive.log.owner.producers
        aborted = [] if known is None else known.transactions.aborted_between(self.from_offset, self.end_offset)
        return SharedPart(self.partition, self.from_offset, self.end_offset, spans, aborted)

    @property
    def settled(self) -> bool:
        """Its entry is committed, or none is needed now."""
        archive, segment = self.archive, self.segment
        if archive.closed or archive.log.closed or segment is None or not leads(archive):
            return True
        return archive.archive.end_offset >= segment.end_offset or self.term not in (None, archive.group.term)


class SharedObject:
    """An object that is being filled, on its way, or held until those before it are verified."""

    __slots__ = ("failures", "is_held", "numbered_us", "packing", "parts", "size_bytes", "upload")

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self.parts: list[Filled] = []
        self.size_bytes = 0
        self.failures = 0
        self.is_held = False
        self.numbered_us = 0
        """When its number was chosen, on the monotonic clock."""
        self.upload: Upload | None = None

    def drop(self, partition: SharedPartition) -> None:
        """Forget what was read of a partition so far, if it is the last one."""
        if self.parts and self.parts[-1].partition == partition:
            filled = self.parts.pop()
            self.size_bytes -= len(filled.chain)
            filled.chain.release()

    def release(self) -> None:
        """Give the memory of the batches back."""
        for one in self.parts:
            one.chain.release()


class Packing:
    """A pack that becomes objects. ``offset`` is where reading continues in the part of number ``at``."""

    __slots__ = ("at", "objects", "offset", "pack")

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.at = 0
        self.offset = pack.parts[0].base_offset
        self.objects = 0
        """Objects of it that are not committed."""

    @property
    def part(self) -> Part | None:
        """The part that is being read; None at the end."""
        return self.pack.parts[self.at] if self.at < len(self.pack.parts) else None

    def next(self) -> None:
        """Continue with the next part."""
        self.at += 1
        if self.at < len(self.pack.parts):
            self.offset = self.pack.parts[self.at].base_offset


def leads(archive: PartitionArchive) -> bool:
    """Whether this replica leads and serves."""
    return archive.group.role is GroupRole.LEADING and archive.group.is_serving
