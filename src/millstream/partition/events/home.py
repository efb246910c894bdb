"""Feeds and data fetches of event topics, on the partition's home shard: this one, or another one by a hop.

A feed that finds nothing waits on the partition's home shard for a commit, up to its time. A feed with ``stop`` of the
same connection ends those that wait; a topic that becomes complete, a partition that closes or is led elsewhere does,
too. A call whose shard does not answer in time fails retriably; nothing was changed by it.

A feed for which there are events leases buffers of the consumers' pools of its partition (``partition.events.pools``),
and gets what they hold. Without a free buffer it waits for one, up to its time, and then fails retriably.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import MillstreamError
from millstream.iobuf import IoBuf, Releasable
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ArenaOffset, RaftGroupId
from millstream.partition.events.feeds import (
    EVENT_DESCRIPTOR_BYTES,
    FEED_BYTES_MAX,
    DataAsk,
    EventMeters,
    Fed,
    FeedAsk,
    FoundData,
    feed,
    fetch_data,
)
from millstream.partition.events.partition import EventsPartition
from millstream.partition.hop.lookups import TIMEOUT_US
from millstream.partition.hop.messages import Loan, borrow_all, lend_all
from millstream.partition.partition import Gate, Partition
from millstream.partition.table import PartitionTable, Remote
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.storage.shard_storage import ShardStorage

if TYPE_CHECKING:
    from millstream.partition.events.pools import Held
    from millstream.shard.reactor import Timer

FEED: Final = 27
EVENT_DATA: Final = 28

_encode = msgspec.msgpack.Encoder().encode
_decode_feed = msgspec.msgpack.Decoder(FeedAsk).decode
_decode_data = msgspec.msgpack.Decoder(DataAsk).decode
_decode_fed = msgspec.msgpack.Decoder(tuple[Fed, list[Loan], int]).decode
_decode_found = msgspec.msgpack.Decoder(tuple[FoundData, list[Loan]]).decode
_GONE: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_WRONG_KIND: Final = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
_THROTTLED: Final = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
_NO_BUFFER: Final = "no buffer of the partition's consumers' pools (events.partition) was free in time: try again"

FedDone = Callable[[Fed, IoBuf | None, Releasable | None], None]
"""Gets a feed, its metadata, and the lease of both; the caller releases either."""
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

    def feed(self, entry: Partition | Remote, ask: FeedAsk, done: FedDone) -> Callable[[], None]:
        """Feed, now or when there is something. Returns what ends the wait: the feed is answered with what there is."""
        if isinstance(entry, Partition):
            return self._feed_here(entry, self._shard.id, ask, done)

        def answered(answer: bytes | memoryview | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(Fed(_GONE, answer.message), None, None)
                return
            fed, loans, token = _decode_fed(answer)
            metadata = borrow_all(self._mailbox, entry.shard, loans)
            lease = None if token < 0 else self._mailbox.loans.borrow(entry.shard, ArenaOffset(0), 0, token)
            done(fed, metadata, lease)

        timeout_us = TIMEOUT_US + ask.max_wait_ms * 1000
        call_id = self._mailbox.call(entry.shard, FEED, _encode(ask), answered, timeout_us)

        def end() -> None:
            if call_id:  # else it was refused, and learns that in the next turn
                self._mailbox.cancel(call_id)
                done(Fed(), None, None)

        return end

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

    def _feed_here(self, partition: Partition, shard: int, ask: FeedAsk, done: FedDone) -> Callable[[], None]:
        if not partition.gate & Gate.EVENTS:
            done(Fed(_WRONG_KIND, f"{partition.name} is no event topic"), None, None)
            return _nothing
        assert isinstance(partition, EventsPartition), "a topic's kind never changes"
        key = (shard, ask.reader, partition.raft_group)
        if ask.stop:
            for one in list(self._waiting.get(key, ())):
                one.end()
        waiter = _Waiter(self, partition, key, ask, done)
        waiter.look()
        return waiter.end

    def _data_here(self, partition: Partition, ask: DataAsk, done: FoundDone) -> None:
        if not partition.gate & Gate.EVENTS:
            done(FoundData(_WRONG_KIND, f"{partition.name} is no event topic"), None)
            return
        fetch_data(partition, self._storage.reads.events, ask, done, self.meters)

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

        def done(fed: Fed, metadata: IoBuf | None, lease: Releasable | None) -> None:
            loans = [] if metadata is None else lend_all(self._mailbox, metadata)
            tokens = [loan.token for loan in loans]
            if lease is not None:
                tokens.append(self._mailbox.loans.lend(lease))
            reply.send(_encode((fed, loans, -1 if lease is None else tokens[-1])), tokens)

        if partition is None:
            done(Fed(int(self._table.gone(RaftGroupId(ask.raft_group)))), None, None)
        else:
            reply.on_cancel = self._feed_here(partition, sender, ask, done)

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


def _nothing() -> None:
    """The feed is answered."""


class _Waiter:
    """A feed from its arrival to its answer."""

    __slots__ = ("_done", "_home", "_lease", "_over", "_parked", "_timer", "ask", "deadline_us", "key", "partition")

    def __init__(
        self, home: EventsHome, partition: EventsPartition, key: tuple[int, int, int], ask: FeedAsk, done: FedDone
    ) -> None:
        self._home = home
        self.partition = partition
        self.key = key
        self.ask = ask
        self._done = done
        self._parked = False
        self._over = ask.stop
        self._timer: Timer | None = None
        self._lease: Held | None = None
        self.deadline_us = home.now_us() + ask.max_wait_ms * 1000

    def look(self) -> None:
        """Answer if there is something, or wait."""
        ask: FeedAsk | None = self.ask
        if self.ask.offset < self.partition.high_watermark and not self.partition.refusal:
            ask = self._leased()
        if ask is not None:
            feed(self.partition, self._home.storage.reads.events, ask, self._read, self._home.meters)
        elif self._is_over():
            self._done(Fed(_THROTTLED, _NO_BUFFER), None, None)
        else:
            self._park()
            self.partition.pools.consumers.waiting.add(self._again)

    def _leased(self) -> FeedAsk | None:
        """What is asked, within the buffers that were leased for it; None if none is free."""
        ask, pair = self.ask, self.partition.pools.consumers
        events = max(1, min(ask.events_max, FEED_BYTES_MAX // EVENT_DESCRIPTOR_BYTES))
        metadata = max(1, min(ask.max_bytes, FEED_BYTES_MAX))
        room = pair.room(metadata, events * EVENT_DESCRIPTOR_BYTES)
        if room is None:
            return None
        self._lease = pair.take(*room)
        return msgspec.structs.replace(
            ask, max_bytes=min(ask.max_bytes, room[0]), events_max=max(1, room[1] // EVENT_DESCRIPTOR_BYTES)
        )

    def _read(self, fed: Fed, metadata: IoBuf | None) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and metadata is None:
            lease.release()
            lease = None
        elif lease is not None and metadata is not None:
            lease.resize(len(metadata) + len(fed.metadata_sizes), len(fed.descriptors) + len(fed.descriptor_sizes))
        if fed.error or fed.no_more or metadata is not None or self._is_over():
            self._done(fed, metadata, lease)
        elif fed.late:
            self._home.soon(self.look)
        else:
            self._park()

    def _is_over(self) -> bool:
        return self._over or self._home.now_us() >= self.deadline_us

    def _park(self) -> None:
        self._parked = True
        self.partition.waiters.readers.add(self)
        self._timer = self._home.park(self)

    def wake(self) -> None:
        """The partition changed (``partition.waiters.DataWaiter``)."""
        self._again()

    def end(self) -> None:
        """Its time is up, or its consumer stops: it is answered with what there is."""
        self._over = True
        self.partition.waiters.readers.discard(self)
        self._again()

    def _again(self) -> None:
        """Something changed, or a buffer of the pools is free."""
        if self._parked:
            self._parked = False
            self.partition.waiters.readers.discard(self)
            self.partition.pools.consumers.waiting.discard(self._again)
            assert self._timer is not None
            self._timer.cancel()
            self._home.unpark(self)
            self._home.soon(self.look)
