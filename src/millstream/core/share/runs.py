"""The window of a share partition as runs: ranges of offsets that have everything in common.

The runs cover the window without holes and without overlaps, from its start to its end. They are split where a
change starts or ends, and neighbours that have become equal are joined again, so their number follows what differs
and not how many records there are. A change costs the runs that it touches, and a move of the list's tail.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import Final, NewType

from millstream.core.share.batches import Batch, RecordState
from millstream.model.quantities import Offset

_FIRST = attrgetter("first")

SessionToken = NewType("SessionToken", int)
"""Names one session of a member; no other session ever has it."""
NO_SESSION: Final = SessionToken(0)

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED


class Run:
    """The offsets ``first`` to ``last`` (inclusive).

    Invariants: only an acquired run has a member, a token and a deadline. Only an acquired run is pending, and then
    either waits for the next write (``in_write`` is False) or is part of the one in flight.
    """

    __slots__ = ("changed", "count", "deadline_us", "first", "in_write", "last", "member", "pending", "state", "token",
                 "whole")  # fmt: skip

    def __init__(self, first: Offset, last: Offset, state: RecordState, count: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        """Deliveries, the present one included."""
        self.member = ""
        self.token = NO_SESSION
        self.deadline_us = 0
        self.pending: RecordState | None = None
        """State after the write that an acknowledgement waits for."""
        self.changed = False
        """The next write has to report the run."""
        self.in_write = False
        """The write in flight reports the run."""
        self.whole = 0
        """Records of the last delivery before the run was delivered in parts; of one that was loaded, its size."""

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1

    @property
    def is_done(self) -> bool:
        """Whether the run is never delivered again, if the write that it waits for is done."""
        return (self.state if self.pending is None else self.pending).is_final

    def settle_as(self, state: RecordState) -> None:
        """The run gets a state, and no answer waits for its write."""
        self.lapse(state)
        self.changed, self.in_write = True, False

    def lapse(self, state: RecordState) -> None:
        """No member holds the run any longer."""
        self.state = state
        self.member, self.token, self.deadline_us, self.pending = "", NO_SESSION, 0, None
        if state.is_final:
            self.whole = 0

    def report(self) -> Batch | None:
        """The batch that a write stores for the run: its state once the write is done. None: nothing is stored.

        Acquiring a run is not stored, so an acquired run is stored as it was when it was last given back. One that was
        never given back is not stored.
        """
        if self.pending is not None:
            return Batch(self.first, self.last, self.pending, self.count)
        if self.state is not ACQUIRED:
            return Batch(self.first, self.last, self.state, self.count)
        return Batch(self.first, self.last, AVAILABLE, self.count - 1) if self.count > 1 else None

    def _kind(self) -> tuple[object, ...]:
        return (self.state, self.count, self.member, self.token, self.deadline_us, self.pending, self.changed,
                self.in_write, self.whole)  # fmt: skip

    def joins(self, other: "Run") -> bool:
        """Whether the run after this one has everything in common with it."""
        return self.last + 1 == other.first and self._kind() == other._kind()

    def tail(self, first: Offset) -> "Run":
        """Cut the run; the part from ``first`` on is returned."""
        other = Run(first, self.last, self.state, self.count)
        other.member, other.token, other.deadline_us = self.member, self.token, self.deadline_us
        other.pending, other.changed, other.in_write = self.pending, self.changed, self.in_write
        other.whole = self.whole
        self.last = Offset(first - 1)
        return other


class Runs:
    """The runs of a window.

    Invariant: ``start`` ≤ ``end``; the runs cover exactly [``start``, ``end``).
    """

    __slots__ = ("all", "end", "start")

    def __init__(self, start: Offset) -> None:
        self.start = start
        """First offset of the window (SPSO)."""
        self.end = start
        """End (exclusive) of what was ever acquired: Kafka's SPEO + 1."""
        self.all: list[Run] = []

    def append(self, last: Offset, state: RecordState, count: int = 0) -> None:
        """The window grows up to ``last`` (inclusive)."""
        self.all.append(Run(self.end, last, state, count))
        self.end = Offset(last + 1)

    def at(self, offset: Offset) -> int:
        """Index of the run that has ``offset``, which is in the window."""
        return bisect_right(self.all, offset, key=_FIRST) - 1

    def between(self, first: Offset, last: Offset) -> list[Run]:
        """The runs of exactly these offsets, which are in the window; those at the borders are split."""
        if first > last:
            return []
        begin = self._cut_at(first)
        return self.all[begin : self._cut_at(Offset(last + 1))]

    def touched(self, first: Offset, last: Offset) -> list[Run]:
        """The runs that have some of these offsets, which are in the window; nothing is split."""
        return self.all[self.at(first) : self.at(last) + 1] if first <= last else []

    def _cut_at(self, offset: Offset) -> int:
        """Index of the run that starts at ``offset``."""
        if offset >= self.end:
            return len(self.all)
        index = self.at(offset)
        run = self.all[index]
        if run.first == offset:
            return index
        self.all.insert(index + 1, run.tail(offset))
        return index + 1

    def join(self) -> None:
        """Join neighbours that have everything in common."""
        joined: list[Run] = []
        for run in self.all:
            if joined and joined[-1].joins(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self.all = joined

    def drop_before(self, start: Offset) -> None:
        """The window starts at ``start`` or later."""
        if start <= self.start:
            return
        if start >= self.end:
            self.all.clear()
            self.end = start
        else:
            del self.all[: self._cut_at(start)]
        self.start = start

    def pass_final(self) -> None:
        """Move the start over the records that are never delivered again."""
        start = self.start
        for run in self.all:
            if not run.state.is_final:
                break
            start = Offset(run.last + 1)
        self.drop_before(start)
