"""A leader's own entries: the only place that gives an entry its position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.messages import ControlEntry, TermRun
from millstream.core.raft.ready import LogWrite, Proposed
from millstream.model.replication import RaftPosition

if TYPE_CHECKING:
    from millstream.core.raft.messages import Control
    from millstream.core.raft.replica import Replica


def append_control(replica: Replica, control: Control) -> None:
    """Append a control entry; the next Ready has it to write."""
    assert replica.leading is not None
    log = replica.log
    term = replica.ballot.term
    start = log.end
    end = RaftPosition(start + 1)
    entry = ControlEntry(start, term, control)
    runs = (TermRun(end, term),)
    log.append(runs, (entry,))
    pending = replica.out.write
    if pending is None:
        replica.out.write = LogWrite(None, start, end, runs, (entry,), term)
    else:
        assert pending.end == start and pending.term == term, "the Ready before this was not taken"
        replica.out.write = LogWrite(None, pending.start, end, runs, (*pending.controls, entry), term)
    note_unsynced(replica)


def append_records(replica: Replica, count: int) -> Proposed:
    """Append a batch of ``count`` records, which the caller writes."""
    assert replica.leading is not None and count > 0
    assert replica.out.write is None, "the Ready before this was not taken"
    log = replica.log
    start = log.end
    log.extend(count, replica.ballot.term)
    note_unsynced(replica)
    return Proposed(start, replica.ballot.term)


def note_unsynced(replica: Replica) -> None:
    """Start to watch the own disk, unless it is watched already."""
    leading = replica.leading
    if leading is not None and leading.unsynced_since_us is None:
        leading.unsynced_since_us = replica.now
