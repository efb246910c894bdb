"""Synthetic traces of fetches, and a comparison of eviction policies on them.

``python -m millstream.testing.fetch_traces`` prints the table.

A trace is what reaches a warm cache: reads that the log cache in memory no longer serves. Consumer groups follow the
producers, each at its own lag. Once a minute, a group seeks back half a minute in some partitions, as after a
rebalance. For a while, one reader scans old data. The same seed gives the same trace.
"""

from __future__ import annotations

import heapq
import random
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.core.eviction import POLICIES, Block, BlockKey, PartitionKey, ReaderId, make_policy
from millstream.model.quantities import Offset, TimestampMs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

AGE_MAX_MS = 600_000
_SCAN_READER = ReaderId(1 << 20)
_NEVER: Final = 1 << 62


class Read(msgspec.Struct, frozen=True):
    """One block that a reader needs."""

    at_ms: TimestampMs
    reader: ReaderId
    block: Block
    counts: bool
    """False for the scan, which no cache should serve."""

    goes_on_at: Offset | None
    """Where the reader continues, as the policy is told; None if another entry of the trace says it."""

    is_read: bool = True
    """False for an entry that only says where the reader continues."""


class Shape(msgspec.Struct, frozen=True):
    """What a trace is made of. Rates are in blocks."""

    name: str
    lags_s: tuple[int, ...]
    partitions: int = 16
    blocks_per_second: float = 8.0
    seconds: int = 1200
    memory_s: int = 10
    """Younger reads are served by the log cache."""

    rewinds: bool = True
    scan: bool = True


SHAPES = (
    Shape("15/30/120 s, rewinds, scan", (15, 30, 120)),
    Shape("15/120/400 s, rewinds, scan", (15, 120, 400)),
    Shape("15/120/400 s", (15, 120, 400), rewinds=False, scan=False),
    Shape("90/100/130 s, scan", (90, 100, 130), rewinds=False),
)


