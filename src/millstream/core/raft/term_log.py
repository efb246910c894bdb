"""The outline of one replica's log: terms by runs, control entries, and the members that follow from them.

It knows positions and terms, and no entry by itself, so a log of a billion records is a handful of runs. The shell has
the records; the outline says what they are.

::

    base            run of term 1        run of term 3       end
     │───────────────────────────────│────────────────────────│
     (40, 1)                        (57, 1)                  (92, 3)

Promises: a lookup costs the logarithm of the number of runs. A point outside the log is answered with None. Bad input
(a cut below the base, entries that do not start at the end) is a broken caller and fails an assertion.

Two logs that both have entries of one term have the same entries before it, and of that term one log has a prefix of
the other's (Log Matching, Ongaro's thesis, section 3.5). So the end of a run is a safe place to meet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from millstream.core.raft.messages import Configuration, ControlEntry, LogPoint, TermRun
from millstream.model.replication import RaftPosition, Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.core.raft.ready import Recovered


class TermLog:
    """Outline of a log from ``base`` to ``end``.

    Invariants: runs are contiguous from the base, their ends rise strictly, their terms rise strictly and are at least
    the base's term. ``configuration`` is that of the newest control entry that has one, else the base's.
    """

    __slots__ = ("_configurations", "_ends", "_terms", "base", "configuration", "controls", "end", "end_term")

    def __init__(self, recovered: Recovered) -> None:
        self.base: LogPoint = recovered.base
        """First point that a peer's append can start from."""
        self.end: RaftPosition = recovered.base.position
        self.end_term: Term = recovered.base.term
        """Term of the last entry."""
        self._ends: list[RaftPosition] = []
        self._terms: list[Term] = []
        self.controls: list[ControlEntry] = []
        """Control entries from the base on, by position."""
        self._configurations: list[tuple[RaftPosition, Configuration]] = [
            (recovered.base.position, recovered.configuration)
        ]
        """End of the entry and members in force from there on; the first is the base's."""
        self.configuration: Configuration = recovered.configuration
        self.append(recovered.runs, recovered.controls)

    @property
    def last(self) -> LogPoint:
        """The log's end with its term."""
        return LogPoint(self.end, self.end_term)

    @property
    def configured_at(self) -> RaftPosition:
        """End of the control entry that brought the configuration in force; the base if none did."""
        return self._configurations[-1][0]

    def term_at(self, position: RaftPosition) -> Term | None:
        """Term of the entry that ends at ``position``; None outside the log."""
        if position == self.end:
            return self.end_term
        if position == self.base.position:
            return self.base.term
        if not self.base.position < position < self.end:
            return None
        return self._terms[bisect_left(self._ends, position)]

    def has(self, point: LogPoint) -> bool:
        """Whether the log has an entry of this term that ends there."""
        return self.term_at(point.position) == point.term

    def newest_at_most(self, position: RaftPosition, term: Term) -> LogPoint | None:
        """The newest point at or below ``position`` whose term is at most ``term``; None if the log has none."""
        position = min(position, self.end)
        if position < self.base.position:
            return None
        runs = bisect_right(self._terms, term)
        if runs == 0:
            return self.base if self.base.term <= term else None
        end = min(self._ends[runs - 1], position)
        found = self.term_at(end)
        assert found is not None
        return LogPoint(end, found)

    def meeting_point(self, hint: LogPoint) -> LogPoint | None:
        """Leader: the newest point where a follower may match that has nothing like this log above ``hint``.

        It is the end of a run, or inside the run of the hint's term the hint itself: never inside a batch. None if the
        follower needs entries from before the base.
        """
        if hint.position < self.base.position:
            return None
        runs = bisect_right(self._terms, hint.term)
        if runs == 0:
            return self.base if self.base.term <= hint.term else None
        end, term = self._ends[runs - 1], self._terms[runs - 1]
        return LogPoint(min(end, hint.position), term) if term == hint.term else LogPoint(end, term)

    def agrees_until(self, start: RaftPosition, runs: Sequence[TermRun]) -> RaftPosition:
        """End of the entries from ``start`` on that the log has already: the first of ``runs`` that differs, or is new,
        starts there.
        """
        position = start
        for run in runs:
            while position < run.end_position:
                if position >= self.end:
                    return self.end
                index = bisect_right(self._ends, position)
                if self._terms[index] != run.term:
                    return position
                position = min(self._ends[index], run.end_position)
        return position

    def runs_between(self, start: RaftPosition, end: RaftPosition) -> tuple[TermRun, ...]:
        """Runs of the entries from ``start`` to ``end``, the last one cut at ``end``."""
        if end <= start:
            return ()
        assert self.base.position <= start and end <= self.end
        first = bisect_right(self._ends, start)
        last = bisect_left(self._ends, end)
        if first == last:
            return (TermRun(end, self._terms[last]),)
        whole = [TermRun(self._ends[index], self._terms[index]) for index in range(first, last)]
        return (*whole, TermRun(end, self._terms[last]))

    def controls_between(self, start: RaftPosition, end: RaftPosition) -> tuple[ControlEntry, ...]:
        """Control entries from ``start`` to ``end``."""
        controls = self.controls
        if not controls or controls[-1].position < start:
            return ()
        first = bisect_left(controls, start, key=_position)
        last = bisect_left(controls, end, key=_position)
        return tuple(controls[first:last])

    def configuration_at(self, position: RaftPosition) -> Configuration:
        """Members in force for a log that ends at ``position``, at or past the base."""
        assert position >= self.base.position
        return next(members for at, members in reversed(self._configurations) if at <= position)

    def extend(self, count: int, term: Term) -> None:
        """Append ``count`` records of ``term``."""
        end = RaftPosition(self.end + count)
        if self._ends and self.end_term == term:
            self._ends[-1] = end
        else:
            assert term >= self.end_term
            self._ends.append(end)
            self._terms.append(term)
        self.end = end
        self.end_term = term

    def append(self, runs: Sequence[TermRun], controls: Sequence[ControlEntry]) -> None:
        """Append entries at the end; ``controls`` are the control entries among them."""
        for run in runs:
            assert run.end_position > self.end
            self.extend(run.end_position - self.end, run.term)
        for entry in controls:
            self.controls.append(entry)
            if isinstance(entry.control, Configuration):
                self._configurations.append((RaftPosition(entry.position + 1), entry.control))
                self.configuration = entry.control

    def truncate(self, position: RaftPosition) -> None:
        """Cut the log back to ``position``, at or past the base. The members are those of before."""
        assert self.base.position <= position <= self.end
        kept = bisect_left(self._ends, position)
        if position == self.base.position:
            kept = -1
        del self._ends[kept + 1 :], self._terms[kept + 1 :]
        if self._ends:
            self._ends[-1] = position
        self.end = position
        self.end_term = self._terms[-1] if self._terms else self.base.term
        while self.controls and self.controls[-1].position >= position:
            self.controls.pop()
        while len(self._configurations) > 1 and self._configurations[-1][0] > position:
            self._configurations.pop()
        self.configuration = self._configurations[-1][1]

    def fold(self, position: RaftPosition) -> None:
        """Move the base up to ``position``: what lies before can no longer be sent entry by entry."""
        term = self.term_at(position)
        assert term is not None and position >= self.base.position
        members = self.configuration_at(position)
        gone = bisect_right(self._ends, position)
        del self._ends[:gone], self._terms[:gone]
        self.base = LogPoint(position, term)
        del self.controls[: bisect_left(self.controls, position, key=_position)]
        self._configurations = [(position, members), *(later for later in self._configurations if later[0] > position)]

    def reset(self, end: LogPoint, configuration: Configuration) -> None:
        """Forget the log: it starts and ends at ``end``."""
        self.base = end
        self.end, self.end_term = end.position, end.term
        self._ends, self._terms, self.controls = [], [], []
        self._configurations = [(end.position, configuration)]
        self.configuration = configuration


def _position(entry: ControlEntry) -> RaftPosition:
    return entry.position
