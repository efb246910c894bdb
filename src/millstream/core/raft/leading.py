"""What a leader does: its term start, what it sends to whom, and what the answers mean.

The leader tells each peer what it lacks, as orders to the shell (`Send`), and moves a peer between probing, replicating
and installing by its answers. A peer that does not answer costs one window of appends, and heartbeats. A leader that
without contact to a majority for one election timeout steps down.

Sources: Ongaro's thesis, sections 3.5 and 6.4; etcd raft, `raft.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft import commit, handover
from millstream.core.raft.leader_log import append_control, note_unsynced
from millstream.core.raft.membership import meet_members
from millstream.core.raft.messages import Append, Configuration, Heartbeat, InstallOffer, LogPoint, TermStart
from millstream.core.raft.progress import ZERO, Flow
from millstream.core.raft.quorum import reached
from millstream.core.raft.ready import InstallNeeded, Outgoing, ReadConfirmed, Refusal, Role, Send
from millstream.core.raft.replica import Leading, PendingRead
from millstream.core.raft.roles import follow
from millstream.model.replication import NO_REPLICA, RaftPosition, Round, TimeUs

if TYPE_CHECKING:
    from millstream.core.raft.messages import AppendRejected, AppendReply, HeartbeatReply
    from millstream.core.raft.progress import Progress
    from millstream.core.raft.replica import Replica
    from millstream.model.replication import ReadId, ReplicaId


def begin(replica: Replica) -> None:
    """An election is won: lead, beginning with the term start. Who is to lead alone is the only member then."""
    replica.role = Role.LEADER
    replica.leader = replica.me
    replica.votes.clear()
    replica.patience.tries = 0
    replica.leading = Leading(RaftPosition(replica.log.end + 1))
    meet_members(replica)
    append_control(replica, TermStart())
    if replica.alone:
        replica.alone = False
        append_control(replica, Configuration((replica.me,)))
        meet_members(replica)


def on_append_reply(replica: Replica, sender: ReplicaId, reply: AppendReply) -> None:
    """A peer reports what it has, after an append or an install."""
    progress = _answered(replica, sender, reply.round)
    if progress is None:
        return
    progress.answered_append_us = replica.now
    _take_over(replica, sender, progress, reply.received, reply.durable)


def on_heartbeat_reply(replica: Replica, sender: ReplicaId, reply: HeartbeatReply) -> None:
    """A peer is there. If it lacks what was sent before the heartbeat, that was lost."""
    progress = _answered(replica, sender, reply.round)
    if progress is None:
        return
    _take_over(replica, sender, progress, reply.received, reply.durable)
    if progress.flow is Flow.REPLICATE:
        if progress.in_flight:
            lost = reply.round >= progress.beat_round and reply.received < progress.beat_next
        else:
            # Restarted: the peer has the entries, and has to learn that they match.
            lost = reply.received < progress.received
        if lost:
            progress.probe(max(reply.received, progress.durable))
    elif progress.flow is Flow.PROBE:
        progress.paused = False
    elif progress.offered is not None:
        offer_install(replica, sender, progress.offered)


def on_rejected(replica: Replica, sender: ReplicaId, rejected: AppendRejected) -> None:
    """A peer has no entry like an append's ``prev``: find where the logs meet."""
    progress = _answered(replica, sender, rejected.round)
    if progress is None:
        return
    if rejected.damaged:
        progress.lost(rejected.hint.position)
    if progress.flow is Flow.INSTALL:
        if rejected.damaged and progress.offered is not None:
            offer_install(replica, sender, progress.offered)  # as after a heartbeat's answer: the offer may be lost
        return
    if progress.flow is Flow.PROBE and rejected.prev_position != progress.next:
        progress.paused = progress.paused and not rejected.damaged
        return
    if rejected.prev_position <= progress.durable and progress.flow is not Flow.PROBE:
        return  # an old answer
    point = replica.log.meeting_point(rejected.hint)
    if rejected.prev_position <= progress.durable:
        # The peer's disk has lost what it had synced, and the peer does not know: a copy of before, a lost write.
        progress.lost(point.position if point is not None else ZERO)
    if point is None:
        progress.install()
    else:
        progress.probe(max(point.position, progress.durable))


