"""What the owner of a log, its partition or its Raft group, gives it: callbacks, and state that storage asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.producer_state import ProducerState
    from millstream.model.replication import RaftPosition, Term


class LogOwner:
    """One per log. Everything is None until the partition has been made; the partition writes all fields."""

    __slots__ = (
        "active_producers",
        "committed",
        "first_unstable",
        "move_start",
        "on_durable",
        "on_failed",
        "on_persisted",
        "on_trimmed",
        "producer_snapshot",
        "producers",
    )

    def __init__(self) -> None:
        self.on_durable: Callable[[int], None] | None = None
        """Called with the new ``durable_offset``, at most once a tick."""
        self.on_persisted: Callable[[RaftPosition, Term], None] | None = None
        """Called with the Raft position up to which the log is durable, and the ``write_term`` of the newest write
        there; at most once a tick, and not while the end is being cut: the cut has a callback of its own."""
        self.on_trimmed: Callable[[], None] | None = None
        """Called when ``start_offset`` has moved."""
        self.on_failed: Callable[[str, Exception], None] | None = None
        """The boundary of the partition (``partition.boundary``); None for a log whose fault is its shard's."""
        self.producer_snapshot: Callable[[], bytes | None] | None = None
        """Returns the producers' state as of ``snapshot_offset``; called by checkpoints."""
        self.committed: Callable[[], int] | None = None
        """Returns the offset below which nothing is ever truncated (exclusive); None if the log is never cut."""
        self.producers: ProducerState | None = None
        """The partition's producers and transactions, for compaction and the archive."""
        self.first_unstable: Callable[[], int] | None = None
        """Returns the first offset of the oldest open transaction, -1 without one."""
        self.move_start: Callable[[Offset], None] | None = None
        """Asks the group to agree on a log start, for retention; None if the log trims itself."""
        self.active_producers: Callable[[], dict[int, int]] | None = None
        """Returns producer id → last offset; called by compaction."""

    def silence(self) -> None:
        """The log is closed: report nothing more."""
        self.on_durable = self.on_persisted = self.on_trimmed = None

    def truncated_never(self, end: Offset) -> Offset:
        """``end``, or the end (exclusive) of what no truncation takes if that is lower."""
        return end if self.committed is None else Offset(min(self.committed(), end))

    def stable(self, durable_offset: Offset) -> Offset:
        """End (exclusive) of what retention and compaction may look at: durable, never truncated, and of transactions
        that have ended.
        """
        end = self.truncated_never(durable_offset)
        unstable = -1 if self.first_unstable is None else self.first_unstable()
        return end if unstable < 0 else Offset(min(end, unstable))
