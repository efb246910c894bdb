"""A warm cache of somebody else: blocks in memory, compressed, the longest unused leaves first.

A package that installs this module and declares the entry point of ``pyproject.toml`` beside it gives brokers
``cache.type=compressed``. Three times as many blocks of JSON fit into the same memory; a hit costs the time to
decompress a block. It knows nothing of readers, checksums or errors: the broker's guard does that for every provider.
"""

import threading
from collections import OrderedDict

import zstandard

from millstream.core.eviction import ReaderId
from millstream.format.manifest import ArchiveId
from millstream.model.quantities import Offset, TimestampMs
from millstream.tiers.hot_tier import Hint, TierOptions, TierStats


class CompressedTier:
    """One shard's blocks. See ``millstream.tiers.hot_tier.provider.HotTierProvider``."""

    def __init__(self, options: TierOptions) -> None:
        self._size_bytes_max = options.size_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[ArchiveId, Offset], bytes] = OrderedDict()
        self._size_bytes = 0
        self._evicted = {"capacity": 0, "invalid": 0}

    def get(self, owner: ArchiveId, base_offset: Offset) -> memoryview | None:
        with self._lock:
            data = self._blocks.get((owner, base_offset))
            if data is None:
                return None
            self._blocks.move_to_end((owner, base_offset))
        return memoryview(zstandard.decompress(data))  # memory of its own: nothing else will ever use it

    def put(self, owner: ArchiveId, base_offset: Offset, block: memoryview, hint: Hint) -> bool:
        _ = hint
        data = zstandard.compress(block, level=1)
        with self._lock:
            if (owner, base_offset) in self._blocks:
                return True
            self._blocks[owner, base_offset] = data
            self._size_bytes += len(data)
            while self._size_bytes > self._size_bytes_max:
                self._size_bytes -= len(self._blocks.popitem(last=False)[1])
                self._evicted["capacity"] += 1
            return (owner, base_offset) in self._blocks

    def reader_at(self, owner: ArchiveId, reader: ReaderId, next_offset: Offset, place_ms: TimestampMs) -> None:
        """The longest unused block leaves, whoever may need it."""

    def invalidate(self, owner: ArchiveId | None, start: Offset, end: Offset) -> None:
        with self._lock:
            for key in [key for key in self._blocks if owner in (None, key[0]) and start <= key[1] < end]:
                self._size_bytes -= len(self._blocks.pop(key))
                self._evicted["invalid"] += 1

    def sweep(self) -> None:
        """Nothing grows old here."""

    def stats(self) -> TierStats:
        with self._lock:
            return TierStats(len(self._blocks), self._size_bytes, dict(self._evicted))

    def close(self) -> None:
        self._blocks.clear()
