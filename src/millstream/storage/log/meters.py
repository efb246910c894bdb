"""What the logs of one shard count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.telemetry.metrics import StatsSlab


class LogMeters:
    """One per shard."""

    def __init__(self, stats: StatsSlab) -> None:
        self.cache_hits = stats.counter("cache_hits")
        self.cache_misses = stats.counter("cache_misses")
        self.cache_read_bytes = stats.counter("read_bytes", source="cache")
        self.written_bytes = stats.counter("segment_written_bytes")
        self.rolled = stats.counter("segments_rolled")
        self.deleted = stats.counter("segments_deleted")
        self.partitions = stats.gauge("log_partitions")
