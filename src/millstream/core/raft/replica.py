"""State of one replica of one group: records that the verbs of this room change.

`Replica` joins them. Each record has one subject: the vote, the ends of the log, patience with the leader, what goes
out, and, on a leader only, the peers. No decision is made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.messages import LogPoint, Message
from millstream.core.raft.options import MAX_PRIORITY
from millstream.core.raft.ready import UNKNOWN_END, Install, LogWrite, Outgoing, ReadConfirmed, Role, VoteState
from millstream.core.raft.term_log import TermLog
from millstream.model.replication import (
    NO_REPLICA,
    InquiryNumber,
    RaftPosition,
    ReadId,
    ReplicaId,
    Round,
    Seed,
    Term,
    TimeUs,
)

if TYPE_CHECKING:
    from millstream.core.raft.options import RaftOptions
    from millstream.core.raft.progress import Progress
    from millstream.core.raft.ready import Recovered

ZERO = RaftPosition(0)
NUMBER_MAX = (1 << 62) - 1
_MASK = (1 << 64) - 1


class Draw:
    """Random numbers from a seed that the shell gives (Steele, Lea and Flood: SplitMix64). Not for secrets."""

    __slots__ = ("_state",)

    def __init__(self, seed: Seed) -> None:
        self._state = seed & _MASK

    def between(self, low_us: int, high_us: int) -> int:
        """A number from ``low_us`` to ``high_us``, both inclusive."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        return low_us + (mixed ^ mixed >> 31) % (high_us - low_us + 1)


class Ballot:
    """Term and vote: what must be on disk before a message of the term leaves (A7).

    ``term`` never falls; within a term ``voted_for`` changes once, from none to one candidate.
    """

    __slots__ = ("durable", "handed_out", "term", "voted_for")

    def __init__(self, state: VoteState) -> None:
        self.term: Term = state.term
        self.voted_for: ReplicaId = state.voted_for
        self.handed_out: VoteState = state
        """What the last Ready asked to persist."""
        self.durable: VoteState = state
        """What the disk is known to hold."""

    def is_durable(self) -> bool:
        """Whether the disk holds this term and this vote."""
        return self.durable.term == self.term and self.durable.voted_for == self.voted_for

    def enter(self, term: Term) -> None:
        """Start a term without a vote."""
        assert term > self.term
        self.term = term
        self.voted_for = NO_REPLICA


class Ends:
    """Ends of the log, all exclusive. ``committed <= visible``, ``durable <= log end``."""

    __slots__ = ("committed", "cut_term", "durable", "verified", "visible")

    def __init__(self, durable: RaftPosition, committed: RaftPosition) -> None:
        self.durable = durable
        """Synced on this replica's disk."""
        self.committed = committed
        """On a quorum's disks. Never falls."""
        self.visible = committed
        """What clients may see. Falls only under write caching, with a truncation."""
        self.verified = committed
        """Follower: end of what is known to match the log of this term's leader; the committed end when a term
        starts."""
        self.cut_term = Term(0)
        """Term of the last truncation: a completion of an earlier term proves nothing about the log of now (A10)."""


class Patience:
    """How long this replica waits for a leader, and whether it may stand."""

    __slots__ = (
        "begins_in",
        "contact_us",
        "damaged_term",
        "damaged_until",
        "forbidden",
        "target",
        "timeout_us",
        "tries",
    )

    def __init__(self, now: TimeUs, damaged_until: RaftPosition | None, damaged_term: Term) -> None:
        self.contact_us = now
        """When the leader last sent something, or this replica's own wait started."""
        self.timeout_us = 0
        """Wait from then on; drawn again with each role and each try."""
        self.tries = 0
        """Elections tried since the last contact with a leader."""
        self.target = MAX_PRIORITY
        """Priority that a candidate must have. Falls with each timeout, and is full again on contact with a leader."""
        self.damaged_until = damaged_until
        """`Recovered.damaged_until`, until a leader has mended the log; None then."""
        self.damaged_term = damaged_term
        """Term when the damage was found."""
        self.forbidden = False
        """The shell does not want this replica to lead, because its node is being drained."""
        self.begins_in: Term | None = None
        """Term whose leader is assigned, if the replica was made just now (`beginning`); None from `Raft.begin` on."""


class Outbox:
    """What the next Ready hands out. Emptied by it."""

    __slots__ = ("failed_reads", "held", "install", "messages", "reads", "write")

    def __init__(self) -> None:
        self.write: LogWrite | None = None
        self.messages: list[Outgoing] = []
        self.held: dict[tuple[ReplicaId, type], Message] = {}
        """Messages of this term that wait until its vote is durable: the newest of a kind for each peer."""
        self.install: Install | None = None
        self.reads: list[ReadConfirmed] = []
        self.failed_reads: list[ReadId] = []


