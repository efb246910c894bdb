"""Ranges of offsets that a table holds: what a backfill has read, and what it still has to.

A range is half open, ``(start, end)``. The ranges of a partition are sorted, disjoint and not adjacent. Values only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from millstream.pipeline.state import Offsets

Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = dict[str, dict[str, list[Range]]]
"""By topic and partition, as text."""


class Bounds(msgspec.Struct, frozen=True):
    """One pass of a backfill over a sink: ``start`` and ``until`` of each partition, equal where nothing is read.
    ``hand_over`` is where the pipeline itself starts, and ``done`` what the table holds before the pass.
    """

    start: Offsets
    until: Offsets
    hand_over: Offsets
    done: Ranges


def united(ranges: Iterable[Range]) -> list[Range]:
    """The ranges of one partition, joined where they touch; empty ones are left out."""
    found: list[Range] = []
    for start, end in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def lacking(start: int, end: int, held: Sequence[Range]) -> list[Range]:
    """The parts of a range that are in none of these."""
    found: list[Range] = []
    for low, high in held:
        if low > start:
            found.append((start, min(low, end)))
        start = max(start, high)
    found.append((start, end))
    return [each for each in found if each[0] < each[1]]


def common(start: int, end: int, held: Sequence[Range]) -> list[Range]:
    """The parts of a range that are in one of these."""
    return [(max(start, low), min(end, high)) for low, high in held if max(start, low) < min(end, high)]


def after(done: Ranges, start: Offsets, ends: Mapping[str, Mapping[str, int]]) -> Ranges:
    """What a table holds once it has been read from ``start`` to ``ends``."""
    found = {topic: dict(partitions) for topic, partitions in done.items()}
    for topic, partitions in ends.items():
        for partition, end in partitions.items():
            held = found.setdefault(topic, {}).get(partition, [])
            joined = united([*held, (start.get(topic, {}).get(partition, end), end)])
            if joined:
                found[topic][partition] = joined
    return {topic: partitions for topic, partitions in found.items() if partitions}


def shown(topic: str, partition: str, start: int, end: int) -> str:
    """A range, for people."""
    return f"{topic}-{partition} from {start} to {end}"
