"""When a replay starts another chunk of an event topic: where the log would have, after the batch that filled it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.events.batch import batch_overhead, metadata_bytes
from millstream.storage.chunks import is_chunk_disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.events.chunk import ChunkEnds, ChunkLimits
    from millstream.format.wal import WalRecord
    from millstream.model.quantities import BytePosition
    from millstream.storage.disk import Disk


class ChunkFill:
    """How full the chunk is that a replay writes to. Without limits it is the log of another topic: never full."""

    def __init__(self, disk: Disk, limits: ChunkLimits | None, flush: Callable[[], None]) -> None:
        """``flush`` has everything written that was counted as the log's."""
        self._disk = disk
        self._flush = flush
        self._limits = limits
        self._ends: ChunkEnds | None = None

    def forget(self) -> None:
        """Continue in another chunk, or at another position. The files determine how full the chunk is."""
        self._ends = None

    def is_full(self, path: str, written: BytePosition) -> bool:
        """Whether the next batch starts another chunk; ``path`` is its segment, whose stream has ``written`` bytes."""
        if self._limits is None:
            return False
        if self._ends is None:
            self._flush()
            assert is_chunk_disk(self._disk), "an event topic needs a disk that keeps chunks"
            self._ends = self._disk.segment(path).ends_at(written)
        return self._limits.full(self._ends)

    def sweep(self, directory: str) -> None:
        """Remove what a crash left of chunks that were being made: the write-ahead log has their events, if they are
        still the log's.
        """
        if self._limits is not None:
            assert is_chunk_disk(self._disk), "an event topic needs a disk that keeps chunks"
            self._disk.sweep(directory)

    def add(self, record: WalRecord, payload: memoryview) -> None:
        """Count a batch. The first batch of a chunk is counted when its size is requested."""
        if self._ends is not None:
            count = record.last - record.base + 1
            meta = metadata_bytes((payload,), count)
            self._ends = self._ends.plus(count, meta, record.size - batch_overhead(count) - meta)
