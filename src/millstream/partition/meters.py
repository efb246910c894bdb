"""What produce and fetch count: one set of counters per shard, bound once, bumped in place on the hot path."""

from millstream.partition.events.pools import pool_meters
from millstream.telemetry.metrics import StatsSlab


class Meters:
    """Counters of appends and fetches. ``accepted`` bumps three cells, which is all that a batch pays."""

    __slots__ = (
        "batches",
        "cells",
        "cut",
        "duplicates",
        "evicted",
        "fetched",
        "pools",
        "produced_bytes",
        "records",
        "rejected",
        "sessions",
        "waiters",
    )

    def __init__(self, stats: StatsSlab) -> None:
        self.cells = stats.cells
        self.produced_bytes = stats.counter("kafka_produce_bytes").index
        self.batches = stats.counter("kafka_produce_batches").index
        self.records = stats.counter("kafka_produce_records").index
        self.duplicates = stats.counter("kafka_produce_duplicates")
        self.rejected = stats.counter("kafka_produce_rejected_batches")
        self.fetched = stats.counter("kafka_fetch_bytes")
        self.waiters = stats.gauge("kafka_fetch_waiters")
        self.cut = stats.counter("kafka_fetch_cut")
        self.sessions = stats.gauge("kafka_fetch_sessions")
        self.evicted = stats.counter("kafka_fetch_sessions_evicted")
        self.pools = pool_meters(stats)

    def count_sessions(self, open_now: int, evictions: int) -> None:
        """A full fetch was answered: there may be another session, and one may have made room for it."""
        self.sessions.set(open_now)
        self.evicted.inc(evictions - self.evicted.value)

    def accepted(self, size: int, count: int) -> None:
        """A producer's batch was appended."""
        cells = self.cells
        cells[self.produced_bytes] += size
        cells[self.batches] += 1
        cells[self.records] += count
