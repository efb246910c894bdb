"""The contract between the Raft core of one group and the shell that gives it disk, network and time.

The shell *steps* the core and then takes a `Ready`, which lists what to do. Both are plain calls on one thread::

    raft.step(now, sender, message)       a message arrived
    raft.tick(now)                        the deadline that a Ready named has passed
    raft.begin(now)                       the creation of the replica is noted on its disk
    raft.beats(now)                       the heartbeats that are due; the shell asks once an interval and joins them
                                          with those of other groups for the same node
    raft.propose(count)                   a leader's batch: gives it its position; the shell writes it there at once
    raft.propose_control(control)         a leader's control entry; it comes back in `Ready.write`
    raft.log_persisted(completion)        the log's sync reached a position
    raft.state_persisted(state)           the vote record's sync is done
    raft.ready()                          what follows from all that; may be empty

What the shell does with a `Ready`, in this order:

1. ``state``: append a vote record to the write-ahead log.
2. ``write``: truncate the log if asked, then append the entries. A core holds one write at a time: the shell takes the
   Ready after each `Append` that it steps, and before the next proposal. The bytes are those that came with the append;
   a leader's own write has control entries only.
3. ``role``: on the loss of leadership answer every parked acknowledgement before anything else.
4. ``sends``: for each, read the bytes, ask the core for the message (`Raft.sent`), send both. Reading may take its
   time: a peer has one such order at a time.
5. ``messages``: send them now. What must wait for a sync is not in here: the core holds a message until the
   completion that it needs, and gives it out in the Ready after.
6. ``install``: stage and verify the files, then ask `Raft.adopt`; on yes adopt them, before any other step.
7. ``committed`` and ``visible``: move the ends of the partition, apply control entries, wake waiters.
8. ``deadline_us``: call `Raft.tick` at that time.

Durability comes back as two completions. Each may be repeated, merged with later ones of the same kind, or be lost with
the process; none may be invented. The write-ahead log is synced in the order in which it was written.

**Why `LogPersisted` carries the term of the write, and not the term of the entry.** A slow sync of entries up to
(10, term 2) may finish after a leader of term 3 has cut them off and a leader of term 4 has sent the same entries
again. Position and entry term are then those of the log, but the disk may still fall back to the cut. The core accepts
a completion only if no truncation has happened in a later term than the one in which the write was handed out.

A crash loses the core; the shell builds the next one from what the disk holds (`Recovered`).
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from millstream.core.raft.messages import Configuration, ControlEntry, LogPoint, Message, TermRun
from millstream.model.replication import NO_REPLICA, RaftPosition, ReadId, ReplicaId, Term, TimeUs


class Role(Enum):
    """What a replica does in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


UNKNOWN_END = RaftPosition(1 << 62)
"""In the place of the end that a damaged log had: it is unknown."""


class VoteState(Struct, frozen=True, gc=False):
    """What a replica must never forget: its term, and whom it voted for in it."""

    term: Term
    voted_for: ReplicaId
    """`NO_REPLICA` if none."""

    @property
    def is_blank(self) -> bool:
        """Whether the replica has never met a term, nor cast a vote."""
        return self.term == 0 and self.voted_for == NO_REPLICA


class Recovered(Struct, frozen=True):
    """What the disk holds of a group when its core is made. All of it is durable."""

    configuration: Configuration
    """Members in force at ``base``; for a new group its first ones."""
    state: VoteState = VoteState(Term(0), NO_REPLICA)
    base: LogPoint = LogPoint(RaftPosition(0), Term(0))
    """Committed point from which on entries can be sent one by one. A peer that needs earlier ones is sent files."""
    runs: tuple[TermRun, ...] = ()
    """Terms of the entries from ``base`` to the log's end, in order; neighbours differ in term."""
    controls: tuple[ControlEntry, ...] = ()
    """Control entries from ``base`` to the log's end, in order."""
    committed: RaftPosition = RaftPosition(0)
    """Largest end that the disk knows to be committed, or less. Below ``base`` it counts as ``base``."""
    damaged_until: RaftPosition | None = None
    """Set if a part that was durable is lost: the end that the log had, as the durable mark tells it. The replica keeps
    its term and vote, but stands for no election and grants no vote until a leader has filled its log up to there, or
    has committed an entry of a later term in it. `UNKNOWN_END` if the end of the log is unknown; with a blank
    ``state`` the vote is lost, too, and the replica asks the others first (`rejoining`)."""
    cast: VoteState | None = None
    """The vote that the creation of the group has cast for every voter; None if the group elects its first leader
    (`beginning`)."""
    created: bool = False
    """The replica was made just now, from nothing, and waits for `Raft.begin`."""


