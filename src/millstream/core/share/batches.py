"""States of ranges of offsets as they are stored (KIP-932), and how reports of them are merged.

Reports may come twice or late, and each covers only what changed. Of two reports about one offset the one with the
higher delivery count holds, and of two with the same count the one with the higher state: a record's count never
shrinks, and within one delivery its state only grows. So merging the same reports in any order gives the same state,
except that a start that has moved on never moves back.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import attrgetter

import msgspec

from millstream.model.quantities import Offset


class RecordState(IntEnum):
    """State of a record. The numbers are Kafka's; 3 is reserved."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the record is never delivered again."""
        return self >= RecordState.ACKNOWLEDGED


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The offsets ``first`` to ``last`` (inclusive) with one state and one delivery count."""

    first: Offset
    last: Offset
    state: RecordState
    count: int


_LAST = attrgetter("last")


def merge(stored: Sequence[Batch], reported: Iterable[Batch], start: Offset) -> list[Batch]:
    """The state after a report. Both, and the result, are by first offset; ``stored`` has no overlaps, and what lies
    below ``start`` is cut off.
    """
    merged = list(stored)
    for batch in reported:
        if batch.last >= start:
            _merge_one(merged, batch)
    return _from(merged, start)


def _merge_one(merged: list[Batch], new: Batch) -> None:
    """Put one reported batch into a list without overlaps."""
    begin = end = bisect_left(merged, new.first, key=_LAST)
    pieces: list[Batch] = []
    position = new.first
    while end < len(merged) and merged[end].first <= new.last:
        old = merged[end]
        end += 1
        if old.first < new.first:
            pieces.append(_cut(old, old.first, Offset(new.first - 1)))
        if old.first > position:
            pieces.append(_cut(new, position, Offset(old.first - 1)))
        both_first, both_last = max(old.first, new.first), min(old.last, new.last)
        newer = (new.count, new.state) > (old.count, old.state)
        pieces.append(_cut(new if newer else old, both_first, both_last))
        if old.last > new.last:
            pieces.append(_cut(old, Offset(new.last + 1), old.last))
        position = Offset(both_last + 1)
    if position <= new.last:
        pieces.append(_cut(new, position, new.last))
    before, after = max(begin - 1, 0), end + 1
    merged[before:after] = _joined([*merged[before:begin], *pieces, *merged[end:after]])


def _cut(batch: Batch, first: Offset, last: Offset) -> Batch:
    return Batch(first, last, batch.state, batch.count)


def _joined(batches: Iterable[Batch]) -> list[Batch]:
    """Neighbours of one state and count as one batch."""
    joined: list[Batch] = []
    for batch in batches:
        if joined:
            last = joined[-1]
            if last.last + 1 == batch.first and (last.state, last.count) == (batch.state, batch.count):
                joined[-1] = _cut(last, last.first, batch.last)
                continue
        joined.append(batch)
    return joined


def _from(batches: list[Batch], start: Offset) -> list[Batch]:
    """The part from ``start`` on."""
    kept = batches[bisect_left(batches, start, key=_LAST) :]
    if kept and kept[0].first < start:
        kept[0] = _cut(kept[0], start, kept[0].last)
    return kept
