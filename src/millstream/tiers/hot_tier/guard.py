"""What stands between the readers and a provider: no damage, no error and no delay of its own reaches a reader.

Every block is checked against the checksum that the archive's index has of it. A damaged block is forgotten, and no
other; the metric counts it, and a line says so. Anything that a provider raises switches it off for a minute, and it is
empty when it comes back. A block of a range whose objects were replaced is not damaged, but old.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.errors import Corruption
from millstream.model.quantities import Offset
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.tiers.hot_tier.provider import EVERY_OFFSET, TierStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.eviction import ReaderId
    from millstream.format.manifest import ArchiveId
    from millstream.model.quantities import TimestampMs
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.hot_tier.provider import Hint, HotTierProvider

_REPLACED_MAX: Final = 64
_OFF_S: Final = 60.0
_FIRST: Final = Offset(0)
_MILLION: Final = 1_000_000
EVICTION_REASONS: Final = ("capacity", "age", "low_disk", "invalid", "fault")
REFUSAL_REASONS: Final = ("too_large", "worth_less", "low_disk", "off", "other")


class _Meters:
    """What the shard counts of its warm cache. A provider's own counts only rise; ``evicted`` and ``refused`` are what
    of them was taken over.
    """

    __slots__ = (
        "dropped",
        "evicted",
        "evictions",
        "fills",
        "hits",
        "latency",
        "misses",
        "rate",
        "refusals",
        "refused",
        "size",
    )

    def __init__(self, stats: StatsSlab) -> None:
        self.hits = stats.counter("hot_tier_hits")
        self.misses = stats.counter("hot_tier_misses")
        self.rate = stats.gauge("hot_tier_hit_rate")
        self.fills = stats.counter("hot_tier_fills")
        self.size = stats.gauge("hot_tier_size_bytes")
        self.latency = stats.histogram("hot_tier_read_latency")
        self.evictions = {reason: stats.counter("hot_tier_evictions", reason=reason) for reason in EVICTION_REASONS}
        self.refusals = {reason: stats.counter("hot_tier_refused_fills", reason=reason) for reason in REFUSAL_REASONS}
        self.dropped = stats.counter("hot_tier_dropped_fills")
        self.evicted: dict[str, int] = {}
        self.refused: dict[str, int] = {}

    def asked(self, begun_ns: int, *, hit: bool) -> None:
        """A reader asked for a block at this monotonic time."""
        if hit:
            self.hits.inc()
            self.latency.observe((time.monotonic_ns() - begun_ns) // 1000)
        else:
            self.misses.inc()
        hits = self.hits.value
        self.rate.set(_MILLION * hits // (hits + self.misses.value))

    def take_over(self, found: TierStats, invalid: str) -> None:
        """Take over what the provider counted; ``invalid`` is what its invalidations were for."""
        self.size.set(found.size_bytes)
        for reason, count in found.evicted.items():
            counter = self.evictions.get(invalid if reason == "invalid" else reason, self.evictions["fault"])
            counter.inc(max(0, count - self.evicted.get(reason, 0)))
            self.evicted[reason] = count
        for reason, count in found.refused.items():
            counter = self.refusals.get(reason, self.refusals["other"])
            counter.inc(max(0, count - self.refused.get(reason, 0)))
            self.refused[reason] = count


class HotTier:
    """The warm cache of one shard. Safe for threads."""

    def __init__(
        self, provider: HotTierProvider, stats: StatsSlab, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._replaced: deque[tuple[ArchiveId, Offset, Offset]] = deque(maxlen=_REPLACED_MAX)
        self._off_until_s = 0.0
        self._lines = RateLimit(per_minute=6)
        self._meters = _Meters(stats)

    @property
    def is_on(self) -> bool:
        """Whether the provider is asked."""
        return self._clock() >= self._off_until_s

    def get(self, owner: ArchiveId, base_offset: Offset, checksum: int) -> memoryview | None:
        """The block that starts at the offset and has this CRC-32C; None if it is not here. It stays what it is as long
        as the view exists.
        """
        begun_ns = time.monotonic_ns()
        block = None
        if self.is_on:
            try:
                block = self._provider.get(owner, base_offset)
                if block is not None and crc32c(block) != checksum:
                    raise Corruption(f"offset {base_offset} does not match its checksum")
            except Corruption:
                block = None
                if self._is_replaced(owner, base_offset):
                    self._forget(owner, base_offset, Offset(base_offset + 1), "invalid")
                else:
                    self._damaged(owner, base_offset)
            except Exception as error:  # noqa: BLE001  # a provider is a guest
                self._off(_reason(error))
        self._meters.asked(begun_ns, hit=block is not None)
        return block

    def put(self, owner: ArchiveId, base_offset: Offset, block: memoryview, hint: Hint) -> None:
        """Offer a block."""
        if self.is_on:
            try:
                if self._provider.put(owner, base_offset, block, hint):
                    self._meters.fills.inc()
                self._count()
            except Exception as error:  # noqa: BLE001
                self._off(_reason(error))
        else:
            self._meters.refusals["off"].inc()

    def reader_at(self, owner: ArchiveId, reader: ReaderId, next_offset: Offset, place_ms: TimestampMs) -> None:
        """A reader continues at this offset, where the data are as old as ``place_ms`` says."""
        if self.is_on:
            try:
                self._provider.reader_at(owner, reader, next_offset, place_ms)
            except Exception as error:  # noqa: BLE001
                self._off(_reason(error))

    def invalidate(self, owner: ArchiveId | None, start: Offset = _FIRST, end: Offset = EVERY_OFFSET) -> None:
        """Forget blocks that no reader can ask for now: those that start at ``start`` to before ``end``."""
        self._forget(owner, start, end, "invalid")

    def replaced(self, owner: ArchiveId, start: Offset, end: Offset) -> None:
        """Other blocks start at these offsets from now on. A reader that started before may still ask for an old one,
        or have one kept: that is no damage.
        """
        self._replaced.append((owner, start, end))
        self.invalidate(owner, start, end)

    def _is_replaced(self, owner: ArchiveId, offset: Offset) -> bool:
        return any(one[0] == owner and one[1] <= offset < one[2] for one in tuple(self._replaced))

    def _forget(self, owner: ArchiveId | None, start: Offset, end: Offset, reason: str) -> None:
        try:
            self._provider.invalidate(owner, start, end)
            self._count(reason)
        except Exception as error:  # noqa: BLE001
            self._off(_reason(error), empty=False)

    def sweep(self) -> None:
        """Have blocks leave that are too old, or too much for the disk."""
        if self.is_on:
            try:
                self._provider.sweep()
                self._count()
            except Exception as error:  # noqa: BLE001
                self._off(_reason(error))

    def dropped(self) -> None:
        """A fill was given up, because too many waited."""
        self._meters.dropped.inc()

    def stats(self) -> TierStats:
        """How full it is; empty if the provider does not say."""
        try:
            return self._provider.stats()
        except Exception as error:  # noqa: BLE001
            self._off(_reason(error), empty=False)
            return TierStats()

    def close(self) -> None:
        """Give everything up."""
        self._provider.close()

    def _count(self, invalid: str = "invalid") -> None:
        self._meters.take_over(self._provider.stats(), invalid)

    def _damaged(self, owner: ArchiveId, base_offset: Offset) -> None:
        self._forget(owner, base_offset, Offset(base_offset + 1), "fault")
        if self._lines.allows():
            operator_log.warning(
                "a block of the warm cache was damaged and is forgotten: offset %d of partition %d of topic %s%s",
                base_offset,
                owner.partition_index,
                owner.topic_id,
                self._lines.left_out(),
            )

    def _off(self, why: str, *, empty: bool = True) -> None:
        """Its content can no longer be trusted, so it is emptied."""
        self._off_until_s = self._clock() + _OFF_S
        if empty:
            self._forget(None, _FIRST, EVERY_OFFSET, "fault")
        if self._lines.allows():
            operator_log.warning("the warm cache is off for a minute: %s; readers are served from the store", why)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
