"""Majorities of a configuration, joint ones included. Learners and strangers never count.

Source: joint consensus, Ongaro's thesis, section 4.3.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millstream.core.raft.messages import Configuration
    from millstream.model.replication import ReplicaId


class Outcome(Enum):
    """State of an election."""

    PENDING = 0
    WON = 1
    LOST = 2


def reached(configuration: Configuration, value_of: Callable[[ReplicaId], int]) -> int:
    """The largest value that a majority of the voters has reached; 0 if there are no voters.

    In a joint configuration both majorities must have reached it.
    """
    value = _majority(configuration.voters, value_of)
    return min(value, _majority(configuration.outgoing, value_of)) if configuration.outgoing else value


def tally(configuration: Configuration, votes: Mapping[ReplicaId, bool]) -> Outcome:
    """Outcome of an election; ``votes`` has each replica's answer once, true if granted."""
    outcome = _count(configuration.voters, votes)
    if not configuration.outgoing or outcome is Outcome.LOST:
        return outcome
    other = _count(configuration.outgoing, votes)
    return outcome if other is Outcome.WON else other


def is_voter(configuration: Configuration, replica: ReplicaId) -> bool:
    """Whether the replica's vote and its disk count."""
    return replica in configuration.voters or replica in configuration.outgoing


def members(configuration: Configuration) -> tuple[ReplicaId, ...]:
    """Every member once: voters in order of preference, then outgoing ones, then learners."""
    return tuple(dict.fromkeys((*configuration.voters, *configuration.outgoing, *configuration.learners)))


def _majority(voters: tuple[ReplicaId, ...], value_of: Callable[[ReplicaId], int]) -> int:
    if not voters:
        return 0
    values = sorted([value_of(voter) for voter in voters], reverse=True)
    return values[len(voters) // 2]


def _count(voters: tuple[ReplicaId, ...], votes: Mapping[ReplicaId, bool]) -> Outcome:
    needed = len(voters) // 2 + 1
    granted = sum(votes.get(voter, False) for voter in voters)
    if granted >= needed:
        return Outcome.WON
    refused = sum(not votes.get(voter, True) for voter in voters)
    return Outcome.LOST if refused > len(voters) - needed else Outcome.PENDING
