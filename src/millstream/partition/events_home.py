"""Feeds and data fetches of event topics, on the partition's home shard: this one, or another one by a hop.

A feed that finds nothing waits on the partition's home shard for a commit, up to its time. A feed with ``stop`` of the
same connection ends those that wait; a topic that becomes complete, a partition that closes or is led elsewhere does,
too. A call whose shard does not answer in time fails retriably; nothing was changed by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import MillstreamError
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import RaftGroupId
from millstream.partition.events import DataAsk, EventMeters, Fed, FeedAsk, FoundData, feed, fetch_data
from millstream.partition.hop_messages import Loan, borrow_all, lend_all
from millstream.partition.lookups import TIMEOUT_US
from millstream.partition.partition import Gate, Partition
from millstream.partition.table import PartitionTable, Remote
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.storage.shard_storage import ShardStorage

if TYPE_CHECKING:
    from millstream.shard.reactor import Timer

FEED: Final = 27
EVENT_DATA: Final = 28

_encode = msgspec.msgpack.Encoder().encode
_decode_feed = msgspec.msgpack.Decoder(FeedAsk).decode
_decode_data = msgspec.msgpack.Decoder(DataAsk).decode
_decode_fed = msgspec.msgpack.Decoder(tuple[Fed, list[Loan]]).decode
_decode_found = msgspec.msgpack.Decoder(tuple[FoundData, list[Loan]]).decode
_GONE: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_WRONG_KIND: Final = int(ErrorCode.INVALID_TOPIC_EXCEPTION)

FedDone = Callable[[Fed, IoBuf | None], None]
FoundDone = Callable[[FoundData, IoBuf | None], None]


class EventsHome:
    """Both ends of the hop on one shard, and the feeds that wait on it.

    Lifecycle: made with the shard's ``Home``. Shard: one each.
    """

    def __init__(self, shard: Shard, table: PartitionTable, storage: ShardStorage) -> None:
        self._shard = shard
        self._mailbox = shard.mailbox
        self._table = table
        self._storage = storage
        self._waiting: dict[tuple[int, int, int], set[_Waiter]] = {}
        self.meters = EventMeters(shard.stats)
        shard.mailbox.serve(FEED, self._serve_feed)
        shard.mailbox.serve(EVENT_DATA, self._serve_data)

    def feed(self, entry: Partition | Remote, ask: FeedAsk, done: FedDone) -> None:
        """Feed, now or when there is something; the caller releases the metadata."""
        if isinstance(entry, Partition):
            self._feed_here(entry, self._shard.id, ask, done)
            return

        def answered(answer: bytes | memoryview | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(Fed(_GONE, answer.message), None)
                return
            fed, loans = _decode_fed(answer)
            done(fed, borrow_all(self._mailbox, entry.shard, loans))

        timeout_us = TIMEOUT_US + ask.max_wait_ms * 1000
        self._mailbox.call(entry.shard, FEED, _encode(ask), answered, timeout_us)

    def fetch_data(self, entry: Partition | Remote, ask: DataAsk, done: FoundDone) -> None:
        """Fetch data; the caller releases them."""
        if isinstance(entry, Partition):
            self._data_here(entry, ask, done)
            return

        def answered(answer: bytes | memoryview | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(FoundData(_GONE, answer.message), None)
                return
            found, loans = _decode_found(answer)
            done(found, borrow_all(self._mailbox, entry.shard, loans))

        self._mailbox.call(entry.shard, EVENT_DATA, _encode(ask), answered, TIMEOUT_US)

    # -- here ----------------------------------------------------------------------------------------------------------

    def _feed_here(self, partition: Partition, shard: int, ask: FeedAsk, done: FedDone) -> None:
        if not partition.gate & Gate.EVENTS:
            done(Fed(_WRONG_KIND, f"{partition.name} is no event topic"), None)
            return
        key = (shard, ask.reader, partition.raft_group)
        if ask.stop:
            for one in list(self._waiting.get(key, ())):
                one.end()
        _Waiter(self, partition, key, ask, done).look()

    def _data_here(self, partition: Partition, ask: DataAsk, done: FoundDone) -> None:
        if not partition.gate & Gate.EVENTS:
            done(FoundData(_WRONG_KIND, f"{partition.name} is no event topic"), None)
            return
        fetch_data(partition, self._storage.event_reads, ask, done, self.meters)

    def park(self, waiter: _Waiter) -> Timer:
        """A feed waits until something changes or its time is up."""
        self._waiting.setdefault(waiter.key, set()).add(waiter)
        return self._shard.reactor.call_at(waiter.deadline_us, waiter.end)

    def unpark(self, waiter: _Waiter) -> None:
        """It waits no more."""
        others = self._waiting[waiter.key]
        others.discard(waiter)
        if not others:
            del self._waiting[waiter.key]

    def now_us(self) -> int:
        """Time of the shard's clock."""
        return self._shard.reactor.now_us()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once the present turn's commits are all in."""
        self._shard.reactor.call_soon(callback)

    @property
    def storage(self) -> ShardStorage:
        """Of this shard."""
        return self._storage

    # -- the other end -------------------------------------------------------------------------------------------------

    def _serve_feed(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        ask = _decode_feed(payload)
        partition = self._table.by_group.get(ask.raft_group)

        def done(fed: Fed, metadata: IoBuf | None) -> None:
            loans = [] if metadata is None else lend_all(self._mailbox, metadata)
            reply.send(_encode((fed, loans)), [loan.token for loan in loans])

        if partition is None:
            done(Fed(int(self._table.gone(RaftGroupId(ask.raft_group)))), None)
        else:
            self._feed_here(partition, sender, ask, done)

    def _serve_data(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = sender
        ask = _decode_data(payload)
        partition = self._table.by_group.get(ask.raft_group)

        def done(found: FoundData, data: IoBuf | None) -> None:
            loans = [] if data is None else lend_all(self._mailbox, data)
            reply.send(_encode((found, loans)), [loan.token for loan in loans])

        if partition is None:
            done(FoundData(int(self._table.gone(RaftGroupId(ask.raft_group)))), None)
        else:
            self._data_here(partition, ask, done)


class _Waiter:
    """A feed from its arrival to its answer."""

    __slots__ = ("_done", "_home", "_over", "_parked", "_timer", "ask", "deadline_us", "key", "partition")

    def __init__(
        self, home: EventsHome, partition: Partition, key: tuple[int, int, int], ask: FeedAsk, done: FedDone
    ) -> None:
        self._home = home
        self.partition = partition
        self.key = key
        self.ask = ask
        self._done = done
        self._parked = False
        self._over = ask.stop
        self._timer: Timer | None = None
        self.deadline_us = home.now_us() + ask.max_wait_ms * 1000

    def look(self) -> None:
        """Answer if there is something, or wait."""
        feed(self.partition, self._home.storage.event_reads, self.ask, self._read, self._home.meters)

    def _read(self, fed: Fed, metadata: IoBuf | None) -> None:
        over = self._over or self._home.now_us() >= self.deadline_us
        if fed.error or fed.no_more or metadata is not None or over:
            self._done(fed, metadata)
            return
        self._parked = True
        self.partition.data_waiters.add(self)
        self._timer = self._home.park(self)

    def wake(self, raft_group: int) -> None:
        """The partition changed (``partition.DataWaiter``)."""
        _ = raft_group
        self._again()

    def end(self) -> None:
        """Its time is up, or its consumer stops: it is answered with what there is."""
        self._over = True
        self.partition.data_waiters.discard(self)
        self._again()

    def _again(self) -> None:
        if self._parked:
            self._parked = False
            assert self._timer is not None
            self._timer.cancel()
            self._home.unpark(self)
            self._home.soon(self.look)
