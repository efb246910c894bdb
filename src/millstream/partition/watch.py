"""A fetch that waits for one partition to change, on the partition's home shard.

A watch is armed by a read that found nothing, in the same step as the read, so that no change can fall between them.
It says so once, and is armed again by the next such read. If its reader has a fetch session, the session gets the
notice (and outlives the request), otherwise the fetch that armed it.
"""

from typing import TYPE_CHECKING, Protocol

from millstream.core.fetch_session import SessionPartition

if TYPE_CHECKING:
    from millstream.partition.home import Home
    from millstream.partition.partition import Partition


class Woken(Protocol):
    """A fetch without a session."""

    def wake(self, asked: SessionPartition) -> None: ...


class Watch:
    """One reader's interest in one partition.

    At most one of ``partition`` (armed on this shard) and ``remote`` (armed on another: shard and watch number) is set.
    """

    __slots__ = ("asked", "call", "partition", "remote")

    def __init__(self, asked: SessionPartition) -> None:
        self.asked = asked
        self.call: Woken | None = None
        self.partition: Partition | None = None
        self.remote: tuple[int, int] | None = None

    def arm(self, partition: "Partition") -> None:
        """Wait for ``partition``, a partition of this shard."""
        self.partition = partition
        partition.data_waiters.add(self)

    def wake(self, raft_group: int) -> None:
        """The partition changed."""
        _ = raft_group
        self.partition = None
        self.remote = None
        if self.asked.session is not None:
            self.asked.changed()
        elif self.call is not None:
            self.call.wake(self.asked)

    def disarm(self, home: "Home") -> None:
        """Nobody waits any more. It is of no use from here on, and forgotten: with who reads it makes a cycle, which a
        busy shard would keep for long (`shard.collector`).
        """
        if self.partition is not None:
            self.partition.data_waiters.discard(self)
            self.partition = None
        if self.remote is not None:
            home.unwatch(*self.remote)
            self.remote = None
        self.call = None
        self.asked.watch = None
