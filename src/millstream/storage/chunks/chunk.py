"""The store's record of one chunk: its start, its end, and the start of each of its batches.

The store keeps eight bytes a batch in memory; everything else about a batch is read from its entry in the sidecar.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from millstream.format.events.chunk import ChunkEnds
from millstream.format.events.sidecar import ENTRY_BYTES, SIDECAR_HEADER_BYTES
from millstream.model.quantities import FilePosition, Offset

if TYPE_CHECKING:
    from millstream.format.events.sidecar import BatchEntry
    from millstream.model.events import ChunkId


class Chunk:
    """One chunk. Only the store changes it; ``ends`` and ``base_offsets`` change together, after the bytes."""

    __slots__ = ("base_offset", "base_offsets", "ends", "id", "last_timestamp", "path")

    def __init__(self, chunk: ChunkId, path: str, base_offset: Offset) -> None:
        self.id = chunk
        self.path = path
        """Its files without their suffix."""
        self.base_offset = base_offset
        self.base_offsets: array[int] = array("q")
        """First offset of each batch, rising."""
        self.ends = ChunkEnds()
        self.last_timestamp = -1
        """The largest time of all batches."""

    @property
    def next_offset(self) -> Offset:
        """Offset after the last event (exclusive)."""
        return Offset(self.base_offset + self.ends.events)

    @property
    def sidecar_end(self) -> FilePosition:
        """End of the sidecar."""
        return entry_position(len(self.base_offsets))

    def add(self, entry: BatchEntry) -> None:
        """The entry's batch is in the files."""
        self.base_offsets.append(entry.base_offset)
        self.ends = entry.ends
        self.last_timestamp = max(self.last_timestamp, entry.max_timestamp)

    def batch_at(self, offset: Offset) -> int:
        """The number of the batch that has an offset of this chunk."""
        return bisect_right(self.base_offsets, offset) - 1


def entry_position(batch_count: int) -> FilePosition:
    """Position in the sidecar of the entry of the batch that has ``batch_count`` batches before it."""
    return FilePosition(SIDECAR_HEADER_BYTES + batch_count * ENTRY_BYTES)
