"""One replica of one Raft group: events in, a `Ready` out. `ready` describes the contract.

`Raft` checks the term of each message, calls the verb for it, and collects what follows. The verbs are
the other files of this room::

    election     who stands, who votes             roles         hearing a leader, a newer term
    following    entries, answers, adoption        leading       term start, peers, heartbeats, read barriers
    membership   changes of the members            handover      transfer of leadership
    commit       counting                          leader_log    positions of a leader's entries
    rejoining    a replica that has lost its log         forcing         unsafe recovery
    beginning    new groups with an assigned leader      leaps         terms far above

Promises: at most one leader a term; a committed entry is in every later leader's log; nothing is claimed before it is
on disk. Pre-vote, the check of the quorum, priorities and pipelining are not needed for that (A11).

Bad input: a message from a stranger, of an old term, or repeated changes nothing that matters. A message that can't be
(two leaders in a term, an acknowledgement past the leader's log) means that a promise is broken already; an assertion
stops the shard. Overload: the shell asks for no more than it can hold; the core keeps nothing per entry.

Sources: Ongaro, "Consensus: Bridging Theory and Practice" (2014); etcd raft for the shape; more in each file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.core.raft import (
    beginning,
    commit,
    election,
    following,
    forcing,
    handover,
    leading,
    membership,
    rejoining,
)
from millstream.core.raft.leader_log import append_control, append_records
from millstream.core.raft.leaps import Leaps
from millstream.core.raft.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Inquiry,
    InquiryReply,
    InstallOffer,
    NewerTerm,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from millstream.core.raft.options import RaftOptions
from millstream.core.raft.ready import Ready, Refusal, Role, RoleChange, VoteState
from millstream.core.raft.replica import Outbox, Replica
from millstream.core.raft.roles import follow
from millstream.model.replication import NO_REPLICA, EntryCount, RaftPosition, ReadId, ReplicaId, Seed, Term, TimeUs

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.raft.messages import Configuration, ControlEntry, LogStart, Message, Opaque
    from millstream.core.raft.ready import Install, LogPersisted, Outgoing, Proposed, Recovered, Send

_LEADER_MESSAGES = (Append, Heartbeat, InstallOffer)


class Raft:
    """One replica of one group.

    Shard: made and called on the home shard of the group's log only. A call that takes ``now`` brings the time forward;
    time never goes back.
    """

    __slots__ = ("_deadline_us", "_leaps", "_role", "replica")

    def __init__(
        self, me: ReplicaId, recovered: Recovered, seed: Seed, now: TimeUs, options: RaftOptions | None = None
    ) -> None:
        """Make the core of replica ``me``. ``seed`` is for waits alone and should differ between replicas."""
        self.replica = Replica(me, recovered, options or RaftOptions(), seed, now)
        beginning.recover(self.replica, recovered)
        self._leaps = Leaps()
        self._role = RoleChange(Role.FOLLOWER, recovered.state.term, NO_REPLICA)
        """Role in the last Ready."""
        self._deadline_us: TimeUs | None = None
        """Deadline in the last Ready that had one, until it has passed."""
        election.begin_waiting(self.replica)

    # What the shell reads

    @property
    def term(self) -> Term:
        """Term of now, durable or not."""
        return self.replica.ballot.term

    @property
    def role(self) -> Role:
        """Role of now."""
        return self.replica.role

    @property
    def leader(self) -> ReplicaId:
        """Leader of this term; `NO_REPLICA` while unknown."""
        return self.replica.leader

    @property
    def next_position(self) -> RaftPosition:
        """End of the log, synced or not."""
        return self.replica.log.end

    @property
    def durable(self) -> RaftPosition:
        """End of what this replica has synced."""
        return self.replica.ends.durable

    @property
    def committed(self) -> RaftPosition:
        """End of what a quorum has synced."""
        return self.replica.ends.committed

    @property
    def is_serving(self) -> bool:
        """Whether this replica leads and has committed its term start: then it knows every committed entry."""
        led = self.replica.leading
        return led is not None and self.replica.ends.committed >= led.term_start_end

    @property
    def began_group(self) -> bool:
        """Whether this replica leads and its log was empty when it started to: nothing was committed before."""
        led = self.replica.leading
        return led is not None and led.term_start_end == 1

    @property
    def visible(self) -> RaftPosition:
        """End of what clients may see, at least ``committed``."""
        return self.replica.ends.visible

    @property
    def is_damaged(self) -> bool:
        """Whether a part of the log that was durable is lost, and no leader has made up for it yet."""
        return self.replica.patience.damaged_until is not None

    @property
    def leads(self) -> bool:
        """Whether this replica leads now."""
        return self.replica.leading is not None

    @property
    def base(self) -> RaftPosition:
        """First position from which on entries can be sent one by one."""
        return self.replica.log.base.position

    @property
    def has_write(self) -> bool:
        """Whether the next Ready has entries to write. A proposal has to wait until it is taken."""
        return self.replica.out.write is not None

    def controls_between(self, start: RaftPosition, end: RaftPosition) -> tuple[ControlEntry, ...]:
        """Control entries from ``start`` to ``end``, at or after the base, in order."""
        return self.replica.log.controls_between(start, end)

    def configuration_at(self, position: RaftPosition) -> Configuration:
        """Members in force for a log that ends at ``position``, at or after the base."""
        return self.replica.log.configuration_at(position)

    # Events

    def step(self, now: TimeUs, sender: ReplicaId, message: Message) -> None:
        """A message has arrived. Take the Ready after it."""
        replica = self.replica
        replica.now = now
        if rejoining.hears_nothing(replica) and not isinstance(message, Inquiry | InquiryReply):
            return
        if replica.log.end and self._leaps.bars(now, replica.ballot.term, message.term):
            return
        if isinstance(message, VoteRequest):
            election.on_vote_request(replica, sender, message)
            return
        if isinstance(message, VoteReply):
            election.on_vote_reply(replica, sender, message)
            return
        if isinstance(message, Inquiry):
            rejoining.on_inquiry(replica, sender, message)
            return
        if isinstance(message, InquiryReply):
            rejoining.on_inquiry_reply(replica, sender, message)
            return
        term = replica.ballot.term
        if message.term < term:
            if isinstance(message, _LEADER_MESSAGES):
                replica.send(sender, NewerTerm(term))
            return
        if message.term > term:
            follow(replica, message.term, sender if isinstance(message, _LEADER_MESSAGES) else NO_REPLICA)
        _STEPS[type(message)](replica, sender, message)

    def deadline_passed(self, now: TimeUs) -> None:
        """A deadline has passed. Early calls are harmless."""
        replica = self.replica
        replica.now = now
        if self._deadline_us is not None and now >= self._deadline_us:
            self._deadline_us = None
        if replica.leading is not None:
            leading.deadline_passed(replica)
        elif now - replica.patience.contact_us >= replica.patience.timeout_us:
            election.time_out(replica)

    def begin(self, now: TimeUs) -> None:
        """The shell has noted durably that this replica was made, from nothing: a later start that finds no files of it
        knows that they are lost (`beginning`). Take the Ready after it.
        """
        self.replica.now = now
        beginning.begin(self.replica)

    def contact(self, now: TimeUs, peer: ReplicaId) -> None:
        """``peer`` still leads this group, or follows this leader, in this term: a message for many groups has said so.

        The shell may tell this late, with the time when it arrived: before `put_off`, before a vote request is
        stepped, and before it looks at when a peer was there (`raft.contacts`).
        """
        replica = self.replica
        if replica.leading is not None:
            progress = replica.leading.peers.get(peer)
            if progress is not None:
                progress.contact_us = max(progress.contact_us, now)
        elif peer == replica.leader:
            replica.patience.contact_us = max(replica.patience.contact_us, now)

    @property
    def peers(self) -> tuple[ReplicaId, ...]:
        """Leader: every other member. Empty on other replicas."""
        led = self.replica.leading
        return tuple(led.peers) if led is not None else ()

    def durable_of(self, peer: ReplicaId) -> RaftPosition | None:
        """Leader: end of what ``peer`` is known to have on its disk; None for a stranger, and on other replicas."""
        led = self.replica.leading
        progress = led.peers.get(peer) if led is not None else None
        return progress.durable if progress is not None else None

    def is_settled(self, peer: ReplicaId) -> bool:
        """Leader: whether heartbeats to ``peer`` may be left out while the shell calls `contact`; see `leading`."""
        return leading.is_settled(self.replica, peer)

    def follows(self, leader: ReplicaId, term: Term) -> bool:
        """Whether `contact` with ``leader`` in ``term`` may stand for heartbeats."""
        return following.follows(self.replica, leader, term)

    def put_off(self, now: TimeUs) -> tuple[bool, TimeUs | None]:
        """A deadline has come: whether contact has moved it (if not, call `deadline_passed`), and the deadline to set
        if no other one is set that comes before it.
        """
        self.replica.now = now
        deadline = self.deadline()
        if deadline is None or deadline <= now:
            return False, None
        if self._deadline_us is not None and now < self._deadline_us <= deadline:
            return True, None
        self._deadline_us = deadline
        return True, deadline

    def state_persisted(self, now: TimeUs, state: VoteState) -> None:
        """A vote record is durable. Take the Ready after it."""
        replica = self.replica
        replica.now = now
        ballot = replica.ballot
        if state.term < ballot.durable.term:
            return
        ballot.durable = state
        if ballot.is_durable():
            election.on_own_vote_durable(replica)

    def log_persisted(self, now: TimeUs, completion: LogPersisted) -> None:
        """A sync of the log has ended. Take the Ready after it."""
        replica = self.replica
        replica.now = now
        if following.on_log_persisted(replica, completion):
            if replica.leading is not None:
                leading.on_own_log_durable(replica)
            else:
                following.reply(replica)

    def lacks_from(self, append: Append) -> RaftPosition | None:
        """Where the entries of an append start that this log lacks or has others in place of; None if `step` would
        take nothing of it.
        """
        return following.lacks_from(self.replica, append)

    # What a leader is asked for

    def proposal_refused(self) -> Refusal | None:
        """Why `propose` would be refused now; None if it would not."""
        led = self.replica.leading
        if led is None:
            return Refusal.NOT_LEADER
        return Refusal.TRANSFERRING if led.transferee != NO_REPLICA else None

    def propose(self, now: TimeUs, count: EntryCount) -> Proposed | Refusal:
        """Give a batch of ``count`` records its place. The caller writes it there before anything else happens."""
        replica = self.replica
        replica.now = now
        refusal = self.proposal_refused()
        if refusal is not None:
            return refusal
        proposed = append_records(replica, count)
        if replica.write_caching:
            commit.advance(replica)
        return proposed

    def propose_control(self, now: TimeUs, control: LogStart | Opaque) -> Refusal | None:
        """Append a control entry; None if it is in the next Ready. For members: `propose_members`."""
        self.replica.now = now
        refusal = self.proposal_refused()
        if refusal is None:
            append_control(self.replica, control)
        return refusal

    def propose_members(
        self, now: TimeUs, voters: tuple[ReplicaId, ...], learners: tuple[ReplicaId, ...]
    ) -> Refusal | None:
        """Change the members; None if the change has started. ``voters`` in order of preference."""
        self.replica.now = now
        return membership.propose_members(self.replica, voters, learners)

    def steer(self, now: TimeUs, voters: tuple[ReplicaId, ...], learners: tuple[ReplicaId, ...]) -> bool:
        """Take the next step towards these members, if one can be taken now; see `membership.steer`."""
        self.replica.now = now
        return membership.steer(self.replica, voters, learners)

    def transfer(self, now: TimeUs, to: ReplicaId) -> Refusal | None:
        """Hand leadership over to a voter; None if it has started."""
        self.replica.now = now
        return handover.transfer(self.replica, to)

    def lead_alone(self, now: TimeUs) -> None:
        """Unsafe recovery: lead as the only voter, without an election (`forcing`). This replica does not lead, and is
        not damaged.
        """
        self.replica.now = now
        forcing.lead_alone(self.replica)

    def leave(self, now: TimeUs) -> bool:
        """The broker is about to stop: hand leadership over, if this replica has it and another can take it, and stand
        for no election. True while a handover is in progress; called again it tries again.
        """
        self.replica.now = now
        return handover.leave(self.replica)

    def read_barrier(self, now: TimeUs, read_id: ReadId) -> Refusal | None:
        """Prove that this replica leads; None if the proof has started, and `Ready` brings its end."""
        self.replica.now = now
        return leading.read_barrier(self.replica, read_id)

    def forbid_leadership(self, forbidden: bool) -> None:
        """Stand for no election while the node is drained. A leader keeps leading; transfer first."""
        self.replica.patience.forbidden = forbidden

    def set_write_caching(self, on: bool) -> None:
        """Show what a quorum has in memory (on), or on disk. What was shown stays shown."""
        self.replica.write_caching = on
        if self.replica.leading is not None:
            commit.advance(self.replica)

    # What the shell reports of its own work

    def sent(self, send: Send, end: RaftPosition, size_bytes: int) -> Append | None:
        """The entries of ``send`` up to ``end`` are read and ``size_bytes`` long: the message to send with them.

        None if the order is outdated; drop the bytes then. Take the Ready after it, which may order more.
        """
        return leading.sent(self.replica, send, end, size_bytes)

    def send_failed(self, send: Send) -> None:
        """The entries of ``send`` can't be read now."""
        leading.send_failed(self.replica, send)

    def peer_lost(self, peer: ReplicaId) -> None:
        """The connection to a peer has broken."""
        leading.peer_lost(self.replica, peer)

    def offer_install(self, peer: ReplicaId, end: RaftPosition) -> None:
        """Files up to ``end`` are ready for a peer of `Ready.installs`."""
        leading.offer_install(self.replica, peer, end)

    def install_failed(self, peer: ReplicaId) -> None:
        """The transfer to a peer has failed; the next Ready asks for files again."""
        leading.install_failed(self.replica, peer)

    def adopt(self, now: TimeUs, install: Install) -> Term | None:
        """Files are fetched and verified: the term of the write if they replace the log now, None if not."""
        self.replica.now = now
        return following.adopt(self.replica, install)

    def give_up_install(self, install: Install) -> None:
        """The files cannot be fetched; the leader's next offer starts another attempt."""
        if self.replica.installing == install.end:
            self.replica.installing = None

    def fold(self, position: RaftPosition) -> None:
        """What lies before ``position``, a committed end, can no longer be sent entry by entry."""
        assert position <= self.replica.ends.committed
        self.replica.log.fold(position)

    def beats(self, now: TimeUs) -> tuple[Outgoing, ...]:
        """The heartbeats that are due now; none from a replica that does not lead."""
        self.replica.now = now
        return leading.beats(self.replica)

    # What follows

    def ready(self) -> Ready:
        """What the shell has to do now. Each thing is handed out once."""
        replica = self.replica
        out = replica.out
        sends, installs = leading.orders(replica) if replica.leading is not None else ((), ())
        ends = replica.ends
        ready = Ready(
            ends.committed,
            ends.visible,
            self._state_to_persist(),
            out.write,
            self._role_change(),
            sends,
            tuple(out.messages),
            installs,
            out.install,
            tuple(out.reads),
            tuple(out.failed_reads),
            self._earlier_deadline(),
        )
        if out.write or out.messages or out.install or out.reads or out.failed_reads:
            held = out.held
            replica.out = Outbox()
            replica.out.held = held
        return ready

    def deadline(self) -> TimeUs | None:
        """When the next tick is due; None for a replica that waits for nothing."""
        replica = self.replica
        led = replica.leading
        if led is None:
            return TimeUs(replica.patience.contact_us + replica.patience.timeout_us)
        deadlines: list[TimeUs] = []
        if replica.options.check_quorum and len(led.peers) > 0:
            deadlines.append(TimeUs(leading.quorum_contact(replica) + replica.options.quorum_timeout_us))
        if led.transferee != NO_REPLICA:
            deadlines.append(led.transfer_deadline_us)
        else:
            stall = handover.stall_deadline(replica, led)
            if stall is not None:
                deadlines.append(stall)
        return min(deadlines) if deadlines else None

    def _state_to_persist(self) -> VoteState | None:
        ballot = self.replica.ballot
        if ballot.handed_out.term == ballot.term and ballot.handed_out.voted_for == ballot.voted_for:
            return None
        ballot.handed_out = VoteState(ballot.term, ballot.voted_for)
        return ballot.handed_out

    def _role_change(self) -> RoleChange | None:
        replica, last = self.replica, self._role
        if last.role is replica.role and last.term == replica.ballot.term and last.leader == replica.leader:
            return None
        self._role = RoleChange(replica.role, replica.ballot.term, replica.leader)
        return self._role

    def _earlier_deadline(self) -> TimeUs | None:
        deadline = self.deadline()
        if deadline is None or (self._deadline_us is not None and deadline >= self._deadline_us):
            return None
        self._deadline_us = deadline
        return deadline


def _on_timeout_now(replica: Replica, sender: ReplicaId, _message: TimeoutNow) -> None:
    """The leader hands over: stand at once."""
    if replica.role is Role.FOLLOWER and sender == replica.leader and election.may_stand(replica):
        election.stand(replica, transfer=True)


def _on_newer_term(_replica: Replica, _sender: ReplicaId, _message: NewerTerm) -> None:
    """The term has been taken over already."""


_STEPS: dict[type, Callable[[Replica, ReplicaId, Any], None]] = {
    Append: following.on_append,
    Heartbeat: following.on_heartbeat,
    InstallOffer: following.on_install_offer,
    AppendReply: leading.on_append_reply,
    AppendRejected: leading.on_rejected,
    HeartbeatReply: leading.on_heartbeat_reply,
    TimeoutNow: _on_timeout_now,
    NewerTerm: _on_newer_term,
}
"""The verb for each message of the current term."""
