"""A Raft group with one voter, this replica: the fast path of a single node. `group` describes the contract.

With one voter Raft has nothing left to decide: what this replica has synced is on a quorum's disks. ``replicate`` hands
the bytes to the log, which writes them in this turn's group commit; the durable end that comes back is the high
watermark.

It leads from its creation on and for ever, so it announces neither a leadership nor the loss of one. A crash at any
point leaves the log's durable prefix; terms tell a rewritten suffix from what was there before.

`tiers.shared_wal` holds back what it announces, and sets `known_from`: below that an earlier life may have announced
more, and the end of the log is not known.

Entries of the owner are control entries of the log, as in a group of several voters: committed when they are synced,
and folded when there are many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.core.raft.messages import Configuration, Opaque
from millstream.errors import Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA, EntryKind, RaftPosition, ReplicaId, Term
from millstream.raft.group import GroupEvents, GroupRole, PeerState
from millstream.raft.stored import Folded, OwnerHistory, encode_control, encode_folded, owner_history

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.errors import MillstreamError
    from millstream.storage.log.log import Log


FOLD_CONTROLS: Final = 256
"""Control entries that are kept before they are folded."""


class SoleVoterGroup:
    """One group with its log.

    Shard: created, called and closed on the log's home shard only.
    """

    __slots__ = ("_owner_state", "_proposed", "events", "high_watermark", "known_from", "log", "term", "write_caching")

    role = GroupRole.LEADING
    is_serving = True
    leader: ReplicaId = NO_REPLICA
    voters = 1
    elects = False

    def __init__(self, log: Log, term: int, *, write_caching: bool = False) -> None:
        self.events = GroupEvents()
        self.log = log
        self.term = Term(term)
        """Term of the group while the log is open; never changes."""
        self.write_caching = write_caching
        self.high_watermark: int = log.next_offset
        """End (exclusive) of what was announced, and readers may see."""
        self.known_from: int = 0
        """End (exclusive) of what an earlier life may have announced."""
        self._proposed: list[tuple[RaftPosition, Opaque]] = []
        """Entries of the owner that are not synced, with their positions."""
        self._owner_state: Callable[[], bytes] = lambda: self.owner_history().state
        log.owner.on_durable = self.on_durable

    @property
    def knows_committed(self) -> bool:
        """See `group.Group.knows_committed`."""
        return self.high_watermark >= self.known_from

    @property
    def committed_offset(self) -> int:
        """End (exclusive) of what is on disk, as an offset."""
        return self.log.durable_offset

    @property
    def committed_position(self) -> RaftPosition:
        """The same as a Raft position."""
        return self.log.ends.durable.raft_position

    @property
    def peers(self) -> list[PeerState]:
        """There is no other member."""
        return []

    @property
    def end_position(self) -> RaftPosition:
        """End (exclusive) of the log."""
        return self.log.next_raft_position

    def replicate(self, views: Sequence[memoryview], size: int, count: int, max_timestamp_ms: int) -> Offset:
        """Produce 6/8. Propose one batch of ``count`` records; return its base offset.

        The bytes are copied before this returns. ``on_commit`` follows when they are synced.

        Raises:
            iobuf.ArenaFull: no memory for the copy; nothing was proposed.
        """
        log = self.log
        base, term = log.next_offset, self.term
        last: Offset = base + count - 1  # pyright: ignore[reportAssignmentType] - a NewType's call costs 0.1 µs a batch
        pieces = log.make_room(views, size, last, term)
        log.write(views, size, base, last, term, max_timestamp_ms, pieces)  # pyright: ignore[reportArgumentType]
        if self.write_caching:
            self._announce(log.next_offset)
        return base

    def propose_log_start(self, offset: Offset) -> None:
        """Let the log start at ``offset``; ``log.owner.on_trimmed`` follows when that is durable."""
        self.log.trim_prefix(offset)

    def propose_owner_entry(self, kind: EntryKind, payload: bytes) -> None:
        """Append an entry of the owner; ``on_owner_entry`` follows when it is durable."""
        log = self.log
        if log.closed:
            raise Unavailable(f"{log.name}: the log is closed", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        entry = Opaque(kind, payload)
        self._proposed.append((log.append_control(self.term, encode_control(entry)).position, entry))

    def owner_history(self) -> OwnerHistory:
        """The owner's entries in the log, which was just opened."""
        return owner_history(self.log, self.log.ends.durable.raft_position)

    def fold_with(self, give_state: Callable[[], bytes]) -> None:
        """Fold the owner's entries into what ``give_state`` says."""
        self._owner_state = give_state

    def halt(self) -> None:
        """There is no other replica. The log, which is closed, announces nothing."""

    def transfer(self, to: ReplicaId) -> None:
        """There is no other voter.

        Raises:
            Rejected: always.
        """
        raise Rejected(f"{self.log.name}: replica {to} is no voter of this group", ErrorCode.INELIGIBLE_REPLICA)

    def read_barrier(self, done: Callable[[MillstreamError | None], None]) -> None:
        """A sole voter always leads."""
        done(None)

    def on_durable(self, end_offset: int) -> None:
        """The log's sync has reached ``end_offset`` (exclusive)."""
        if end_offset > self.high_watermark:
            self._announce(Offset(end_offset))
        if self._proposed:
            self._apply(self.log.ends.durable.raft_position)

    def _apply(self, end: RaftPosition) -> None:
        """Entries of the owner before ``end`` are durable."""
        while self._proposed and self._proposed[0][0] < end:
            _, entry = self._proposed.pop(0)
            self.events.on_owner_entry(EntryKind(entry.kind), entry.payload)
        if len(self.log.raft.controls.entries) > FOLD_CONTROLS:
            self.log.fold_controls(end, encode_folded(Folded(Configuration(()), self._owner_state())))

    def _announce(self, high_watermark: Offset) -> None:
        self.high_watermark = high_watermark
        self.events.on_commit(high_watermark)
