"""The interface of a Raft group for partitions and the controller, for any number of voters.

::

    partition ──replicate──► Group ──write──► Log              `SoleVoterGroup`: one voter
              ◄──on_commit──       ◄─durable─                  `ReplicatedGroup`: several, over `core.raft`

`replicate` is the only way a batch enters a log that this replica leads. The group itself writes batches of a leader on
another broker, and reports them by ``on_replicated``. ``on_commit`` announces each new end of what clients may see,
once and in order.

**What an owner may rely on.** A commit is announced only for entries that a quorum has synced; with write caching, for
entries that a quorum has in memory. ``on_resign`` comes before any other effect of a lost leadership: a batch whose
commit was not announced by then has an unknown outcome, and a later announcement at the same offset may be about
another batch. What was announced as committed is never truncated.

**Bad input.** A call that needs the leader raises on a replica that does not lead, and changes nothing.
**Crash.** The group continues from what the log holds on disk. **Overload.** `ArenaFull`; nothing has changed.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.errors import MillstreamError
    from millstream.model.quantities import Offset
    from millstream.model.replication import EntryKind, RaftPosition, ReplicaId, Term, TimeUs
    from millstream.raft.stored import OwnerHistory
    from millstream.storage.log.entries import SentBatch
    from millstream.storage.log.importing import StagedFiles
    from millstream.storage.log.log import Log


class GroupRole(Enum):
    """Role of a replica for its owner."""

    LEADING = "leading"
    FOLLOWING = "following"


class PeerState(NamedTuple):
    """A leader's view of another member. A time is when the peer last answered, on the shard's monotonic clock."""

    replica: ReplicaId
    received: RaftPosition
    durable: RaftPosition
    contact_us: TimeUs


class GroupEvents:
    """Events of a group for its owner. The owner sets its callbacks when it is constructed. The group calls them on its
    shard.
    """

    __slots__ = (
        "on_commit",
        "on_install",
        "on_lead",
        "on_owner_entry",
        "on_replicated",
        "on_resign",
        "on_serving",
        "on_synced",
        "on_truncate",
    )

    on_commit: Callable[[Offset], None]
    """The high watermark has moved to the offset given (exclusive)."""
    on_synced: Callable[[Offset], None]
    """This replica leads and has synced its own log up to the given offset (exclusive); the others may not have. A
    sole voter never calls it, because its synced entries are committed.
    """
    on_lead: Callable[[Term], None]
    """This replica leads in the given term and accepts batches. Entries of earlier terms may not be committed yet."""
    on_serving: Callable[[Term], None]
    """The term start of this leadership is committed: this replica knows every committed entry. After ``on_commit``
    for the same entries."""
    on_resign: Callable[[], None]
    """This replica no longer leads."""
    on_owner_entry: Callable[[EntryKind, bytes], None]
    """An entry of the owner is committed: its kind and its payload. Called once for each entry, in order, except for
    those that `Group.owner_history` returned.
    """
    on_replicated: Callable[[Sequence[SentBatch]], None]
    """Batches of a leader on another broker were written to the log; they are not committed yet. The views are valid
    during the call.
    """
    on_install: Callable[[StagedFiles], None] | None
    """Files that replace the log were received, because the leader cannot send its entries one by one. The owner closes
    this group at once, lets the storage adopt the files (``ShardStorage.adopt_log``) and opens the group again. None if
    the owner cannot do that; the replica then stays behind.
    """
    on_truncate: Callable[[Offset], None]
    """Batches from the given offset on are about to be truncated; none of them was announced as committed."""

    def __init__(self) -> None:
        self.on_commit = _nothing
        self.on_synced = _nothing
        self.on_lead = _nothing
        self.on_owner_entry = _no_entry
        self.on_serving = _nothing
        self.on_resign = _nothing_at_all
        self.on_replicated = _nothing
        self.on_install = None
        self.on_truncate = _nothing


class Group(Protocol):
    """One Raft group on the home shard of its log.

    Shard: created, called and closed on that shard only.
    """

    @property
    def write_caching(self) -> bool:
        """Whether entries that a quorum has in memory are visible. May change at any time; visible entries stay
        visible.
        """
        ...

    @write_caching.setter
    def write_caching(self, on: bool) -> None: ...

    @property
    def events(self) -> GroupEvents: ...

    @property
    def log(self) -> Log: ...

    @property
    def term(self) -> Term:
        """Kafka's leader epoch: of the leadership while ``role`` is LEADING, else the newest that is known."""
        ...

    @property
    def role(self) -> GroupRole: ...

    @property
    def is_serving(self) -> bool:
        """Whether this replica leads and its term start is committed."""
        ...

    @property
    def knows_committed(self) -> bool:
        """Whether this replica leads and knows all that is committed: its term start is, or the log was empty before
        it.
        """
        ...

    @property
    def leader(self) -> ReplicaId:
        """The other replica that leads. `NO_REPLICA` while this one leads, or no leader is known."""
        ...

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of what clients may see, as an offset. At least ``committed_offset``."""
        ...

    @property
    def committed_offset(self) -> int:
        """End (exclusive) of what a quorum has on disk and this replica's log holds, as an offset."""
        ...

    @property
    def committed_position(self) -> RaftPosition:
        """End (exclusive) of what a quorum has on disk and this replica's log holds, as a Raft position."""
        ...

    @property
    def elects(self) -> bool:
        """Whether its leader is elected. A sole voter that never had other members always leads."""
        ...

    @property
    def voters(self) -> int:
        """Number of the replicas that vote."""
        ...

    @property
    def peers(self) -> list[PeerState]:
        """The other members as this leader knows them; empty if this replica does not lead."""
        ...

    @property
    def end_position(self) -> RaftPosition:
        """End (exclusive) of this replica's log: right after `replicate` the end of that batch."""
        ...

    def replicate(self, views: Sequence[memoryview], size: int, count: int, max_timestamp_ms: int) -> Offset:
        """Propose one batch of ``count`` records and write it; return its base offset. The bytes are copied.

        Park its acknowledgement by (``end_position``, ``term``).

        Raises:
            Retriable: this replica does not lead, or is handing its leadership over (NOT_LEADER_OR_FOLLOWER).
            iobuf.ArenaFull: no memory; nothing was proposed.
            Rejected: the batch is too large.
        """
        ...

    def propose_owner_entry(self, kind: EntryKind, payload: bytes) -> None:
        """Propose an entry of the owner. It takes no offset; ``on_owner_entry`` follows on each replica. ``payload``
        has at most `core.raft.messages.MAX_OPAQUE_BYTES`.

        Raises:
            Retriable: this replica does not lead.
            iobuf.ArenaFull: no memory; nothing was proposed.
        """
        ...

    def owner_history(self) -> OwnerHistory:
        """The owner's committed entries when the group was opened."""
        ...

    def fold_with(self, give_state: Callable[[], bytes]) -> None:
        """When the owner's entries are folded, ``give_state`` returns the state that they produce. After the next start
        the state may include entries that `owner_history` returns, too.
        """
        ...

    def propose_log_start(self, offset: Offset) -> None:
        """Let the log start at ``offset``. When that is agreed each replica trims its log (``log.owner.on_trimmed``).

        Raises:
            Retriable: this replica does not lead.
            Rejected: ``offset`` is after the committed end.
            iobuf.ArenaFull: no memory; nothing was proposed.
        """
        ...

    def halt(self) -> None:
        """The owner has failed: from now on this replica sends, acknowledges and announces nothing. The group is closed
        later.
        """
        ...

    def transfer(self, to: ReplicaId) -> None:
        """Start to hand the leadership over to another voter; ``on_resign`` follows when that has succeeded.

        Raises:
            Retriable: this replica does not lead, or hands over already.
            Rejected: ``to`` is no voter, or has not caught up.
        """
        ...

    def read_barrier(self, done: Callable[[MillstreamError | None], None]) -> None:
        """Call ``done(None)`` when a quorum has confirmed that this replica led after this call, and everything
        committed then is announced; call it with the error otherwise.
        """
        ...


def _nothing(_: object) -> None:
    """The default callback: ignores the event."""


def _no_entry(_kind: EntryKind, _payload: bytes) -> None:
    """The default callback of an owner that proposes no entries."""


def _nothing_at_all() -> None:
    """The default callback: ignores the event."""