def orders(replica: Replica) -> tuple[tuple[Send, ...], tuple[InstallNeeded, ...]]:
    """What is to be sent now, and who needs files. Called once for each Ready."""
    leading = replica.leading
    assert leading is not None
    log = replica.log
    sends: list[Send] = []
    installs: list[InstallNeeded] = []
    for peer, progress in leading.peers.items():
        if progress.flow is not Flow.INSTALL:
            if progress.next < log.base.position and not progress.ordered:
                # The peer may have the base without having said so; it says so if not, and is sent files then.
                progress.probe(log.base.position)
            if progress.may_send(log.end, replica.options):
                progress.ordered = True
                progress.serial += 1
                sends.append(Send(peer, progress.next, log.end, progress.serial))
            elif replica.options.tells_commits and _lacks_commit(replica, progress):
                replica.send(peer, heartbeat_for(replica, leading, progress))
            continue
        if not progress.ordered and progress.offered is None:
            progress.ordered = True
            installs.append(InstallNeeded(peer, log.base.position))
    return tuple(sends), tuple(installs)


def _lacks_commit(replica: Replica, progress: Progress) -> bool:
    """Whether a peer has entries that are committed, has not been sent a word of it, and is to be sent no entries."""
    if progress.flow is not Flow.REPLICATE or progress.ordered:
        return False
    return progress.told_committed < min(replica.ends.committed, progress.received)


def sent(replica: Replica, send: Send, end: RaftPosition, size_bytes: int) -> Append | None:
    """The shell has read the entries of an order up to ``end``: give their message, or None if it is outdated."""
    progress = _ordered(replica, send)
    if progress is None:
        return None
    log = replica.log
    term = log.term_at(send.start)
    if term is None:
        return None
    assert send.start <= end <= send.limit
    assert end > send.start or progress.flow is Flow.PROBE, "an append without entries makes no progress"
    leading = replica.leading
    assert leading is not None
    progress.sent(end, size_bytes)
    ends = replica.ends
    progress.told_committed = min(ends.committed, end)
    return Append(
        replica.ballot.term,
        LogPoint(send.start, term),
        log.runs_between(send.start, end),
        log.controls_between(send.start, end),
        ends.committed,
        ends.visible,
        leading.round,
    )


def send_failed(replica: Replica, send: Send) -> None:
    """The shell can't read what an order asks for now. The peer is probed again after its next heartbeat."""
    progress = _ordered(replica, send)
    if progress is not None:
        progress.probe(max(progress.received, progress.durable))
        progress.paused = True


def peer_lost(replica: Replica, peer: ReplicaId) -> None:
    """The connection to a peer broke; messages in flight on it are lost."""
    progress = replica.leading.peers.get(peer) if replica.leading is not None else None
    if progress is not None and progress.flow is Flow.REPLICATE:
        progress.probe(progress.received)
        progress.paused = True


def offer_install(replica: Replica, peer: ReplicaId, end: RaftPosition) -> None:
    """The shell has files up to ``end``, a committed point at or past the base, for a peer that needs them."""
    progress = replica.leading.peers.get(peer) if replica.leading is not None else None
    if progress is None or progress.flow is not Flow.INSTALL or replica.leading is None:
        return
    log = replica.log
    term = log.term_at(end)
    progress.ordered = False
    if term is None or end > replica.ends.committed:
        progress.offered = None
        return
    progress.offered = end
    offer = InstallOffer(replica.ballot.term, LogPoint(end, term), log.configuration_at(end), replica.leading.round)
    replica.send(peer, offer)


def install_failed(replica: Replica, peer: ReplicaId) -> None:
    """The transfer of files to a peer has failed: choose files again."""
    progress = replica.leading.peers.get(peer) if replica.leading is not None else None
    if progress is not None and progress.flow is Flow.INSTALL:
        progress.install()


def beats(replica: Replica) -> tuple[Outgoing, ...]:
    """The heartbeats that are due."""
    leading = replica.leading
    if leading is None:
        return ()
    due: list[Outgoing] = []
    since = replica.now - replica.options.heartbeat_us
    for peer, progress in leading.peers.items():
        if progress.answered_append_us <= since or progress.answered_append_us == 0:
            due.append(Outgoing(peer, heartbeat_for(replica, leading, progress)))
    return tuple(due)


def is_settled(replica: Replica, peer: ReplicaId) -> bool:
    """Whether a heartbeat would tell ``peer`` nothing but that this replica leads: the peer has the whole log on disk,
    and has answered a heartbeat that said that all of it is committed.
    """
    leading = replica.leading
    progress = leading.peers.get(peer) if leading is not None else None
    if leading is None or progress is None or leading.reads or leading.transferee != NO_REPLICA:
        return False
    return (
        progress.told_end == replica.log.end
        and progress.round >= progress.told_round
        and progress.flow is Flow.REPLICATE
        and not progress.in_flight
        and not progress.ordered
        and progress.durable == progress.received == replica.log.end
        and replica.ends.durable == replica.ends.committed == replica.log.end
    )


