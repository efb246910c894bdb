"""Bugs planted in the shell of a Raft group and in its log, each found within a number of histories.

A bug replaces a function while it is planted; production code knows nothing of it. The bugs of the core itself are in
`planted`. ``python -m millstream.testing.sim --brokers --planted`` shows the table.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from millstream.raft.replicated import ReplicatedGroup
from millstream.raft.writes import Writes
from millstream.storage.log.log import Log
from millstream.testing.sim.brokers_history import Counts, play

if TYPE_CHECKING:
    from millstream.model.replication import RaftPosition, Term
    from millstream.storage.log.entries import SentEntries
    from millstream.testing.sim.brokers_history import Finding


class PlantedBug(NamedTuple):
    """One bug: the functions named are others while it is planted."""

    name: str
    replaced: tuple[tuple[object, str, Any], ...]
    """Owner, attribute, and what stands there instead."""
    histories: int
    """Within so many it is found."""


class Hunt(NamedTuple):
    """What came of looking for a bug."""

    bug: PlantedBug
    finding: Finding | None
    counts: Counts


def hunt(bug: PlantedBug, first_seed: int = 0) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up."""
    counts = Counts()
    with ExitStack() as planted:
        for owner, attribute, replacement in bug.replaced:
            planted.enter_context(patch.object(owner, attribute, replacement))
        for seed in range(first_seed, first_seed + bug.histories):
            finding = play(seed, counts)
            if finding is not None:
                return Hunt(bug, finding, counts)
    return Hunt(bug, None, counts)


_append_entries = Log.append_entries


def _reported_when_written(self: Log, sent: SentEntries, term: Term) -> None:
    _append_entries(self, sent, term)
    if self.on_persisted is not None:
        self.on_persisted(self.next_raft_position, term)


def _unannounced(self: ReplicatedGroup) -> None:
    self._led_term = None
    self._announced_serving = False


def _end_with_what_waits(self: Writes) -> RaftPosition:
    waiting = self._waiting
    return waiting[-1].write.end if waiting else self._log.next_raft_position


PLANTED = (
    PlantedBug("a write is reported when it is written", ((Log, "append_entries", _reported_when_written),), 40),
    PlantedBug("a lost leadership is not announced", ((ReplicatedGroup, "_resign", _unannounced),), 20),
    PlantedBug("an end is announced before it is written", ((Writes, "log_end", property(_end_with_what_waits)),), 20),
)
