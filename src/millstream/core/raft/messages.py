"""Messages between the replicas of one Raft group, and what they are made of.

A message names positions, terms, replicas and counts, never payload. The shell puts an envelope around it: the group,
the sender, the receiver, and for an `Append` the bytes of the record batches it covers. The network may lose, delay,
repeat and reorder messages; no answer depends on their order. All values are frozen and may be shared.

Positions are exclusive ends (`RaftPosition`). A *run* is a stretch of entries of one term; the first entry of every
term is its term start. A batch of records is one unit: every position in a message lies between two batches or
control entries of the log that it speaks of, never inside a batch.

::

    candidate ──VoteRequest──►            ◄──VoteReply──            election; with `pre` it changes nothing
    leader    ──Append──►                 ◄──AppendReply──          entries; the reply follows their sync
                                          ◄──AppendRejected──       the entry before them does not match
              ──Heartbeat──►              ◄──HeartbeatReply──       leadership and commit of a quiet group
              ──InstallOffer──►           ◄──AppendReply──          transfer of files; the reply follows adoption
              ──TimeoutNow──►                                       leadership transfer: stand for election at once
                                          ◄──NewerTerm──            the sender's term is over
              ◄──Inquiry──                ──InquiryReply──►         a replica that has lost its log comes back

Sources: Ongaro, "Consensus: Bridging Theory and Practice" (2014), chapters 3, 4, 6 and 9; rejection hints: etcd raft.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from millstream.model.replication import InquiryNumber, LogPoint, RaftPosition, ReplicaId, Term, TermRun


class TermStart(Struct, frozen=True, tag=0):
    """Control entry: the first entry of a term. Its commit commits what earlier terms left."""


class Configuration(Struct, frozen=True, tag=1):
    """Control entry: the members of the group. It is in force from its append on, and until it is truncated.

    While ``outgoing`` is not empty the configuration is joint: an election and a commit need a majority of ``voters``
    and a majority of ``outgoing``. Each tuple has no replica twice; ``learners`` are in neither of the others.
    """

    voters: tuple[ReplicaId, ...]
    """In order of preference for leadership, the first preferred."""
    outgoing: tuple[ReplicaId, ...] = ()
    learners: tuple[ReplicaId, ...] = ()


class LogStart(Struct, frozen=True, tag=2):
    """Control entry: records below ``offset`` may go. Replicas trim when it is committed; it never moves back."""

    offset: int
    """Kafka offset of the first record that stays."""


class Opaque(Struct, frozen=True, tag=3):
    """Control entry that the core only carries. Its kind and its bytes mean something to the shell alone."""

    kind: int
    payload: bytes
    """At most `MAX_OPAQUE_BYTES`."""


MAX_OPAQUE_BYTES = 64 * 1024

Control: TypeAlias = TermStart | Configuration | LogStart | Opaque


class ControlEntry(Struct, frozen=True):
    """A control entry in its place: it takes one position and no Kafka offset."""

    position: RaftPosition
    """Where the entry starts; it ends at ``position + 1``."""
    term: Term
    control: Control


class VoteRequest(Struct, frozen=True, tag=0):
    """A candidate asks for a vote in ``term``.

    With ``pre`` it asks whether it would get one: the candidate is still in an earlier term, and an answer changes no
    state on either side.
    """

    term: Term
    log_end: LogPoint
    """End of the candidate's log, synced or not."""
    pre: bool
    transfer: bool
    """The leader has asked the candidate to stand: a voter in contact with its leader grants the vote all the same."""


class VoteReply(Struct, frozen=True, tag=1):
    """A vote. It leaves only when the voter's disk holds the vote; a pre-vote leaves at once.

    ``term`` repeats the request's term if the vote is granted, and is the voter's own term otherwise.
    """

    term: Term
    granted: bool
    pre: bool


class Append(Struct, frozen=True, tag=2):
    """Entries from ``prev`` up to the last run's end, and the leader's commit. Without runs it only checks ``prev``.

    The shell attaches the record batches between ``prev`` and the end, in order and without the control entries,
    which stand in ``controls``.
    """

    term: Term
    prev: LogPoint
    """Where the entries start, with the term of the entry before them."""
    runs: tuple[TermRun, ...]
    controls: tuple[ControlEntry, ...]
    """The control entries of this stretch, in order, term starts among them."""
    committed: RaftPosition
    """Leader's committed end; may lie past the end of this message."""
    visible: RaftPosition
    """Leader's visible end, at least ``committed``."""
    round: int
    """The leader's count of rounds. A reply repeats the newest one seen, which proves leadership up to that round."""


class AppendReply(Struct, frozen=True, tag=3):
    """What the follower holds of this leader's log. It leaves only when ``durable`` is on the follower's disk."""

    term: Term
    received: RaftPosition
    """End of what matches the leader's log, synced or not; counts for the visible end only."""
    durable: RaftPosition
    """End of what matches and is synced; counts for the commit. At most ``received``."""
    round: int


class AppendRejected(Struct, frozen=True, tag=4):
    """The follower's log has no entry like ``prev``; nothing was appended."""

    term: Term
    prev_position: RaftPosition
    """Repeats the position of the append's ``prev``, which tells an answer to an old append."""
    hint: LogPoint
    """The follower's newest point at or below ``prev`` whose term is at most the term of ``prev``. The logs match
    nowhere above it."""
    round: int
    damaged: bool = False
    """The follower has lost entries that it once reported as durable; the leader forgets what it reported."""


class Heartbeat(Struct, frozen=True, tag=5):
    """The leader is there. A group that sent an append to the same replica within the interval needs none."""

    term: Term
    committed: RaftPosition
    visible: RaftPosition
    round: int


class HeartbeatReply(Struct, frozen=True, tag=6):
    """The follower is there. The positions are those of `AppendReply`; short of what was sent, entries were lost."""

    term: Term
    received: RaftPosition
    durable: RaftPosition
    round: int


class TimeoutNow(Struct, frozen=True, tag=7):
    """Leadership transfer: the receiver stands for election at once, without a pre-vote."""

    term: Term


class InstallOffer(Struct, frozen=True, tag=8):
    """The leader offers verified files up to ``end``, because the log before it can't be appended entry by entry.

    The offer may be repeated. A follower whose committed end is at or past ``end`` answers as if it had installed it.
    """

    term: Term
    end: LogPoint
    """A committed point."""
    configuration: Configuration
    """Members in force at ``end``."""
    round: int


class NewerTerm(Struct, frozen=True, tag=9):
    """The answer to a message of a term that is over: the sender steps down or asks again in a newer term."""

    term: Term


class Inquiry(Struct, frozen=True, tag=12):
    """A replica that has lost its log asks where the group is (`rejoining`)."""

    term: Term
    """The sender's, as far as it knows."""
    number: InquiryNumber
    """Tells the questions of one life of the sender from those of another."""


class InquiryReply(Struct, frozen=True, tag=13):
    """The answer."""

    term: Term
    """Term of the replica that answers."""
    number: InquiryNumber
    """Repeats the question's."""
    end: RaftPosition
    """End of its log; `UNKNOWN_END` if it has lost its log and its term, too."""
    leads: bool
    """Whether it leads in ``term``."""


Message: TypeAlias = (
    VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | AppendRejected
    | Heartbeat
    | HeartbeatReply
    | TimeoutNow
    | InstallOffer
    | NewerTerm
    | Inquiry
    | InquiryReply
)
