"""What a follower does with its leader's messages.

Entries are taken only after a point that both logs have (`prev`); what conflicts is cut off first, and never below
the committed end. The answer to entries follows their sync: it reports two ends, what is received and what is durable,
and both only as far as the log is known to match this leader's. A durable tail that was never compared is no answer.

Repeated, reordered and old messages are harmless: entries that the log has are not written again, and ends only rise
within a term. A crash loses what was not synced, and no answer has claimed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft import rejoining
from millstream.core.raft.messages import AppendRejected, AppendReply, HeartbeatReply, LogPoint
from millstream.core.raft.ready import Install, LogWrite, Role
from millstream.core.raft.roles import hear_leader
from millstream.model.replication import NO_REPLICA, RaftPosition, Term

if TYPE_CHECKING:
    from millstream.core.raft.messages import Append, Heartbeat, InstallOffer
    from millstream.core.raft.ready import LogPersisted
    from millstream.core.raft.replica import Replica
    from millstream.model.replication import ReplicaId


def on_append(replica: Replica, sender: ReplicaId, append: Append) -> None:
    """Take entries, or say where the logs may match."""
    hear_leader(replica, sender)
    replica.round = max(replica.round, append.round)
    log = replica.log
    prev = append.prev
    end = append.runs[-1].end_position if append.runs else prev.position
    if prev.position < log.base.position:
        # The base is committed, so this leader has it too: only what lies after it can be new.
        prev = LogPoint(min(log.base.position, end), log.base.term)
    elif not has_entry(replica, prev):
        _reject(replica, sender, append)
        return
    wrote = _take(replica, prev, append, end)
    replica.ends.verified = max(replica.ends.verified, end)
    learn_ends(replica, append.committed, append.visible)
    if not wrote or replica.write_caching:
        reply(replica)


def lacks_from(replica: Replica, append: Append) -> RaftPosition | None:
    """See `Raft.lacks_from`."""
    log, prev = replica.log, append.prev
    if append.term < replica.ballot.term or not append.runs:
        return None
    if prev.position < log.base.position:
        prev = log.base
    elif not has_entry(replica, prev):
        return None
    agreed = log.agrees_until(prev.position, [run for run in append.runs if run.end_position > prev.position])
    return agreed if agreed < append.runs[-1].end_position else None


def has_entry(replica: Replica, point: LogPoint) -> bool:
    """Whether the entry before an append's first is in this log."""
    return replica.log.has(point)


def on_heartbeat(replica: Replica, sender: ReplicaId, heartbeat: Heartbeat) -> None:
    """Note that the leader is there, and how far it has committed."""
    hear_leader(replica, sender)
    replica.round = max(replica.round, heartbeat.round)
    learn_ends(replica, heartbeat.committed, heartbeat.visible)
    ends = replica.ends
    rejoining.ask_end(replica, sender)
    if replica.patience.damaged_until is not None and ends.verified == ends.committed:
        # Nothing was compared since the damage: make the leader compare.
        last = replica.log.last
        unmatched = RaftPosition(last.position + 1)
        replica.send(sender, AppendRejected(replica.ballot.term, unmatched, last, replica.round, damaged=True))
        return
    answer = HeartbeatReply(replica.ballot.term, ends.verified, min(ends.durable, ends.verified), replica.round)
    replica.send(sender, answer)


def follows(replica: Replica, leader: ReplicaId, term: Term) -> bool:
    """Whether this replica follows ``leader`` in ``term``, and asks it for nothing but entries."""
    return (
        replica.leader == leader
        and replica.role is Role.FOLLOWER
        and replica.ballot.term == term
        and replica.ballot.is_durable()
        and replica.patience.damaged_until is None
        and replica.rejoining is None
        and replica.installing is None
    )


def learn_ends(replica: Replica, committed: RaftPosition, visible: RaftPosition) -> None:
    """Follow the leader's ends as far as this log is known to match."""
    ends = replica.ends
    ends.committed = max(ends.committed, min(committed, ends.verified))
    ends.visible = max(ends.visible, ends.committed, min(visible, ends.verified))
    if replica.patience.damaged_until is not None:
        _note_mended(replica, replica.patience.damaged_until)


