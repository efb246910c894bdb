"""The control entries of a log, and with them the Raft position of everything in it.

A control entry takes one Raft position and no Kafka offset. So the position of a batch is its offset plus the number of
control entries before it, and two entries at one offset differ in position. Entries that are applied fold into a base,
which keeps what they came to. All ends are exclusive. Pure bookkeeping: ``Log.append_control`` makes an entry durable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from millstream.format.epochs import RaftBase, StoredControl
from millstream.model.quantities import Offset
from millstream.model.replication import RaftPosition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.model.replication import Term


class ControlEntries:
    """Control entries of one log from its base on. Positions before the base can't be asked for.

    Invariant: ``entries[n].position == base.position + (entries[n].offset - base.offset) + n``.
    """

    __slots__ = ("base", "entries", "shift")

    def __init__(self, base: RaftBase, entries: Sequence[StoredControl]) -> None:
        self.base = base
        self.entries = list(entries)
        """In order of position."""
        self.shift = self._shift()
        """Raft position minus offset, at the end of the log."""

    def _shift(self) -> int:
        return self.base.position - self.base.offset + len(self.entries)

    def position_of(self, offset: Offset) -> RaftPosition:
        """Raft position of the batch that starts at ``offset``, at or after the base."""
        before = bisect_right(self.entries, offset, key=_offset)
        return RaftPosition(offset + self.base.position - self.base.offset + before)

    def position_before(self, offset: Offset) -> RaftPosition:
        """Raft position at the end of the batch before ``offset``: in front of the control entries that stand there."""
        before = bisect_left(self.entries, offset, key=_offset)
        return RaftPosition(offset + self.base.position - self.base.offset + before)

    def offset_at(self, position: RaftPosition) -> Offset:
        """Offset at which an end ``position`` lies, at or after the base; ``position`` is no inner one of a batch."""
        before = bisect_left(self.entries, position, key=_position)
        return Offset(self.base.offset + (position - self.base.position) - before)

    def add(self, offset: Offset, term: Term, payload: bytes) -> StoredControl:
        """Enter a control entry at the end of the log, which is ``offset``."""
        entry = StoredControl(RaftPosition(offset + self.shift), offset, term, payload)
        self.entries.append(entry)
        self.shift += 1
        return entry

    def cut(self, position: RaftPosition) -> None:
        """The log ends at ``position`` now."""
        if position < self.base.position:
            raise AssertionError(f"cut to position {position}, the base is at {self.base.position}")
        del self.entries[bisect_left(self.entries, position, key=_position) :]
        self.shift = self._shift()

    def before(self, position: RaftPosition) -> tuple[StoredControl, ...]:
        """The entries that end at or before ``position``."""
        return tuple(self.entries[: bisect_left(self.entries, position, key=_position)])

    def between(self, start: RaftPosition, end: RaftPosition) -> tuple[StoredControl, ...]:
        """The entries from ``start`` on that end at or before ``end``."""
        first = bisect_left(self.entries, start, key=_position)
        return tuple(self.entries[first : bisect_left(self.entries, end, key=_position)])

    def ending_at(self, position: RaftPosition) -> StoredControl | None:
        """The control entry that ends at ``position``; None if a batch does, or nothing."""
        place = bisect_left(self.entries, position, key=_position) - 1
        found = self.entries[place] if place >= 0 else None
        return found if found is not None and found.position == position - 1 else None

    def fold(self, position: RaftPosition, term: Term, payload: bytes) -> None:
        """Move the base to ``position``, the end of an entry of ``term``; ``payload`` is what the entries before came
        to.
        """
        base = RaftBase(self.offset_at(position), position, term, payload)
        del self.entries[: bisect_left(self.entries, position, key=_position)]
        self.base = base
        self.shift = self._shift()


def _offset(entry: StoredControl) -> Offset:
    return entry.offset


def _position(entry: StoredControl) -> RaftPosition:
    return entry.position
