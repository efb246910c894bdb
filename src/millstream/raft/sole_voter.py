"""A Raft group with one voter, this replica: the fast path of a single node. `group` describes the contract.

With one voter Raft has nothing left to decide: what this replica has synced is on a quorum's disks. ``replicate`` hands
the bytes to the log, which writes them in this turn's group commit; the durable end that comes back is the high
watermark.

It leads from its creation on and for ever, so it announces neither a leadership nor the loss of one. A crash at any
point leaves the log's durable prefix; terms tell a rewritten suffix from what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.replication import NO_REPLICA, RaftPosition, ReplicaId, Term
from millstream.raft.group import GroupEvents, GroupRole, PeerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.errors import MillstreamError
    from millstream.model.quantities import Offset
    from millstream.storage.log.log import Log


class SoleVoterGroup:
    """One group with its log.

    Shard: created, called and closed on the log's home shard only.
    """

    __slots__ = ("events", "high_watermark", "log", "term", "write_caching")

    role = GroupRole.LEADING
    is_serving = True
    leader: ReplicaId = NO_REPLICA

    def __init__(self, log: Log, term: int, *, write_caching: bool = False) -> None:
        self.events = GroupEvents()
        self.log = log
        self.term = Term(term)
        """Term of this life of the log; never changes."""
        self.write_caching = write_caching
        self.high_watermark: int = log.next_offset
        """End (exclusive) of what was announced, and readers may see."""
        log.on_durable = self.on_durable

    @property
    def committed_offset(self) -> int:
        """End (exclusive) of what is on disk, as an offset."""
        return self.log.durable_offset

    @property
    def committed_position(self) -> RaftPosition:
        """The same as a Raft position."""
        return self.log.durable_end.raft_position

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
        base: Any = log.next_offset
        term = self.term
        last: Any = base + count - 1  # quantities by annotation: a NewType's call costs 0.1 µs a batch
        pieces = log.make_room(views, size, last, term)
        log.write(views, size, base, last, term, max_timestamp_ms, pieces)  # pyright: ignore[reportArgumentType]
        if self.write_caching:
            self._announce(log.next_offset)
        return base

    def propose_log_start(self, offset: Offset) -> None:
        """Let the log start at ``offset``; ``log.on_trimmed`` follows when that is durable."""
        self.log.trim_prefix(offset)

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
            self._announce(end_offset)

    def _announce(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.events.on_commit(high_watermark)
