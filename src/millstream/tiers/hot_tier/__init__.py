"""The warm cache between memory and the object store: blocks of archived segments, on a disk or in memory.

::

    lookup ──► memory of the reader ──► guard ──► provider ──► slots      else the object store
                                          ▲ filling: what was read from the store, what is uploaded (`cache.fill`)

    provider   what a warm cache is: the interface, and caches of others by their entry point
    slotted    the cache of this broker: a policy (`core.eviction`) over slots of one size
    slots      where its blocks are: one file, or memory
    guard      what stands before any provider: checks every block, counts, switches a broken one off
    filling    fills in a thread of its own, and the sweep

What the room promises. **If the cache fails in any way, a reader is served from the store.** A block that does not
match its checksum is forgotten. An error of its disk or of a provider switches the cache off for a minute. Below
``cache.min.free.percent`` of free space nothing is added, and the cache shrinks to 80 % of its limit.
``cache.max.size.bytes`` is a hard limit over all shards. A start finds the cache empty. Fills never make a reader wait,
and are dropped when too many wait. Nothing is synced.

Source: the RFC of a hot-tier NVMe cache for tail segments (AutoMQ, 2025), with the decisions of ADR 10.
"""

from millstream.tiers.hot_tier.filling import WarmBlocks, cache_directory, open_warm_blocks
from millstream.tiers.hot_tier.guard import HotTier
from millstream.tiers.hot_tier.provider import Hint, HotTierProvider, Source, TierOptions, TierStats

__all__ = [
    "Hint",
    "HotTier",
    "HotTierProvider",
    "Source",
    "TierOptions",
    "TierStats",
    "WarmBlocks",
    "cache_directory",
    "open_warm_blocks",
]
