"""Watches (``partition.read.watch``) between shards: armed there for readers here, and armed here for readers there.

A watch that a remote read arms has a number, which its shard chose. It is in the table of its own shard from the read
until it fires or is given up, and armed on a partition of the other shard in between if the read found nothing. Each
side forgets it first and then tells the other, so a notice that crosses another one finds nothing and does no harm.
"""

from typing import Final

import msgspec

from millstream.core.fetch_session import SessionPartition
from millstream.model.quantities import ShardId
from millstream.partition.hop.messages import decode_numbers
from millstream.partition.partition import Partition
from millstream.partition.read.watch import Watch, WatchNumber
from millstream.shard.mailbox import Mailbox, Reply

WAKE: Final = 22
UNWATCH: Final = 23

_encode = msgspec.msgpack.Encoder().encode


class HopWatches:
    """Both ends of the watches of one shard. Invariant: a watch fires once."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._remote: dict[WatchNumber, Watch] = {}  # armed on other shards
        self._next_number: WatchNumber = 1
        self._armed: dict[tuple[int, WatchNumber], RemoteWatch] = {}  # armed here for other shards
        mailbox.serve(WAKE, self._serve_wake)
        mailbox.serve(UNWATCH, self._serve_unwatch)

    # For readers here

    def enter(self, watch: Watch, shard: ShardId) -> WatchNumber:
        """A number for a watch that has none, under which ``shard`` is to arm it."""
        number = self._next_number
        self._next_number += 1
        watch.remote = (shard, number)
        self._remote[number] = watch
        return number

    def not_armed(self, asked: SessionPartition) -> None:
        """The read found something, so the other shard armed nothing."""
        watch = asked.watch
        if isinstance(watch, Watch) and watch.remote is not None:
            self._remote.pop(watch.remote[1], None)
            watch.remote = None

    def unwatch(self, shard: ShardId, number: WatchNumber) -> None:
        """Give up the watch of that number on ``shard``."""
        if self._remote.pop(number, None) is not None:
            self._mailbox.tell(shard, UNWATCH, _encode([number]))

    def _serve_wake(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = sender, reply
        for number in decode_numbers(payload):
            watch = self._remote.pop(number, None)
            if watch is not None:
                watch.remote = None
                watch.wake()

    # For readers of other shards

    def remote_watch(self, shard: ShardId, number: WatchNumber) -> "RemoteWatch":
        """A watch for a read of ``shard``, in place of the one that an earlier read armed under its number. If this
        read finds something, ``shard`` drops the watch.
        """
        self._disarm((shard, number))
        return RemoteWatch(self, shard, number)

    def armed(self, watch: "RemoteWatch") -> None:
        """The watch waits for a partition of this shard."""
        self._armed[watch.key] = watch

    def fired(self, watch: "RemoteWatch") -> None:
        """The partition of the watch changed."""
        if self._armed.pop(watch.key, None) is watch:
            self._mailbox.tell(watch.shard, WAKE, _encode([watch.number]))

    def _serve_unwatch(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = reply
        for number in decode_numbers(payload):
            self._disarm((sender, number))

    def _disarm(self, key: tuple[int, WatchNumber]) -> None:
        watch = self._armed.pop(key, None)
        if watch is not None and watch.partition is not None:
            watch.partition.waiters.readers.discard(watch)


class RemoteWatch:
    """Another shard's watch, armed on a partition of this one."""

    __slots__ = ("_watches", "number", "partition", "shard")

    def __init__(self, watches: HopWatches, shard: ShardId, number: WatchNumber) -> None:
        self._watches = watches
        self.shard = shard
        self.number = number
        self.partition: Partition | None = None

    @property
    def key(self) -> tuple[int, WatchNumber]:
        return (self.shard, self.number)

    def arm(self, partition: Partition) -> None:
        self.partition = partition
        partition.waiters.readers.add(self)
        self._watches.armed(self)

    def wake(self) -> None:
        self.partition = None
        self._watches.fired(self)
