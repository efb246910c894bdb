"""What a log that has just been opened holds for its Raft core: base, terms, control entries, vote.

All of it is durable. A log whose durable part is damaged does not open, so there is no word of damage here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from millstream.format.epochs import StoredControl, StoredVote
from millstream.model.replication import NO_REPLICA, LogPoint, RaftPosition, Term, TermRun
from millstream.storage.log.entry_reads import first_position

if TYPE_CHECKING:
    from millstream.storage.log.open_log import OpenLog


class RecoveredLog(NamedTuple):
    """What a Raft core is built from; positions are exclusive ends."""

    base: LogPoint
    """Start of the entries that can be sent one by one. Everything before is committed."""
    folded_payload: bytes
    """The replication layer's own words for what the control entries came to that are folded; empty if none are."""
    controls_before: tuple[StoredControl, ...]
    """Control entries that are not folded yet and stand before ``base``, in order: they belong to the state at it."""
    runs: tuple[TermRun, ...]
    """Terms of the entries from ``base`` to the log's end, in order; neighbours differ."""
    controls: tuple[StoredControl, ...]
    """Control entries from ``base`` to the log's end, in order."""
    vote: StoredVote
    """Term and vote. The term is at least that of every entry."""


def recovered(log: OpenLog) -> RecoveredLog:
    """What ``log`` holds; called before anything is written to it."""
    controls = log.raft.controls
    base = first_position(log)
    runs = term_runs(log, base, log.next_raft_position)
    base_term = Term(max(0, log.raft.term_before(base)))
    newest = Term(max(base_term, log.raft.epoch))
    vote = log.raft.vote if log.raft.vote.term >= newest else StoredVote(newest, NO_REPLICA)
    return RecoveredLog(
        LogPoint(base, base_term),
        controls.base.payload,
        controls.before(base),
        runs,
        controls.between(base, log.next_raft_position),
        vote,
    )


def term_runs(log: OpenLog, start: RaftPosition, end: RaftPosition) -> tuple[TermRun, ...]:
    """Terms of the entries from ``start`` to ``end``, in order; neighbours differ."""
    begins = [(start, Term(max(0, log.raft.term_before(start))))]
    begins += [(position, term) for term, position in _term_starts(log) if start <= position < end]
    runs: list[TermRun] = []
    for (begin, term), (following, _) in pairwise([*begins, (end, Term(0))]):
        if following > begin:
            runs.append(TermRun(following, term))
    return tuple(runs)


def _term_starts(log: OpenLog) -> list[tuple[Term, RaftPosition]]:
    """Each term that has entries after the base, and where they start."""
    controls = log.raft.controls
    first_controls: dict[Term, RaftPosition] = {}
    for one in controls.entries:
        first_controls.setdefault(one.term, one.position)
    starts: list[tuple[Term, RaftPosition]] = []
    for term, offset in log.raft.epochs:
        if offset < controls.base.offset or term <= controls.base.term:
            continue
        position = controls.position_of(offset)
        starts.append((term, min(position, first_controls.get(term, position))))
    return starts
