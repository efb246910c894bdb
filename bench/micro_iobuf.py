"""What memory costs: nanoseconds of CPU per operation on fragments and chains.

    .venv/bin/python bench/micro_iobuf.py

Best of five rounds each. "held" rows allocate into a window of live fragments, as a broker under load does, so that
free lists, several slabs and all size classes take part; the other rows hit the same fragment again and again.
"""

from __future__ import annotations

import random
import sys
import timeit
from typing import TYPE_CHECKING

from millstream.iobuf import ALLOC_TABLE, Arena, IoBuf, MemoryClass

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5


def cost_ns(operation: Callable[[], object], count: int) -> float:
    return min(timeit.repeat(operation, number=count, repeat=ROUNDS)) / count * 1e9


def held_window(arena: Arena, sizes: tuple[int, ...], live: int) -> Callable[[], object]:
    chooser = random.Random(1)
    window = [arena.allocate(chooser.choice(sizes)) for _ in range(live)]
    order = [(chooser.randrange(live), chooser.choice(sizes)) for _ in range(4096)]
    at = 0

    def replace() -> None:
        nonlocal at
        slot, size = order[at & 4095]
        at += 1
        window[slot].release()
        window[slot] = arena.allocate(size)

    return replace


def chain_of(arena: Arena, parts: int, size: int) -> IoBuf:
    buf = IoBuf()
    for _ in range(parts):
        buf.append(arena.allocate(size), 0, size)
    return buf


def main() -> None:
    arena = Arena.create(0, 512 << 20)
    fragment = arena.allocate(1000)
    eight = chain_of(arena, 8, 131072)
    one = chain_of(arena, 1, 131072)
    reader_input = chain_of(arena, 1, 512)
    reader = reader_input.reader

    def read_header() -> None:
        cursor = reader()
        cursor.int16()
        cursor.int16()
        cursor.int32()
        cursor.int16()

    rows: list[tuple[str, Callable[[], object]]] = [
        ("allocate + release, 1 KB", lambda: arena.allocate(1000).release()),
        ("allocate + release, 128 KiB", lambda: arena.allocate(131072).release()),
        ("allocate + release, 1 KB, held window of 2000", held_window(arena, (1000,), 2000)),
        ("allocate + release, all sizes, held window of 500", held_window(arena, ALLOC_TABLE, 500)),
        ("fragment: share + release", lambda: fragment.share().release()),
        ("chain: make, append, release (1 part)", lambda: chain_of(arena, 1, 1000).release()),
        ("chain of 8: views", eight.views),
        ("chain of 1: views", one.views),
        ("chain of 8: share 100 bytes + release", lambda: eight.share(1000, 100).release()),
        ("chain of 8: share 200 KB over 3 parts + release", lambda: eight.share(131000, 200_000).release()),
        ("chain of 8: copy 100 bytes", lambda: eight.copy(1000, 100)),
        ("reader: open and read 4 integers", read_header),
        (
            "reserve + unreserve",
            lambda: (arena.reserve(MemoryClass.RECEIVE, 1000), arena.unreserve(MemoryClass.RECEIVE, 1000)),
        ),
    ]
    empty_ns = cost_ns(lambda: None, 200_000)
    print(f"{'operation':<52} ns")
    for name, operation in rows:
        print(f"{name:<52} {cost_ns(operation, 50_000) - empty_ns:.0f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
