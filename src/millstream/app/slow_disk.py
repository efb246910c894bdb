"""Detects a disk that does not answer: a write-ahead log frame that is written or synced for too long.

A writer stamps shared memory while it is at the disk (``storage.processes.writer``). The supervisor, which never waits
for a disk itself, checks the stamps. While a disk hangs no metric moves and producers only wait, so there is a log line
when it starts, one per minute while it lasts, and one when it is over.
"""

import time
from collections.abc import Callable
from typing import Final

from millstream.telemetry.log import log
from millstream.telemetry.metrics import ENTERED_CELL, StatsSlab

LIMIT_MS: Final = 1_000
AGAIN_MS: Final = 60_000
_MS: Final = 1_000_000


class _Writer:
    """The writer of one shard."""

    __slots__ = ("counted_ns", "logged_ns", "quiet_until_ns", "shard", "slab")

    def __init__(self, shard: int, slab: StatsSlab) -> None:
        self.shard = shard
        self.slab = slab
        self.counted_ns = 0  # stamp of the last counted wait
        self.logged_ns = 0  # stamp of the wait whose end is to be logged; 0: none
        self.quiet_until_ns = 0


class DiskWatch:
    """The watch over all writers. It belongs to the supervisor, which calls ``poll`` several times a second."""

    def __init__(self, stats: StatsSlab, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._slow = stats.counter("storage_faults", kind="slow")
        self._now_ns = now_ns
        self._writers: list[_Writer] = []

    def add(self, shard: int, slab: StatsSlab) -> None:
        """Watch the writer of ``shard``, which owns ``slab``."""
        self._writers.append(_Writer(shard, slab))

    def poll(self) -> None:
        """Check all stamps."""
        now_ns = self._now_ns()
        for writer in self._writers:
            entered_ns = writer.slab.cells[ENTERED_CELL]
            if writer.logged_ns and entered_ns != writer.logged_ns:
                waited_ms = (now_ns - writer.logged_ns) // _MS
                log.info("the disk answered the write-ahead log of shard %d after %d ms", writer.shard, waited_ms)
                writer.logged_ns = 0
            waited_ms = (now_ns - entered_ns) // _MS
            if not entered_ns or waited_ms < LIMIT_MS:
                continue
            if entered_ns != writer.counted_ns:
                writer.counted_ns = entered_ns
                self._slow.inc()
            if now_ns >= writer.quiet_until_ns:
                writer.logged_ns = entered_ns
                writer.quiet_until_ns = now_ns + AGAIN_MS * _MS
                log.warning(
                    "the disk has not written the write-ahead log of shard %d for %d ms; its producers wait",
                    writer.shard,
                    waited_ms,
                )
