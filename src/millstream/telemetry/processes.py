"""CPU time and memory of every process of the broker, read from /proc when somebody asks.

One line per process and metric, labelled by what the process is (`shard-0`, `writer-0`, `supervisor`), so that "who
burns the core" is answered by the same page as everything else. Resident memory counts shared arena pages once per
process that touched them; the budget is judged by PSS, which is too slow to read at every scrape. A process that is
gone between two reads is left out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.telemetry.metrics import StatsSlab

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_lines(slabs: Sequence[StatsSlab]) -> list[str]:
    """Exposition lines for all processes whose slab has a pid."""
    cpu: list[str] = []
    memory: list[str] = []
    for slab in slabs:
        if not slab.pid:
            continue
        try:
            with open(f"/proc/{slab.pid}/stat", encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()  # from the state on, which is field 3
        except OSError:
            continue
        name = slab.role if slab.shard < 0 else f"{slab.role}-{slab.shard}"
        label = f'{{process="{name}"}}'
        cpu.append(f"millstream_process_cpu_seconds_total{label} {(int(fields[11]) + int(fields[12])) / _TICKS:.2f}")
        memory.append(f"millstream_process_resident_memory_bytes{label} {int(fields[21]) * _PAGE}")
    if not cpu:
        return []
    return [
        "# HELP millstream_process_cpu_seconds_total User and system time of each process.",
        "# TYPE millstream_process_cpu_seconds_total counter",
        *cpu,
        "# HELP millstream_process_resident_memory_bytes Resident memory of each process, shared pages included.",
        "# TYPE millstream_process_resident_memory_bytes gauge",
        *memory,
    ]
