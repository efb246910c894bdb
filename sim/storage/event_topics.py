"""Event topics in the storage world: small chunks, and the disk that keeps chunks for segments.

Each process of a broker has a ``ChunkDisk`` of its own over the same files, so each side of a world has one: recovery,
the reactor's, and that of the other processes, whose locks are lent by the lanes (``lanes.TurnLock``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.config.event_partition import EventPartition
from millstream.storage.chunks.chunk_disk import ChunkDisk

if TYPE_CHECKING:
    import random

    from millstream.storage.chunks.chunk_segment import ChunkSegment
    from millstream.storage.disk import Disk
    from sim.engine.lanes import Lanes


def events_config(rng: random.Random) -> dict[str, Any]:
    """What an event topic of a history says for itself, as ``TopicConfig`` would."""
    limits = EventPartition(
        max_chunk_size=rng.choice([4_000, 16_000]), max_events_per_chunk=rng.choice([3, 12, 1_000_000])
    )
    return {
        "has_events": True,
        "event_partition": limits,
        "events_complete": False,
        "events_max_bytes": 1 << 20,
        "segment_bytes": (1 << 31) - 1,
    }


class TurnChunkDisk(ChunkDisk):
    """A ``ChunkDisk`` whose locks hand the baton on."""

    def __init__(self, disk: Disk, lanes: Lanes) -> None:
        self._lanes = lanes
        super().__init__(disk)
        lanes.lend_locks(self)

    def _begin(self) -> None:
        super()._begin()
        self._lanes.lend_locks(self._files)

    def segment(self, path: str, *, create: bool = False) -> ChunkSegment:
        """See ``ChunkDisk``."""
        one = super().segment(path, create=create)
        self._lanes.lend_locks(one)
        return one
