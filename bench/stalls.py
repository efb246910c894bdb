"""What a broker's own metrics say about a load: how long callbacks and the disk took, and what else went on.

Only ours is asked; of the peer there is nothing to compare. The histogram has buckets of powers of two, and a quantile
is the upper bound of its bucket: the real value is between half of it and it.
"""

import contextlib
from collections.abc import Callable, Generator

from bench.rows import Figures
from bench.subjects import Subject
from millstream.cli.exposition import Exposition, Histogram, quantile

CALLBACKS = "millstream_reactor_callback_seconds"
COLLECTIONS = "millstream_gc_pause_seconds"
LONG = "millstream_reactor_long_stalls_total"
LATENCIES = (
    ("callback_p99_ms", CALLBACKS, 0.99),
    ("callback_p999_ms", CALLBACKS, 0.999),
    ("callback_max_ms", CALLBACKS, 1.0),
    ("tick_p99_ms", "millstream_wal_tick_latency_seconds", 0.99),
    ("write_max_ms", "millstream_wal_write_latency_seconds", 1.0),
    ("sync_max_ms", "millstream_wal_sync_latency_seconds", 1.0),
)
"""Figure, histogram, quantile; where nothing was counted there is no figure."""


def between(before: Exposition, now: Exposition) -> Figures:
    """Between two readings: callbacks of all shards, writes and syncs of their logs, the collector's pauses; in ms."""
    earlier, later = before.histogram(CALLBACKS), now.histogram(CALLBACKS)
    figures: Figures = {"long_stalls": now.value(LONG) - before.value(LONG)}
    for name, metric, q in LATENCIES:
        bound = quantile(before.histogram(metric), now.histogram(metric), q)
        if bound is not None:
            figures[name] = 1000 * bound
    pauses, pauses_then = now.histogram(COLLECTIONS), before.histogram(COLLECTIONS)
    figures["collections"] = _total(pauses) - _total(pauses_then)
    figures["collection_max_ms"] = 1000 * (quantile(pauses_then, pauses, 1.0) or 0.0)
    for (bound, count), (_, then) in zip(later, _as_long_as(earlier, later), strict=True):
        figures[f"callbacks_le_{1000 * bound:g}"] = count - then
    return figures


def _total(histogram: Histogram) -> float:
    return histogram[-1][1] if histogram else 0.0


def _as_long_as(earlier: Histogram, later: Histogram) -> Histogram:
    """A histogram that nothing had touched is not on the page: all zeros then."""
    return earlier or [(bound, 0.0) for bound, _ in later]


@contextlib.contextmanager
def watched(subject: Subject) -> Generator[Callable[[], Figures]]:
    """Gives a function for the figures since the block began; nothing for a subject that tells nothing."""
    before = subject.metrics()

    def figures() -> Figures:
        now = subject.metrics()
        return {} if before is None or now is None else between(before, now)

    yield figures
