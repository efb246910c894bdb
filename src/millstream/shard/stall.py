"""Watches for shards that are stuck in one callback, and makes them write their stack.

The reactor stamps shared memory when it enters a callback and clears the stamp when it leaves (``reactor``). The
supervisor polls the stamps of all processes about ten times a second, at the price of one load each. A stamp older than
the limit means a callback that does not return. A signal then makes the stalled process write its own stack to stderr
through ``faulthandler``, which needs neither the interpreter nor a lock and works inside C code or a system call::

    watch = StallWatch(limit_ms=100)
    watch.add(slab)                    # after the process has started
    …every 100 ms: watch.poll()

A stall is dumped once, and a process at most once in ``QUIET_MS``, so that an overloaded machine does not flood the
log. A process stopped by SIGSTOP shows its stack only after it continues. In a process that has not called
``dump_on_signal`` the signal would be fatal, so spawned children call it first.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from millstream.telemetry.log import log
from millstream.telemetry.metrics import ENTERED_CELL

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.telemetry.metrics import Counter, StatsSlab

DUMP_SIGNAL: Final = signal.SIGUSR2
DEFAULT_LIMIT_MS: Final = 100
QUIET_MS: Final = 10_000


def dump_on_signal() -> None:
    """Make this process write its stack to stderr on ``DUMP_SIGNAL``."""
    faulthandler.register(DUMP_SIGNAL, file=sys.__stderr__ or 2, all_threads=True, chain=False)


class _Watched:
    """A watched process."""

    __slots__ = ("cells", "dumped_ns", "dumps", "quiet_until_ns", "slab")

    def __init__(self, slab: StatsSlab) -> None:
        self.slab = slab
        self.cells = slab.cells
        self.dumped_ns = 0  # stamp of the stall that was dumped last
        self.quiet_until_ns = 0
        self.dumps: Counter = slab.counter("reactor_stall_dumps")


class StallWatch:
    """The watch over all processes. It belongs to the supervisor, their parent."""

    def __init__(self, limit_ms: int = DEFAULT_LIMIT_MS, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._limit_ns = limit_ms * 1_000_000
        self._now_ns = now_ns
        self._watched: list[_Watched] = []

    def add(self, slab: StatsSlab) -> None:
        """Watch the process that owns ``slab``."""
        self._watched.append(_Watched(slab))

    def poll(self) -> int:
        """Check all stamps. Returns the number of processes that were made to write their stack."""
        now_ns = self._now_ns()
        reported = 0
        for watched in self._watched:
            entered_ns = watched.cells[ENTERED_CELL]
            if not entered_ns or now_ns - entered_ns < self._limit_ns:
                continue
            if entered_ns == watched.dumped_ns or now_ns < watched.quiet_until_ns:
                continue
            watched.dumped_ns = entered_ns
            watched.quiet_until_ns = now_ns + QUIET_MS * 1_000_000
            self._dump(watched, (now_ns - entered_ns) // 1_000_000)
            reported += 1
        return reported

    def _dump(self, watched: _Watched, stalled_ms: int) -> None:
        slab = watched.slab
        log.warning("%s %d has been in one callback for %d ms; its stack follows", slab.role, slab.shard, stalled_ms)
        watched.dumps.inc()
        try:
            os.kill(slab.pid, DUMP_SIGNAL)
        except ProcessLookupError:
            return  # the code that waits for the process reports its end
