"""Facts about the node and each of its processes, looked up at each scrape.

Each metric of processes has one line per process (``shard-0``, ``writer-0``, ``supervisor``). Resident memory counts
shared arena pages once for each process that touched them. PSS would be right for the budget, but takes too long to
read at every scrape. A process that ends in between is left out.
"""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.telemetry.metrics import StatsSlab

STARTED_AT: Final = time.time()
"""Import time of this module, which the supervisor imports first."""


def node_samples(data_dir: str, version: str) -> dict[str, dict[str, float]]:
    """Values by metric name (of ``table.ASKED``) and label value."""
    found: dict[str, dict[str, float]] = {"start_time": {"": STARTED_AT}, "build_info": {version: 1}}
    try:
        space = os.statvfs(data_dir)
    except OSError:
        return found
    found["storage_free_bytes"] = {"": space.f_bavail * space.f_frsize}
    return found


_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_samples(slabs: Sequence[StatsSlab]) -> dict[str, dict[str, float]]:
    """Values by metric name (of ``table.ASKED``) and process, for all processes whose slab has a pid."""
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
