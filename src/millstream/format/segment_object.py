"""Building the object of an archived segment: batches go in, blocks come out, the index comes last.

Nothing wrong goes in: a batch that does not match its checksum, is out of place, or has an earlier leader epoch than
one before it is `Corruption`. The same batches make the same bytes.

Batches of a log that was compacted may have gaps between them and before the first one. The object has the whole range
of offsets, gaps included: it starts at the offset that the caller names, and ends where its last batch ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.archive import Block, SegmentIndex, encode_index, ends_before
from millstream.format.index import NO_TIMESTAMP
from millstream.format.manifest import ArchivedSegment, without_timestamps
from millstream.format.segment import may_follow
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.wire.records import batch_crc_ok

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.format.archive import AbortedSpan
    from millstream.format.manifest import ArchiveId
    from millstream.format.segment import Batch
    from millstream.model.replication import Term


class _OpenBlock:
    """The batches since the last block."""

    __slots__ = ("base_offset", "newest", "size_bytes", "views")

    def __init__(self, base_offset: Offset) -> None:
        self.base_offset = base_offset
        self.views: list[memoryview] = []
        self.size_bytes = 0
        self.newest = TimestampMs(NO_TIMESTAMP)

    def add(self, data: memoryview, max_timestamp: TimestampMs) -> None:
        """A batch belongs to the block."""
        self.views.append(data)
        self.size_bytes += len(data)
        self.newest = max(self.newest, max_timestamp)


class SegmentObject:
    """One object. Lifecycle: `add` each batch in order, `end_block` once, `end` once."""

    def __init__(self, owner: ArchiveId, base_offset: Offset, block_bytes: int, *, gaps: bool = False) -> None:
        """A block has at most ``block_bytes``, but for `ends_before`. ``gaps``: offsets may be missing."""
        self._owner = owner
        self._base_offset = base_offset
        self._block_bytes = block_bytes
        self._gaps = gaps
        self.end_offset = base_offset
        """Where the next batch has to start, with gaps at the earliest."""
        self.size_bytes = 0
        """Bytes of the blocks so far."""
        self.blocks: list[Block] = []
        self.epochs: list[tuple[Term, Offset]] = []
        self._open = _OpenBlock(base_offset)
        self._times = TimestampMs(NO_TIMESTAMP), TimestampMs(NO_TIMESTAMP)
        """The smallest and the largest time of the batches."""
        self._checksum = 0
        self._index_bytes = 0

    def add(self, batch: Batch, data: memoryview) -> bytes | None:
        """Add a batch, whose bytes stay as they are until its block is given. Returns the block before it, if that is
        full.
        """
        where = f"the batch at byte {batch.position}, offset {batch.base_offset}"
        if not may_follow(batch, self.end_offset, gaps=self._gaps):
            raise Corruption(f"{where}, stands where offset {self.end_offset} should")
        if not batch_crc_ok(data):
            raise Corruption(f"{where}, does not match its checksum")
        if not self.epochs or batch.leader_epoch > self.epochs[-1][0]:
            self.epochs.append((batch.leader_epoch, batch.base_offset))
        elif batch.leader_epoch < self.epochs[-1][0]:
            raise Corruption(f"{where}, has an earlier leader epoch than one before it")
        full = self.end_block() if ends_before(self._open.size_bytes, len(data), self._block_bytes) else None
        self.end_offset = Offset(batch.last_offset + 1)
        low, high = self._times
        if batch.first_timestamp >= 0:
            low = batch.first_timestamp if low < 0 else min(low, batch.first_timestamp)
        self._times = low, max(high, batch.max_timestamp)
        self._open.add(data, batch.max_timestamp)
        return full

    def end_block(self) -> bytes | None:
        """The batches since the last block, as a block; None without any."""
        ended = self._open
        if not ended.views:
            return None
        block = b"".join(ended.views)
        self.blocks.append(Block(ended.base_offset, FilePosition(self.size_bytes), ended.newest, crc32c(block)))
        self._checksum = crc32c(block, self._checksum)
        self.size_bytes += len(block)
        self._open = _OpenBlock(self.end_offset)
        return block

    def end(self, aborted: Iterable[AbortedSpan] | None) -> bytes:
        """The index after the last block; ``aborted`` are the transactions that it says were aborted."""
        ordered = None if aborted is None else tuple(sorted(aborted, key=lambda one: one[1]))
        index = SegmentIndex(self._base_offset, self.end_offset, tuple(self.blocks), tuple(self.epochs), ordered)
        data = encode_index(self._owner, index)
        self._index_bytes = len(data)
        return data

    def segment(self, term: Term, appended_ms: TimestampMs | None = None) -> ArchivedSegment:
        """What the object is, after `end`. ``appended_ms`` says when its last batch was appended, if it is known; it
        counts if no batch has a timestamp.
        """
        low, high = self._times
        if high < 0:
            low = high = without_timestamps(appended_ms)
        return ArchivedSegment(
            self._base_offset,
            self.end_offset,
            self.size_bytes,
            self._checksum,
            low,
            high,
            term,
            self._index_bytes,
        )
