"""The counters of one process: a few KiB of shared memory, one 8-byte cell per value.

The supervisor creates a slab before the process forks. The process increments cells (one aligned load and store, no
lock: it is the only writer). The supervisor reads them for ``/metrics``. A scrape therefore costs a shard nothing, and
works while a shard is stuck. A concurrent read sees the old or the new value, never a torn one, because
``memoryview.cast("Q")`` stores eight aligned bytes at once.

The layout follows from ``table.METRICS`` alone, so every slab of a broker has the same layout. The first cells are a
header::

    cell 0  process id            cell 8   reactor: when the running callback was entered (ns), 0 while it waits;
                                           writer: the same of the frame that is being written
    cell 1  started, µs           (a cache line of its own)

``table`` declares what exists. Handles (``Counter``, ``Gauge``, ``Histogram``) are bound once by name; a wrong name or
label raises ``KeyError`` there. A handle's ``cells`` and ``index`` are public for the few places where a method call is
too expensive: ``cells[index] += 1``.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

from millstream.telemetry.damage import DamageBoard
from millstream.telemetry.table import METRICS, Kind, Metric

PID_CELL: Final = 0
STARTED_CELL: Final = 1
ENTERED_CELL: Final = 8
_FIRST_CELL: Final = 16

BUCKETS: Final = 32
"""Bucket i counts values v with v.bit_length() == i, so v is below 2^i. The last bucket also counts all larger
values.
"""
_HISTOGRAM_CELLS: Final = BUCKETS + 1  # and the sum


class Counter:
    """A value that only grows."""

    __slots__ = ("cells", "index")

    def __init__(self, cells: memoryview, index: int) -> None:
        self.cells = cells
        self.index = index

    def inc(self, n: int = 1) -> None:
        self.cells[self.index] += n

    @property
    def value(self) -> int:
        return self.cells[self.index]


class Gauge:
    """A level, never below 0."""

    __slots__ = ("cells", "index")

    def __init__(self, cells: memoryview, index: int) -> None:
        self.cells = cells
        self.index = index

    def set(self, value: int) -> None:
        self.cells[self.index] = value

    def add(self, n: int) -> None:
        """Add ``n``, which may be negative."""
        self.cells[self.index] += n

    @property
    def value(self) -> int:
        return self.cells[self.index]


class Histogram:
    """Counts of non-negative integers (µs, bytes, a count) by power of two, and their sum."""

    __slots__ = ("base", "cells")

    def __init__(self, cells: memoryview, base: int) -> None:
        self.cells = cells
        self.base = base

    def observe(self, value: int) -> None:
        cells = self.cells
        base = self.base
        bucket = value.bit_length()
        cells[base + (bucket if bucket < 32 else 31)] += 1
        cells[base + 32] += value

    @property
    def counts(self) -> list[int]:
        return list(self.cells[self.base : self.base + BUCKETS])

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def sum(self) -> int:
        return self.cells[self.base + BUCKETS]

    def quantile(self, q: float) -> int:
        """Upper bound of the q-quantile: the upper end of its bucket. 0 if nothing was observed."""
        counts = self.counts
        rank = q * sum(counts)
        seen = 0
        for bucket, count in enumerate(counts):
            seen += count
            if count and seen >= rank:
                return 1 << bucket
        return 0


def _layout() -> tuple[dict[tuple[str, str], int], int]:
    """First cell by (metric, label value), and the number of cells."""
    places: dict[tuple[str, str], int] = {}
    cell = _FIRST_CELL
    for metric in METRICS:
        for value in metric.label.values if metric.label is not None else ("",):
            places[metric.name, value] = cell
            cell += _HISTOGRAM_CELLS if metric.kind is Kind.HISTOGRAM else 1
    return places, cell


_PLACES, _CELLS = _layout()


class StatsSlab:
    """The metrics of one process. ``shard`` is its shard, −1 for the supervisor; ``role`` distinguishes a shard from
    its helper processes.

    Lifecycle: created by the supervisor before the fork, ``started`` by the process itself, read by the supervisor.
    """

    __slots__ = ("_map", "cells", "damage", "role", "shard")

    def __init__(self, shard: int = -1, role: str = "supervisor") -> None:
        self.shard = shard
        self.role = role
        self._map = mmap.mmap(-1, _CELLS * 8)
        self.cells: memoryview = memoryview(self._map).cast("Q")
        self.damage = DamageBoard()

    def started(self) -> None:
        """Record the start. The process that owns the slab calls this once, after its fork."""
        self.cells[PID_CELL] = os.getpid()
        self.cells[STARTED_CELL] = time.perf_counter_ns() // 1000

    @property
    def pid(self) -> int:
        """Process id; 0 until the process has started."""
        return self.cells[PID_CELL]

    def cell(self, metric: Metric, value: str) -> int:
        """First cell of a metric with label value ``value`` ("" without a label)."""
        return _PLACES[metric.name, value]

    def _place(self, name: str, kind: Kind, labels: dict[str, str]) -> int:
        metric = _BY_NAME.get(name)
        if metric is None or metric.kind is not kind:
            raise KeyError(f"no {kind.value} {name!r} is declared in telemetry/table.py")
        if not labels:
            if metric.label is not None:
                raise KeyError(f"{name} needs the label {metric.label.name}")
            return _PLACES[name, ""]
        ((label, value),) = labels.items()
        if metric.label is None or metric.label.name != label or value not in metric.label.values:
            raise KeyError(f"{name} has no {label}={value!r} in telemetry/table.py")
        return _PLACES[name, value]

    def counter(self, name: str, **labels: str) -> Counter:
        return Counter(self.cells, self._place(name, Kind.COUNTER, labels))

    def gauge(self, name: str, **labels: str) -> Gauge:
        return Gauge(self.cells, self._place(name, Kind.GAUGE, labels))

    def histogram(self, name: str, **labels: str) -> Histogram:
        return Histogram(self.cells, self._place(name, Kind.HISTOGRAM, labels))


_BY_NAME = {metric.name: metric for metric in METRICS}
