"""The content of one log in the simulated world: units, each a batch of records or one control entry.

A unit carries a *chain*: a number that stands for it and for everything before it, so that two logs are equal up to a
position exactly if their chains there are. Units are shared between logs and never changed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from millstream.core.raft.messages import Configuration, LogPoint, TermRun
from millstream.model.replication import RaftPosition, Term

if TYPE_CHECKING:
    from millstream.core.raft.messages import Control

EMPTY_CHAIN = 17


class Unit(NamedTuple):
    """A batch of records, or a control entry."""

    start: int
    end: int
    term: int
    value: int
    """Number of the client's operation; for a control entry a sum of its content."""
    control: Control | None
    chain: int


def make_unit(chain_before: int, start: int, end: int, term: int, value: int, control: Control | None = None) -> Unit:
    """A unit behind a log with ``chain_before``."""
    if control is not None:
        value = zlib.crc32(repr(control).encode())
    return Unit(start, end, term, value, control, hash((chain_before, start, end, term, value)))


class LogImage:
    """One log: what lies before the base is known by its chain alone."""

    __slots__ = ("base", "base_chain", "base_configuration", "starts", "units")

    def __init__(self, configuration: Configuration) -> None:
        self.base = LogPoint(RaftPosition(0), Term(0))
        self.base_chain = EMPTY_CHAIN
        self.base_configuration = configuration
        self.units: list[Unit] = []
        self.starts: list[int] = []

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.units[-1].end if self.units else self.base.position

    @property
    def end_chain(self) -> int:
        """Chain at the end."""
        return self.units[-1].chain if self.units else self.base_chain

    def chain_at(self, position: int) -> int | None:
        """Chain at a position between two units; None if there is none, or it lies before the base."""
        if position == self.base.position:
            return self.base_chain
        index = bisect_left(self.starts, position) - 1
        return self.units[index].chain if index >= 0 and self.units[index].end == position else None

    def units_from(self, start: int, end: int) -> list[Unit]:
        """Units from ``start`` to ``end``, which lie between two units each."""
        return self.units[bisect_left(self.starts, start) : bisect_left(self.starts, end)]

    def append(self, unit: Unit) -> None:
        assert unit.start == self.end, f"a unit at {unit.start} behind a log that ends at {self.end}"
        self.units.append(unit)
        self.starts.append(unit.start)

    def truncate(self, position: int) -> list[Unit]:
        """Cut back; returns what was cut off."""
        index = bisect_left(self.starts, position)
        gone = self.units[index:]
        del self.units[index:], self.starts[index:]
        assert self.end == position, f"a cut to {position} inside a unit"
        return gone

    def fold(self, position: int) -> None:
        """Move the base up."""
        chain = self.chain_at(position)
        assert chain is not None
        index = bisect_left(self.starts, position)
        for unit in self.units[:index]:
            if isinstance(unit.control, Configuration):
                self.base_configuration = unit.control
        if index:
            self.base = LogPoint(RaftPosition(position), Term(self.units[index - 1].term))
        self.base_chain = chain
        del self.units[:index], self.starts[:index]

    def reset(self, base: LogPoint, chain: int, configuration: Configuration) -> None:
        """Start over at ``base``."""
        self.base, self.base_chain, self.base_configuration = base, chain, configuration
        self.units, self.starts = [], []

    def runs(self) -> tuple[TermRun, ...]:
        """Terms of the units."""
        runs: list[TermRun] = []
        for unit in self.units:
            if runs and runs[-1].term == unit.term:
                runs.pop()
            runs.append(TermRun(RaftPosition(unit.end), Term(unit.term)))
        return tuple(runs)