class PendingRead:
    """A read barrier that waits until a majority has answered ``round``."""

    __slots__ = ("position", "read_id", "round")

    def __init__(self, read_id: ReadId, round_: Round, position: RaftPosition) -> None:
        self.read_id = read_id
        self.round = round_
        self.position = position


class Leading:
    """What only a leader has; made when its term starts and dropped when it steps down."""

    __slots__ = (
        "peers",
        "reads",
        "round",
        "term_start_end",
        "timeout_sent",
        "transfer_deadline_us",
        "transferee",
        "unsynced_since_us",
    )

    def __init__(self, term_start_end: RaftPosition) -> None:
        self.peers: dict[ReplicaId, Progress] = {}
        """Every other member."""
        self.term_start_end = term_start_end
        """End of the term start: commit at or past it makes this leader able to serve."""
        self.round = Round(0)
        """Rounds started. An answer to a round proves that this replica led when the round started."""
        self.reads: list[PendingRead] = []
        """In order of their rounds."""
        self.transferee: ReplicaId = NO_REPLICA
        """Who is to take over; proposals are refused until then."""
        self.transfer_deadline_us = TimeUs(0)
        self.timeout_sent = False
        """The transferee has been asked to stand."""
        self.unsynced_since_us: TimeUs | None = None
        """Since when the own disk has had something to sync and synced nothing; None if it has nothing."""


class Rejoining:
    """What a replica that has lost its log asks, and was answered."""

    __slots__ = ("lost", "number", "terms")

    def __init__(self, number: InquiryNumber, *, asks_term: bool) -> None:
        self.number = number
        """Number of this question, counted from the start of the replica."""
        self.terms: dict[ReplicaId, Term] | None = {} if asks_term else None
        """Who has answered the first question, with its term; None once that is answered."""
        self.lost: set[ReplicaId] = set()
        """Who has answered it that it does not know its own term."""


class Replica:
    """One replica of one group.

    Lifecycle: made from what the disk holds, changed by one event at a time, dropped by a crash or with the group.
    """

    __slots__ = (
        "alone",
        "ballot",
        "draw",
        "ends",
        "installing",
        "leader",
        "leading",
        "log",
        "me",
        "now",
        "options",
        "out",
        "patience",
        "rejoining",
        "role",
        "round",
        "votes",
        "write_caching",
    )

    def __init__(self, me: ReplicaId, recovered: Recovered, options: RaftOptions, seed: Seed, now: TimeUs) -> None:
        self.me = me
        self.options = options
        self.draw = Draw(seed)
        self.now = now
        """Time of the event that is being handled."""
        self.log = TermLog(recovered)
        self.ballot = Ballot(recovered.state)
        assert self.log.end_term <= self.ballot.term
        assert recovered.committed <= self.log.end
        self.ends = Ends(self.log.end, max(recovered.committed, recovered.base.position))
        self.patience = Patience(now, recovered.damaged_until, recovered.state.term)
        self.out = Outbox()
        self.role = Role.FOLLOWER
        self.leader: ReplicaId = NO_REPLICA
        """Leader of this term, as far as known."""
        self.round = 0
        """Follower: newest round of this term's leader."""
        self.votes: dict[ReplicaId, bool] = {}
        """Candidate: each answer once (A8)."""
        self.leading: Leading | None = None
        """Set exactly while ``role`` is LEADER."""
        self.installing: LogPoint | None = None
        """Follower: end of the files that the shell is fetching."""
        self.write_caching = False
        self.alone = False
        """Candidate: it is to lead without the votes of others (`forcing`)."""
        self.rejoining: Rejoining | None = None
        """Set until a replica that has lost its log has all of it again."""
        if recovered.damaged_until == UNKNOWN_END:
            self.rejoining = Rejoining(
                InquiryNumber(self.draw.between(1, NUMBER_MAX)), asks_term=recovered.state.is_blank
            )

    def send(self, to: ReplicaId, message: Message) -> None:
        """Send once the vote of this term is durable."""
        if self.ballot.is_durable():
            self.out.messages.append(Outgoing(to, message))
        else:
            self.out.held[to, type(message)] = message

    def send_at_once(self, to: ReplicaId, message: Message) -> None:
        """Send what promises nothing: a pre-vote, or its grant."""
        self.out.messages.append(Outgoing(to, message))

    def release_held(self) -> None:
        """The vote is durable: send what waited for it."""
        self.out.messages.extend(Outgoing(to, message) for (to, _kind), message in self.out.held.items())
        self.out.held.clear()