def reply(replica: Replica) -> None:
    """Report to the leader what this replica has."""
    if replica.leader in (NO_REPLICA, replica.me):
        return
    ends = replica.ends
    durable = min(ends.durable, ends.verified)
    replica.send(replica.leader, AppendReply(replica.ballot.term, ends.verified, durable, replica.round))


def on_log_persisted(replica: Replica, completion: LogPersisted) -> bool:
    """A sync has ended; true if it moves the durable end."""
    ends = replica.ends
    if not proves_durable(replica, completion) or completion.position <= ends.durable:
        return False
    assert completion.position <= replica.log.end, "a completion past the end of the log"
    ends.durable = completion.position
    return True


def proves_durable(replica: Replica, completion: LogPersisted) -> bool:
    """Whether what the sync covered is still in the log (A10); `ready` says why the term of the write decides."""
    return completion.term >= replica.ends.cut_term


def on_install_offer(replica: Replica, sender: ReplicaId, offer: InstallOffer) -> None:
    """Fetch the files, or answer that they are not needed."""
    hear_leader(replica, sender)
    replica.round = max(replica.round, offer.round)
    end = offer.end.position
    ends = replica.ends
    if end <= ends.committed or replica.log.has(offer.end):
        replica.installing = None
        ends.verified = max(ends.verified, end)
        learn_ends(replica, end, end)
        reply(replica)
    elif replica.installing is None or replica.installing.position < end:
        replica.installing = offer.end
        replica.out.install = Install(sender, offer.end, offer.configuration)


def adopt(replica: Replica, install: Install) -> Term | None:
    """Verified files up to ``install.end`` are there: give the term of the write if they are to replace the log."""
    end = install.end
    ends = replica.ends
    if replica.installing == end:
        replica.installing = None
    if end.position <= ends.committed or replica.log.has(end):
        return None
    assert replica.out.write is None, "the Ready before this was not taken"
    replica.log.reset(end, install.configuration)
    ends.durable = min(ends.durable, ends.committed)
    ends.cut_term = replica.ballot.term
    ends.committed = end.position
    ends.visible = end.position
    ends.verified = end.position
    return replica.ballot.term


def _note_mended(replica: Replica, damaged_until: RaftPosition) -> None:
    """End the damage if this log has everything again that this replica may have acknowledged."""
    ends, patience = replica.ends, replica.patience
    term = replica.log.term_at(ends.committed)
    assert term is not None
    if min(ends.verified, ends.durable) >= damaged_until or term > patience.damaged_term:
        patience.damaged_until = None
        replica.rejoining = None


def _take(replica: Replica, prev: LogPoint, append: Append, end: RaftPosition) -> bool:
    """Write what the log does not have; true if there is something to write."""
    log = replica.log
    runs = [run for run in append.runs if run.end_position > prev.position]
    agreed = log.agrees_until(prev.position, runs)
    if agreed >= end:
        return False
    assert replica.out.write is None, "the Ready before this was not taken"
    cut: LogPoint | None = None
    if agreed < log.end:
        cut = truncate(replica, agreed)
    new_runs = tuple(run for run in runs if run.end_position > agreed)
    controls = tuple(entry for entry in append.controls if entry.position >= agreed)
    log.append(new_runs, controls)
    replica.out.write = LogWrite(cut, agreed, end, new_runs, controls, replica.ballot.term)
    return True


def truncate(replica: Replica, position: RaftPosition) -> LogPoint:
    """Cut off what conflicts with the leader's log."""
    ends = replica.ends
    assert position >= ends.committed, "a committed entry conflicts with the leader's log"
    assert position >= ends.verified, "an entry conflicts with the leader's log, and matched it before"
    replica.log.truncate(position)
    ends.durable = min(ends.durable, position)
    ends.visible = max(ends.committed, min(ends.visible, position))
    ends.cut_term = replica.ballot.term
    return replica.log.last


def _reject(replica: Replica, sender: ReplicaId, append: Append) -> None:
    log = replica.log
    hint = log.newest_at_most(append.prev.position, append.prev.term)
    if hint is None:
        # Nothing from the base on can match, and a leader has every committed entry: it must send files.
        hint = LogPoint(RaftPosition(0), Term(0))
    rejection = AppendRejected(
        replica.ballot.term,
        append.prev.position,
        hint,
        replica.round,
        damaged=replica.patience.damaged_until is not None,
    )
    replica.send(sender, rejection)
