"""Checksums of the runs of segments, made from the bytes while these are written.

A run is what lies between two entries of a segment's index: whole batches, each of which was checked when it was
appended. Its CRC-32C goes into the index, and a reader of the run compares the bytes in memory with it: no look at
each batch is needed.

A run's checksum is known only if every byte of it was written here, one after the other. After a start, a cut, a failed
write or a write to another place it is not (``NO_SUM``), from there up to the next entry; a reader checks the batches
of such a run. Used by the thread that writes, cuts and removes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from millstream.format.index import NO_SUM, RunSum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.model.quantities import FilePosition

_OPEN_MAX: Final = 10_000


class OpenRun(NamedTuple):
    """A run that has not ended."""

    position: int
    """Where the next byte of it goes."""

    crc: int
    """CRC-32C of its bytes so far."""

    whole: bool
    """All bytes of it passed here."""


_UNKNOWN: Final = OpenRun(-1, 0, whole=False)


class RunSums:
    """The open runs of a shard's segments."""

    def __init__(self, arena: memoryview) -> None:
        self._arena = arena
        self._open: OrderedDict[str, OpenRun] = OrderedDict()

    def take(self, path: str) -> OpenRun:
        """Take the open run of a segment file out, before the file changes."""
        return self._open.pop(path, _UNKNOWN)

    def written(
        self, path: str, run: OpenRun, position: FilePosition, spans: Sequence[int], marks: Sequence[int]
    ) -> list[RunSum]:
        """The bytes of ``spans`` (start, end, start, end, … in the arena) were written at ``position``, after ``run``.

        Returns the checksum of the run that ends at each of ``marks`` (rising positions of index entries), or
        ``NO_SUM``.
        """
        whole = run.whole and run.position == position
        crc, at = run.crc if whole else 0, position
        sums: list[RunSum] = []
        ends = iter(spans)
        for start, end in zip(ends, ends, strict=True):
            while start < end:
                while len(sums) < len(marks) and marks[len(sums)] <= at:
                    exact = marks[len(sums)] == at
                    sums.append(RunSum(crc) if whole and exact else NO_SUM)
                    crc, whole = 0, exact
                upto = end if len(sums) == len(marks) else min(end, start + marks[len(sums)] - at)
                crc = crc32c(self._arena[start:upto], crc)
                at += upto - start
                start = upto
        sums += [NO_SUM] * (len(marks) - len(sums))
        self._open[path] = OpenRun(at, crc, whole)
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)
        return sums