def trace(shape: Shape, seed: int) -> list[Read]:
    """The reads of a shape in the order of time."""
    rng = random.Random(seed)
    interval_s = shape.partitions / shape.blocks_per_second
    starts = [rng.random() * interval_s for _ in range(shape.partitions)]
    timed: list[tuple[float, int, Read]] = []

    def read(at_s: float, reader: int, partition: int, number: int, *, counts: bool = True) -> None:
        born_s = starts[partition] + (number + 1) * interval_s if counts else -10_000.0
        if at_s >= shape.seconds or (counts and at_s - born_s < shape.memory_s):
            return
        key = BlockKey(PartitionKey(partition if counts else -1), Offset(number))
        block = Block(key, TimestampMs(int(born_s * 1000)))
        at_ms = TimestampMs(int(at_s * 1000))
        timed.append((at_s, len(timed), Read(at_ms, ReaderId(reader), block, counts, Offset(number + 1))))

    for partition in range(shape.partitions):
        for number in range(int(shape.seconds / interval_s)):
            born_s = starts[partition] + (number + 1) * interval_s
            for group, lag_s in enumerate(shape.lags_s):
                read(born_s + lag_s, group, partition, number)
    for minute in range(1, shape.seconds // 60) if shape.rewinds else ():
        group = rng.randrange(len(shape.lags_s))
        place_s = minute * 60 - shape.lags_s[group]
        for partition in rng.sample(range(shape.partitions), max(1, shape.partitions // 8)):
            numbers = range(max(0, int((place_s - 30) / interval_s)), max(0, int(place_s / interval_s)))
            for step, number in enumerate(numbers):
                read(minute * 60 + 0.1 * step, group, partition, number)
    if shape.scan:
        for number in range(int(shape.seconds / 3 * shape.blocks_per_second * 3)):
            at_s = shape.seconds / 3 + number / (shape.blocks_per_second * 3)
            read(at_s, _SCAN_READER, 0, number, counts=False)
    timed.sort(key=lambda entry: entry[:2])
    return [entry[2] for entry in timed]


def recorded(lines: Iterable[str]) -> list[Read]:
    """The reads of a recorded trace (`bench.trace_reads`) in the order of time."""
    reads: list[Read] = []
    for line in lines:
        kind, *fields = line.split()
        at_ms, reader, partition, offset, newest_ms = map(int, fields)
        block = Block(BlockKey(PartitionKey(partition), Offset(offset)), TimestampMs(newest_ms))
        is_read = kind == "read"
        goes_on_at = None if is_read else Offset(offset)
        reads.append(Read(TimestampMs(at_ms), ReaderId(reader), block, is_read, goes_on_at, is_read))
    return sorted(reads, key=lambda read: read.at_ms)


def hit_rate(name: str, reads: Sequence[Read], slots_max: int) -> float:
    """Share of the counted reads that a cache with this policy serves, filled by misses."""
    policy = make_policy(name, slots_max, AGE_MAX_MS)
    cached: set[BlockKey] = set()
    missed: dict[ReaderId, list[Block]] = {}  # offered when the reader has continued
    hits = counted = 0
    swept_ms = 0
    for read in reads:
        key = read.block.key
        if read.at_ms - swept_ms >= 1000:
            swept_ms = read.at_ms
            cached.difference_update(policy.expire(read.at_ms))
        if read.is_read:
            hit = key in cached
            counted += read.counts
            hits += hit and read.counts
            if hit:
                policy.used(key)
            else:
                missed.setdefault(read.reader, []).append(read.block)
        if read.goes_on_at is None:
            continue
        policy.reader_at(key.partition, read.reader, read.goes_on_at, read.block.appended_ms, read.at_ms)
        for block in missed.pop(read.reader, ()):
            admission = policy.offer(block, read.at_ms)
            cached.difference_update(admission.victims)
            if admission.admitted:
                cached.add(block.key)
        assert len(cached) == len(policy) <= slots_max, "the policy and the cache hold the same blocks"
    return hits / counted


def optimal_hits(reads: Sequence[Hashable], slots_max: int) -> list[bool]:
    """Whether each read of the sequence is a hit in the best cache of ``slots_max`` slots.

    Belady's rule (1966): the block leaves whose next use is farthest. A block without a later use is not admitted.
    """
    next_uses = [_NEVER] * len(reads)
    last: dict[Hashable, int] = {}
    for index in range(len(reads) - 1, -1, -1):
        next_uses[index] = last.get(reads[index], _NEVER)
        last[reads[index]] = index
    hits: list[bool] = []
    cached: dict[Hashable, int] = {}
    farthest: list[tuple[int, int]] = []  # negated next use, and the index of the read that put it there
    for index, key in enumerate(reads):
        hits.append(key in cached)
        cached.pop(key, None)
        if next_uses[index] == _NEVER:
            continue
        cached[key] = next_uses[index]
        heapq.heappush(farthest, (-next_uses[index], index))
        while len(cached) > slots_max:
            negated, at = heapq.heappop(farthest)
            if cached.get(reads[at]) == -negated:
                del cached[reads[at]]
    return hits


def optimal_rate(reads: Sequence[Read], slots_max: int) -> float:
    """Share of the counted reads that the offline optimum serves."""
    reads = [read for read in reads if read.is_read]
    hits = optimal_hits([read.block.key for read in reads], slots_max)
    counted = [hit for hit, read in zip(hits, reads, strict=True) if read.counts]
    return sum(counted) / len(counted)


def main() -> None:
    """Print the table of hit rates."""
    out = sys.stdout.write
    out(f"{'reads':28} {'slots':>6}  " + "".join(f"{name:>10}" for name in POLICIES) + f"{'optimum':>10}\n")
    for shape in SHAPES:
        reads = trace(shape, 1)
        for slots_max in (200, 400, 800, 1600):
            rates = [hit_rate(name, reads, slots_max) for name in POLICIES] + [optimal_rate(reads, slots_max)]
            out(f"{shape.name:28} {slots_max:>6}  " + "".join(f"{rate:>9.1%} " for rate in rates) + "\n")


if __name__ == "__main__":
    main()
