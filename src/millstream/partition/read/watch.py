"""A fetch that waits for one partition to change, on the partition's home shard.

A watch is armed by a read that found nothing, in the same step as the read, so that no change can fall between them.
It says so once, and is armed again by the next such read. If its reader has a fetch session, the session gets the
notice (and outlives the request), otherwise the fetch that armed it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from millstream.core.fetch_session import SessionPartition
from millstream.model.quantities import ShardId

if TYPE_CHECKING:
    from millstream.partition.partition import Partition


class Woken(Protocol):
    """A fetch without a session."""

    def wake(self, asked: SessionPartition) -> None: ...


WatchNumber: TypeAlias = int
"""Number of a watch that is armed on another shard, unique in the life of the shard that armed it."""

Unwatch = Callable[[ShardId, WatchNumber], None]


class Watch:
    """One reader's interest in one partition.

    At most one of ``partition`` (armed on this shard) and ``remote`` (armed on another: shard and watch number) is set.
    """

    __slots__ = ("asked", "call", "partition", "remote")

    def __init__(self, asked: SessionPartition) -> None:
        self.asked = asked
        self.call: Woken | None = None
        self.partition: Partition | None = None
        self.remote: tuple[ShardId, WatchNumber] | None = None

    def arm(self, partition: "Partition") -> None:
        """Wait for ``partition``, a partition of this shard."""
        self.partition = partition
        partition.waiters.readers.add(self)

    def wake(self) -> None:
        """The partition changed."""
        self.partition = None
        self.remote = None
        if self.asked.session is not None:
            self.asked.changed()
        elif self.call is not None:
            self.call.wake(self.asked)

    def disarm(self, unwatch: Unwatch) -> None:
        """Stop watching; ``unwatch`` gives up a watch on another shard. The session's entry drops the watch: together
        they would be a reference cycle, which a busy shard would keep for long (`shard.collector`).
        """
        if self.partition is not None:
            self.partition.waiters.readers.discard(self)
            self.partition = None
        if self.remote is not None:
            unwatch(*self.remote)
            self.remote = None
        self.call = None
        self.asked.watch = None
