"""Records what reaches the warm cache (``internal.shard.hook=bench.trace_reads:install``, ``MILLSTREAM_TRACE=FILE``).

One line for each block that a reader needs and that is not in memory: ``read``, time in ms, reader, partition, base
offset, time of the block's newest record. One line for each place where a reader goes on, whoever served it: ``at``,
time in ms, reader, partition, offset, time of the newest record before it (of its block, if the reader stopped within
one). ``millstream.testing.fetch_traces`` replays it.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, insort
from typing import Any

from bench import slow_store
from millstream.tiers.readers import Readers
from millstream.tiers.reading import ArchiveReader

_MEMORY_BYTES = 1 << 20
"""So that nearly every block that is read is read from below."""


def install(node: object) -> None:
    """Record in the archive process, which is forked later, and have a slow store."""
    slow_store.install(node)
    path = os.environ["MILLSTREAM_TRACE"]
    defaults = ArchiveReader.__init__.__defaults__
    assert defaults is not None
    ArchiveReader.__init__.__defaults__ = (_MEMORY_BYTES, *defaults[1:])
    here = threading.local()
    blocks: dict[int, list[tuple[int, int]]] = {}  # (base offset, time of the newest record), by partition
    lock = threading.Lock()
    fetch: Any = ArchiveReader._fetch  # pyright: ignore[reportPrivateUsage]
    moved = Readers.moved

    def fetched(self: Any, owner: Any, segment: Any, located: Any, number: int, ahead_bytes: int) -> Any:
        block = located.segment_index.blocks[number]
        line = (owner.partition_index, block.base_offset, block.max_timestamp)
        with lock:
            known = blocks.setdefault(owner.partition_index, [])
            if line[1:] not in known:
                insort(known, line[1:])
        here.lines = [*getattr(here, "lines", []), (time.time_ns() // 1_000_000, *line)]
        return fetch(self, owner, segment, located, number, ahead_bytes)

    def noted(self: Any, owner: Any, before: Any, now: Any, bytes_per_offset: float) -> Any:
        reader = moved(self, owner, before, now, bytes_per_offset)
        lines, here.lines = getattr(here, "lines", []), []
        with lock, open(path, "a", encoding="ascii") as file:
            file.writelines(f"read {at} {reader} {index} {base} {newest}\n" for at, index, base, newest in lines)
            known = blocks.get(owner.partition_index, [])
            if place := bisect_left(known, (now, 0)):
                at = time.time_ns() // 1_000_000
                file.write(f"at {at} {reader} {owner.partition_index} {now} {known[place - 1][1]}\n")
        return reader

    ArchiveReader._fetch = fetched  # pyright: ignore[reportPrivateUsage]
    Readers.moved = noted
