"""CPU time, memory and file descriptors of every process of the broker, read from /proc when somebody asks.

One line per process and metric, labelled by what the process is (`shard-0`, `writer-0`, `supervisor`), so that "who
burns the core" is answered by the same page as everything else. Resident memory counts shared arena pages once per
process that touched them; the budget is judged by PSS, which is too slow to read at every scrape. A process that is
gone between two reads is left out.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.telemetry.metrics import StatsSlab

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_samples(slabs: Sequence[StatsSlab]) -> dict[str, dict[str, float]]:
    """Name of a metric of `table.ASKED` → process → value, for all processes whose slab has a pid."""
    found: dict[str, dict[str, float]] = {}
    for slab in slabs:
        if not slab.pid:
            continue
        try:
            values = _samples(slab.pid)
        except OSError:
            continue
        process = slab.role if slab.shard < 0 else f"{slab.role}-{slab.shard}"
        for name, value in values.items():
            found.setdefault(name, {})[process] = value
    return found


def _samples(pid: int) -> dict[str, float]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()  # from the state on, which is field 3
    return {
        "process_cpu": (int(fields[11]) + int(fields[12])) / _TICKS,
        "process_resident_memory_bytes": int(fields[21]) * _PAGE,
        "process_open_files": len(os.listdir(f"/proc/{pid}/fd")),
        "process_open_files_limit": resource.prlimit(pid, resource.RLIMIT_NOFILE)[0],
    }