def read_barrier(replica: Replica, read_id: ReadId) -> Refusal | None:
    """Start to prove that this replica leads now; None if it has started. The result comes in a Ready.

    Source: Ongaro's thesis, section 6.4.
    """
    leading = replica.leading
    if leading is None:
        return Refusal.NOT_LEADER
    if replica.ends.committed < leading.term_start_end:
        return Refusal.NOT_READY
    leading.round = Round(leading.round + 1)
    leading.reads.append(PendingRead(read_id, leading.round, replica.ends.committed))
    for peer, progress in leading.peers.items():
        replica.send(peer, heartbeat_for(replica, leading, progress))
    confirm_reads(replica)
    return None


def confirm_reads(replica: Replica) -> None:
    """Give out the read barriers that a majority has confirmed."""
    leading = replica.leading
    if leading is None or not leading.reads:
        return
    confirmed = reached(replica.log.configuration, lambda voter: round_of(replica, leading, voter))
    while leading.reads and leading.reads[0].round <= confirmed:
        read = leading.reads.pop(0)
        replica.out.reads.append(ReadConfirmed(read.read_id, read.position))


def round_of(replica: Replica, leading: Leading, voter: ReplicaId) -> int:
    """Newest round that a voter has answered."""
    return leading.round if voter == replica.me else leading.peers[voter].round


def quorum_contact(replica: Replica) -> TimeUs:
    """When a majority, this replica included, had last answered."""
    leading = replica.leading
    assert leading is not None
    peers = leading.peers
    return TimeUs(
        reached(
            replica.log.configuration,
            lambda voter: replica.now if voter == replica.me else peers[voter].contact_us,
        )
    )


def deadline_passed(replica: Replica) -> None:
    """A deadline of the leader has passed."""
    leading = replica.leading
    assert leading is not None
    options = replica.options
    if options.check_quorum and replica.now - quorum_contact(replica) >= options.quorum_timeout_us:
        follow(replica, replica.ballot.term, NO_REPLICA)
        return
    handover.deadline_passed(replica, leading)


def on_own_log_durable(replica: Replica) -> None:
    """The own disk has synced more: count it."""
    leading = replica.leading
    assert leading is not None
    leading.unsynced_since_us = None
    if replica.ends.durable < replica.log.end:
        note_unsynced(replica)
    commit.advance(replica)


def _take_over(
    replica: Replica, sender: ReplicaId, progress: Progress, received: RaftPosition, durable: RaftPosition
) -> None:
    assert durable <= received <= replica.log.end, "a peer has more of this leader's log than the leader"
    moved = progress.acknowledge(received, durable)
    probed = progress.flow is Flow.PROBE and received >= progress.next
    installed = progress.flow is Flow.INSTALL and progress.received >= replica.log.base.position
    if probed or installed:
        progress.replicate()
    if moved or replica.write_caching:
        commit.advance(replica)
    if replica.leading is not None and sender == replica.leading.transferee:
        handover.ask_to_stand(replica, replica.leading)


def _answered(replica: Replica, sender: ReplicaId, round_: int) -> Progress | None:
    leading = replica.leading
    progress = leading.peers.get(sender) if leading is not None else None
    if progress is None:
        return None
    progress.contact_us = replica.now
    if round_ > progress.round:
        progress.round = round_
        confirm_reads(replica)
    return progress


def _ordered(replica: Replica, send: Send) -> Progress | None:
    progress = replica.leading.peers.get(send.to) if replica.leading is not None else None
    if progress is None or not progress.ordered or progress.serial != send.serial:
        return None
    progress.ordered = False
    return progress if progress.next == send.start else None


def heartbeat_for(replica: Replica, leading: Leading, progress: Progress) -> Heartbeat:
    """A heartbeat to one peer. Its ends stop at what the peer has: the rest of the peer's log may not match."""
    if progress.in_flight and progress.round >= progress.beat_round:
        leading.round = Round(leading.round + 1)
        progress.beat_round = leading.round
        progress.beat_next = progress.next
    ends = replica.ends
    committed = progress.told_committed = min(ends.committed, progress.received)
    if committed == replica.log.end != progress.told_end:
        leading.round = Round(leading.round + 1)
        progress.told_end = committed
        progress.told_round = leading.round
    return Heartbeat(replica.ballot.term, committed, min(ends.visible, progress.received), leading.round)
