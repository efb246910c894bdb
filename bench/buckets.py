"""Latencies by the million in a few hundred numbers: buckets that are 2.2 % wide (2^(1/32)), from 1 µs to a minute.

Takes one value in a fraction of a microsecond and never grows, so that a run of hours can keep its percentiles. A
percentile is the upper bound of its bucket; the largest value is kept as it is.
"""

import math

STEPS = 32
TOP = 26 * STEPS


class Buckets:
    """A :class:`~bench.load.Sink` of microseconds."""

    def __init__(self) -> None:
        self.counts = [0] * (TOP + 1)
        self.count = 0
        self.max_us = 0.0

    def append(self, value_us: float, /) -> None:
        place = int(math.log2(value_us) * STEPS) if value_us > 1.0 else 0
        self.counts[min(place, TOP)] += 1
        self.count += 1
        self.max_us = max(self.max_us, value_us)

    def percentile_us(self, percent: float) -> float:
        """What ``percent`` of the values did not exceed; 0 without values."""
        if percent >= 100 or not self.count:
            return self.max_us
        wanted, seen = math.ceil(self.count * percent / 100), 0
        for place, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return min(self.max_us, 2 ** ((place + 1) / STEPS))
        return self.max_us

    def add(self, other: "Buckets") -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.max_us = max(self.max_us, other.max_us)

    def clear(self) -> None:
        self.__init__()
