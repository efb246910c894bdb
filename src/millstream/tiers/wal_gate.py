"""The gate of one shared partition: what its group may believe of its log when acknowledgements wait for the store.

A group of one voter learns that its log is durable up to the end of what the store has (`shared_wal`). A group of
several replicas learns it from its disk, as without a log in the store.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millstream.model.quantities import BytePosition, Offset
from millstream.model.shared import SharedPartition
from millstream.raft.sole_voter import SoleVoterGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.replication import RaftPosition, Term
    from millstream.tiers.partition_archive import PartitionArchive


class StartInStore:
    """Where the log of a partition starts, as far as the store knows it. It rises only."""

    __slots__ = ("confirmed", "opened", "taken")

    def __init__(self, opened: Offset) -> None:
        self.opened = opened
        """The start of the log when the gate was made."""
        self.confirmed = Offset(0)
        """The largest start that an entry of this log has."""
        self.taken = Offset(0)
        """The same, with the entry that is in flight."""


class Gate:
    """One partition. Between its log and its group from `shared_wal.SharedWal.open` to `close`."""

    __slots__ = (
        "archive",
        "closed",
        "closed_us",
        "confirmed",
        "inner",
        "key",
        "opened",
        "pending_bytes",
        "seen",
        "start",
        "taken",
        "waiting",
    )

    def __init__(self, archive: PartitionArchive) -> None:
        log, owner = archive.log, archive.owner
        self.archive = archive
        self.key = SharedPartition(owner.topic_id.bytes, owner.partition_index)
        self.closed = False
        self.closed_us = 0
        self.confirmed = max(archive.archive.end_offset, log.start_offset, log.files.local_start)
        """Everything below it is in the store. At most the durable end of the log. A group that elects may learn of its
        archive when this gate has passed its log; what the files no longer have is in the archive.
        """
        self.opened = log.durable_offset
        """The durable end of the log when the gate was made."""
        self.taken = self.confirmed
        """End of what is in an entry, confirmed or in flight. At least ``confirmed``."""
        self.start = StartInStore(log.start_offset)
        self.pending_bytes = 0
        """About what is durable and not confirmed."""
        self.seen: BytePosition = log.ends.durable_position
        self.waiting: deque[tuple[Offset, RaftPosition, Term]] = deque()
        """Of a group that elects: durable ends that it does not know yet."""
        self.inner: Callable[[RaftPosition, Term], None] | None = None

    @property
    def is_alone(self) -> bool:
        """Whether this replica's disk is all that acknowledges."""
        return self.archive.group.voters == 1

    @property
    def limit(self) -> Offset:
        """The group may believe that the log is durable up to here."""
        log = self.archive.log
        return Offset(min(self.confirmed, log.durable_offset)) if self.is_alone else log.durable_offset

    @property
    def lags(self) -> bool:
        """Whether there is something that no entry has."""
        log = self.archive.log
        return self.is_alone and (self.taken < log.durable_offset or self.start.taken < log.start_offset)

    def safe_start(self) -> Offset:
        """The log start that is not lost with the disk."""
        return self.start.confirmed if self.is_alone else self.archive.log.start_offset

    def deliver(self) -> None:
        """Tell the group what it may believe."""
        log, group = self.archive.log, self.archive.group
        if self.closed or log.closed:
            return
        if isinstance(group, SoleVoterGroup):
            group.on_durable(self.limit)
            return
        while self.inner is not None and self.waiting and self.waiting[0][0] <= self.limit:
            _, position, term = self.waiting.popleft()
            self.inner(position, term)