class LogWrite(Struct, frozen=True):
    """Entries to append to the log, in one piece.

    ``truncate_to`` comes first, if it is there: cut the log back to it. A cut never goes below the committed end.
    """

    truncate_to: LogPoint | None
    start: RaftPosition
    """Where the entries start: the log's end after the cut. At or past the ``prev`` of the append they came in: the
    shell skips the batches before it, which the log has already."""
    end: RaftPosition
    """Where the entries end (exclusive). ``end == start`` cuts only."""
    runs: tuple[TermRun, ...]
    """Terms of the entries; empty without entries."""
    controls: tuple[ControlEntry, ...]
    """The control entries among them, in order."""
    term: Term
    """The group's term now. The shell keeps it with the write and hands it back in `LogPersisted`."""


class LogPersisted(Struct, frozen=True, gc=False):
    """Completion: a sync covers the log up to ``position`` (exclusive), everything before it included.

    A cut counts as a write: its completion has the position it cut back to.
    """

    position: RaftPosition
    """Log end right after the newest write that the sync covers."""
    term: Term
    """`LogWrite.term` of that write; for a batch that was proposed, `Proposed.term`."""


class Proposed(Struct, frozen=True, gc=False):
    """Where a leader's batch goes. The shell writes it there at once, and parks the acknowledgement by both fields."""

    position: RaftPosition
    """Where the batch starts; it ends ``count`` later."""
    term: Term


class Refusal(Enum):
    """Why a proposal, a transfer or a read barrier is refused. Nothing has happened then."""

    NOT_LEADER = "not the leader"
    TRANSFERRING = "leadership is being handed over"
    NOT_READY = "the term start is not committed yet"
    CHANGE_IN_FLIGHT = "another change of the members is not done yet"
    NOT_CAUGHT_UP = "the replica has not caught up"
    NOT_A_VOTER = "the replica is not a voter"
    INVALID = "the members asked for are not valid"


class Send(Struct, frozen=True, gc=False):
    """An order to send entries to a peer. The shell reads from ``start`` on as much as its budget allows, at whole
    batches, and calls ``Raft.sent(send, end, size_bytes)`` for the `Append`; without a chance to read,
    ``Raft.send_failed``.
    """

    to: ReplicaId
    start: RaftPosition
    limit: RaftPosition
    """End of what may be sent; at least ``start``. If both are equal the append is empty."""
    serial: int
    """Tells this order from earlier ones to the same peer."""


class Outgoing(Struct, frozen=True):
    """A message without payload, to be sent now."""

    to: ReplicaId
    message: Message


class RoleChange(Struct, frozen=True):
    """The replica's role, term or known leader has changed."""

    role: Role
    term: Term
    leader: ReplicaId
    """`NO_REPLICA` while unknown."""


class InstallNeeded(Struct, frozen=True, gc=False):
    """Leader: ``to`` needs entries from before the start of the log. The shell picks a committed point and its files,
    and calls ``Raft.offer_install``; the transfer itself is the shell's. If it fails: ``Raft.install_failed``.
    """

    to: ReplicaId
    minimum: RaftPosition
    """The point picked is at or past it."""


class Install(Struct, frozen=True):
    """Follower: fetch the files up to ``end`` from the leader and verify them.

    Then ask ``Raft.adopt(install)``. On yes the files replace the whole log atomically; that counts as a write in the
    term that ``adopt`` returns, and its sync is reported like one. On None they are thrown away, because the log
    has reached that point by itself. An order for a later end replaces this one.
    """

    source: ReplicaId
    end: LogPoint
    configuration: Configuration


class ReadConfirmed(Struct, frozen=True, gc=False):
    """A read barrier has passed: this replica was leader after the read was asked for. Serve it once ``position`` is
    applied.
    """

    read_id: ReadId
    position: RaftPosition


class Ready(Struct, frozen=True):
    """What the shell has to do now; the module says in which order."""

    committed: RaftPosition
    """End of what a quorum has on disk, and this replica has in its log. Never moves back."""
    visible: RaftPosition
    """End of what clients may see. Equal to ``committed``, or past it under ``write.caching``."""
    state: VoteState | None = None
    write: LogWrite | None = None
    role: RoleChange | None = None
    sends: tuple[Send, ...] = ()
    messages: tuple[Outgoing, ...] = ()
    installs: tuple[InstallNeeded, ...] = ()
    install: Install | None = None
    reads: tuple[ReadConfirmed, ...] = ()
    failed_reads: tuple[ReadId, ...] = ()
    """Ids of read barriers that this replica can no longer confirm. No read was served by them."""
    deadline_us: TimeUs | None = None
    """Set if the next tick is due earlier than the last Ready said. When a deadline has passed without effect, because
    the leader sent something in between, the Ready after the tick sets the next one."""
