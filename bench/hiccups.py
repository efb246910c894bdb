"""What the machine itself does to a process that only sleeps: late wake-ups while no broker runs.

A process of the best broker is woken late when the machine is: other processes of the system, the host of a virtual
machine, interrupts. Measured like jHiccup does: ask to be woken every 0.2 ms, on the first processor (where a broker's
first shard is pinned), and count how late that was. A tail of a load that is below this is luck; one that is above
is the broker's.
"""

import os
import time
from dataclasses import dataclass

from bench.buckets import Buckets

SPACING_S = 0.0002


@dataclass(frozen=True)
class Hiccups:
    """How late, in milliseconds, by percentile over all wake-ups."""

    seconds: float
    p99_ms: float
    p999_ms: float
    longest_ms: float

    def __str__(self) -> str:
        return (
            f"a process that only sleeps was woken late by p99 {self.p99_ms:.2f}, p99.9 {self.p999_ms:.2f}, at most "
            f"{self.longest_ms:.1f} ms over {self.seconds:.0f} s without any broker"
        )


def measure(seconds: float) -> Hiccups:
    """Sleeps for ``seconds`` on the first processor that this process may use, which it may leave afterwards."""
    allowed = os.sched_getaffinity(0)
    late = Buckets()
    os.sched_setaffinity(0, {min(allowed)})
    try:
        now = time.perf_counter()
        until = now + seconds
        while now < until:
            due = now + SPACING_S
            time.sleep(SPACING_S)
            now = time.perf_counter()
            late.append(max(0.0, (now - due) * 1e6))
    finally:
        os.sched_setaffinity(0, allowed)
    return Hiccups(seconds, *(late.percentile_us(percent) / 1000 for percent in (99, 99.9, 100)))
