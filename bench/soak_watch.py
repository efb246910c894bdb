"""Looks at a broker every few seconds during a long run and says what it sees, in a process of its own.

    python -m bench.soak_watch      (started by ``soak``, see ``child``)

A line of JSON each time: memory (PSS), file descriptors and CPU of its process tree, what the machine's host withheld,
and from its metrics the arena's fragments, callbacks since the last line, and lines of its log by level. It ends when
its standard input does.
"""

import json
import os
import select
import sys
import time
from typing import Any

from bench import processes, stalls
from bench.child import instructions
from millstream.cli.exposition import Exposition, read_exposition

LEVELS = {
    "fragments": "millstream_memory_fragments",
    "arena_in_use_bytes": "millstream_memory_in_use_bytes",
    "arena_touched_bytes": "millstream_memory_slab_bytes",
    "wal_used_bytes": "millstream_wal_used_bytes",
    "log_size_bytes": "millstream_log_size_bytes",
    "connections": "millstream_net_connections",
}
COUNTS = {
    "checkpoints": "millstream_checkpoints_total",
    "segments_rolled": "millstream_segments_rolled_total",
    "segments_deleted": "millstream_segments_deleted_total",
}


def open_files(root: int) -> int:
    """File descriptors of the process tree."""
    total = 0
    for pid in processes.tree(root):
        try:
            total += len(os.listdir(f"/proc/{pid}/fd"))
        except FileNotFoundError:
            continue
    return total


def sample(pid: int, before: Exposition, now: Exposition) -> dict[str, Any]:
    """What is seen at this moment, and what happened since the last one."""
    levels = {name: now.value(metric) for name, metric in {**LEVELS, **COUNTS}.items()}
    lines = {f"log_{level}": now.value("millstream_log_lines_total", level=level) for level in ("warning", "error")}
    pauses = {"callbacks": stalls.between(before, now)}
    return {
        "at": time.perf_counter(),
        "pss_bytes": processes.pss_bytes(pid),
        "open_files": open_files(pid),
        "cpu_s": processes.cpu_seconds(pid),
        "stolen_s": processes.stolen_s(),
        **levels,
        **lines,
        **pauses,
    }


def main() -> int:
    given = instructions()
    before = read_exposition(given["metrics"], 10.0)
    due = time.monotonic()
    while True:
        due += given["every_s"]
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return 0
        now = read_exposition(given["metrics"], 10.0)
        print(json.dumps(sample(given["pid"], before, now)), flush=True)
        before = now


if __name__ == "__main__":
    sys.exit(main())
