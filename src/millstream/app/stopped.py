"""Detects processes of the broker that are stopped, by SIGSTOP or by a debugger.

A stopped writer holds up the producers of its shard, a stopped worker its checkpoints and reads of older data, a
stopped cleaner compaction, a stopped archive process reads of archived data, a stopped upload process uploads. Nothing
is lost, and everything continues after SIGCONT, but nothing else would explain the wait. The supervisor therefore
checks ``/proc`` once a second and logs a line when a stop starts and one when it is over. A stopped supervisor logs
nothing.
"""

import time
from collections.abc import Callable
from typing import Final

from millstream.telemetry.log import log
from millstream.telemetry.metrics import StatsSlab

INTERVAL_MS: Final = 1_000
_MS: Final = 1_000_000

_WAITS: Final = {
    "shard": "everything of its partitions waits",
    "writer": "producers of its shard wait",
    "worker": "checkpoints, deletions and reads of older data wait",
    "cleaner": "compaction waits",
    "archive": "reads of archived data, manifests and shared topics wait",
    "upload": "uploads of closed segments wait",
}


def state_of(pid: int) -> str:
    """The kernel's letter for a process state; empty if the process has exited."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class StopWatch:
    """The watch over all processes. It belongs to the supervisor, which calls ``poll`` several times a second."""

    def __init__(
        self, now_ns: Callable[[], int] = time.perf_counter_ns, state_of: Callable[[int], str] = state_of
    ) -> None:
        self._now_ns = now_ns
        self._state_of = state_of
        self._slabs: list[StatsSlab] = []
        self._stopped: dict[int, int] = {}  # since when, by pid
        self._due_ns = 0

    def add(self, slab: StatsSlab) -> None:
        """Watch the process of this slab, once it has started."""
        self._slabs.append(slab)

    def poll(self) -> None:
        """Look at all of them, if it is time."""
        now_ns = self._now_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + INTERVAL_MS * _MS
        for slab in self._slabs:
            pid = slab.pid
            try:
                stopped = bool(pid) and self._state_of(pid) in ("T", "t")
            except OSError:
                return  # no descriptor is free, or no memory: their states are unknown until the next check
            if stopped and pid not in self._stopped:
                self._stopped[pid] = now_ns
                waits = _WAITS.get(slab.role, "what it does waits")
                log.warning(
                    "%s %d (pid %d) was stopped by a signal: %s; kill -CONT %d lets it continue",
                    slab.role,
                    slab.shard,
                    pid,
                    waits,
                    pid,
                )
            elif not stopped and pid in self._stopped:
                stood_ms = (now_ns - self._stopped.pop(pid)) // _MS
                log.info("%s %d continues after it was stopped for %d ms", slab.role, slab.shard, stood_ms)
