"""Fills a warm cache in a thread of its own, so that no reader waits for it; what is too much is dropped."""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.errors import Rejected
from millstream.format.archive import BLOCK_BYTES
from millstream.telemetry.log import log as operator_log
from millstream.tiers.hot_tier.guard import HotTier
from millstream.tiers.hot_tier.provider import TierOptions, find_provider
from millstream.tiers.hot_tier.slots import SLOT_BYTES, FileSlots, MemorySlots
from millstream.tiers.hot_tier.slotted import SlottedTier

if TYPE_CHECKING:
    from millstream.config.settings import Settings
    from millstream.format.manifest import ArchiveId
    from millstream.model.quantities import Offset
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.hot_tier.provider import Hint, HotTierProvider

_QUEUE_MAX: Final = 16
_DISK_SHARE_MAX: Final = 0.9


class WarmBlocks:
    """A hot tier, and what fills it (``cache.fill``)."""

    def __init__(
        self, tier: HotTier, fill: str, evict_interval_ms: int = 1000, name: str = "", size_bytes: int = 0
    ) -> None:
        self.tier = tier
        self.filling = Filling(tier, evict_interval_ms / 1000)
        self.fills_on_read = fill in ("read", "both")
        self.fills_on_write = fill in ("write", "both")
        self.name = name
        self.size_bytes = size_bytes


class Filling:
    """Lifecycle: made once, runs as long as the process."""

    def __init__(self, tier: HotTier, interval_s: float) -> None:
        self._tier = tier
        self._interval_s = interval_s
        self._queue: deque[tuple[ArchiveId, Offset, memoryview, Hint]] = deque()
        self._bell = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, owner: ArchiveId, base_offset: Offset, block: memoryview, hint: Hint) -> None:
        """Offer a block, soon."""
        if len(self._queue) >= _QUEUE_MAX:
            self._tier.dropped()
            return
        self._queue.append((owner, base_offset, block, hint))
        self._bell.release()

    def _run(self) -> None:
        while True:
            if self._bell.acquire(timeout=self._interval_s):
                self._tier.put(*self._queue.popleft())
            else:
                self._tier.sweep()


def cache_directory(settings: Settings) -> str:
    """``cache.path``, or the directory that stands for it."""
    return settings.cache_path or f"{os.path.abspath(settings.data_dir)}/cache"


def _fill_of(settings: Settings) -> str:
    return settings.cache_fill if settings.cache_warmup else "write"


def fills_on_write(settings: Settings) -> bool:
    """Whether uploads fill the warm cache."""
    return _fill_of(settings) in ("write", "both")


def open_warm_blocks(settings: Settings, shard_id: int, stats: StatsSlab) -> WarmBlocks | None:
    """The warm cache of a shard; None without one, or if it cannot be used, which is logged."""
    if settings.cache_type == "none":
        return None
    directory = cache_directory(settings)
    options = TierOptions(
        shard_id,
        settings.cache_max_size_bytes // settings.shards,
        BLOCK_BYTES + settings.socket_request_max_bytes,
        settings.cache_max_segment_age_ms,
        directory,
        settings.cache_eviction_policy,
        settings.cache_io,
        settings.cache_min_free_percent / 100,
    )
    try:
        provider, size_bytes = _open(settings.cache_type, options, settings.shards)
    except Exception as error:  # noqa: BLE001  # of a provider, of any kind
        operator_log.warning("there is no warm cache, readers are served from the store: %s", error)
        return None
    return WarmBlocks(
        HotTier(provider, stats), _fill_of(settings), settings.evict_interval_ms, settings.cache_type, size_bytes
    )


def _open(kind: str, options: TierOptions, shards: int) -> tuple[HotTierProvider, int]:
    """The provider, and the bytes that it may take."""
    if kind not in ("memory", "nvme"):
        return find_provider(kind)(options), options.size_bytes
    size_bytes = options.size_bytes
    slots: MemorySlots | FileSlots = MemorySlots()
    if kind == "nvme":
        slots = FileSlots(options.directory, f"shard-{options.shard}", options.io, size_bytes)
        fits = int(shutil.disk_usage(options.directory).free * _DISK_SHARE_MAX) // shards
        if fits < size_bytes:
            operator_log.warning(
                "cache.path: %s has %d bytes for the warm cache of this shard, not %d",
                options.directory,
                fits,
                size_bytes,
            )
            size_bytes = fits
    count = size_bytes // SLOT_BYTES
    if not count:
        slots.close()
        raise Rejected(f"a shard's part of cache.max.size.bytes is {size_bytes}, expected at least {SLOT_BYTES}")
    return SlottedTier(slots, options.policy, count, options.age_max_ms, options.free_share_min), size_bytes
