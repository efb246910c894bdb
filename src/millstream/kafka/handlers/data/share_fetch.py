"""ShareFetch: acquire records for a member of a share group, and acknowledge earlier ones (KIP-932).

::

    session ─► acknowledge ─► take of each shard in turn ─► something, or too late? ─► answer
                                     ▲                          │ no
                                     └── the session is woken ◄─┘

Acknowledgements are sent to the shards before anything is taken there, and the answer waits for them; a request that
has some does not wait for records. The budgets of records and bytes hold for all partitions together. The partition
that comes first is another one in each epoch. A request for no bytes gets no records, and waits, as in Kafka.

**Bad input.** A request without group or member, of an unknown acquire mode, with acknowledgements in epoch 0, or that
renews and fetches, is INVALID_REQUEST and leaves the session as it is. The answer to the first request of a session
names each partition that was read, later ones only those with records or an error. A session that was replaced while
its fetch waited is INVALID_SHARE_SESSION_EPOCH. **Overload.** Without memory for answers a fetch takes one batch at
most. A full table of sessions is answered after the request's wait, or clients would spin. A client over its quota gets
nothing (``kafka.quotas``).

**Crash, or a client that has gone.** What was acquired is released with the session, or at its deadline.
"""

from typing import TYPE_CHECKING, Final

from millstream.core.share.partition import Acquired, Request
from millstream.iobuf import IoBuf, MemoryClass
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.data.fetch_at_once import ROOM_MAX, Lent
from millstream.kafka.handlers.data.share_places import Finish, acknowledge, is_member, leader_of, place_of
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ShardId
from millstream.share.home import FetchAsk, Place
from millstream.share.served import Taken
from millstream.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, TopicPartition, change
from millstream.wire.messages.leader import NodeEndpoint
from millstream.wire.messages.share_acknowledge import AcknowledgementBatch
from millstream.wire.messages.share_fetch import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionData,
)

if TYPE_CHECKING:
    from millstream.shard.reactor import Timer

MAX_WAIT_MS: Final = 60_000
_BATCHES, _RECORD_LIMIT = 0, 1
"""Acquire modes: whole batches, and exactly so many records."""


class ShareFetchCall:
    """One ShareFetch in progress."""

    __slots__ = (
        "acknowledged",
        "ctx",
        "deadline_us",
        "epoch",
        "node",
        "request",
        "reserved",
        "session",
        "taken",
        "timer",
        "todo",
        "waits",
    )

    def __init__(self, node: Node, ctx: RequestContext, request: ShareFetchRequest, session: ShareSession) -> None:
        self.node = node
        self.ctx = ctx
        self.request = request
        self.session = session
        self.epoch = session.epoch
        """Of the session while this is its newest request."""
        self.deadline_us = ctx.received_us + min(max(request.max_wait_ms, 0), MAX_WAIT_MS) * 1000
        self.acknowledged: dict[TopicPartition, ErrorCode] = {}
        self.taken: dict[TopicPartition, Taken] = {}
        self.todo: list[tuple[ShardId, list[tuple[TopicPartition, Place]]]] = []
        self.waits = False
        """A request with acknowledgements is answered without a wait."""
        self.reserved = 0
        self.timer: Timer | None = None

    def run(self, batches: dict[TopicPartition, list[AcknowledgementBatch]]) -> None:
        """Acknowledge, take, and answer when both are done."""
        request, session = self.request, self.session
        final = request.share_session_epoch == FINAL_EPOCH
        takes = not final and not request.is_renew_ack and request.max_records > 0
        self.waits = takes and not batches
        finish = Finish(len(batches) + 1 + takes, self.answer)
        acknowledge(
            self.node,
            self.ctx,
            session.group_id,
            session.member_id,
            batches,
            self.acknowledged,
            finish,
            renews=request.is_renew_ack,
        )
        if final:
            self.node.share_sessions.end(session)
        if takes:
            self.take(finish)
        finish.settled()

    # Taking

    def take(self, finish: Finish) -> None:
        """Ask the shards, one after the other."""
        if not self.ctx.may_take(self.node.share_partitions.limits_of(self.session.group_id).lock_us):
            finish.settled()
            return
        self.session.woken = False
        shards: dict[ShardId, list[tuple[TopicPartition, Place]]] = {}
        for topic_partition in self.session.in_turn():
            place = place_of(self.node, self.ctx, self.session.group_id, topic_partition)
            if isinstance(place, ErrorCode):
                self.taken[topic_partition] = Taken(place)
            else:
                shards.setdefault(place[0], []).append((topic_partition, place[1]))
        self.todo = list(shards.items()) if self.request.max_bytes > 0 else []
        room = min(self.request.max_bytes, self.node.settings.fetch_max_bytes, ROOM_MAX)
        room = self.ctx.fetch_room(room)
        if not self.reserved and self.node.shard.arena.reserve(MemoryClass.FETCH, max(room, 1)):
            self.reserved = max(room, 1)
        self._take_next(self.request.max_records, finish)

    def _take_next(self, records: int, finish: Finish) -> None:
        room = self.reserved - self._size
        if not self.todo or records <= 0 or (self._size and room <= 0):
            self._settle(finish)
            return
        shard, items = self.todo.pop(0)
        request = Request(
            self.session.member_id,
            self.session.token,
            records,
            self.request.share_acquire_mode == _RECORD_LIMIT,
            max(self.request.batch_size, 1),
        )

        def got(taken: list[Taken]) -> None:
            left = records
            for (topic_partition, _), one in zip(items, taken, strict=True):
                self.taken[topic_partition] = one
                left -= sum(each.last - each.first + 1 for each in one.acquired)
            self._take_next(left, finish)

        holds = any(one.acquired for one in self.taken.values())
        ask = FetchAsk(request, max(room, 1), [place for _, place in items], holds)
        self.node.share_partitions.fetch(shard, ask, got)

    @property
    def _size(self) -> int:
        return sum(len(one.data) for one in self.taken.values() if one.data is not None)

    def _settle(self, finish: Finish) -> None:
        """All shards have answered: that is enough, or the call waits."""
        enough = any(one.acquired or one.error for one in self.taken.values()) or not self.session.partitions
        now_us = self.node.shard.reactor.now_us()
        if enough or not self.waits or self._is_over() or now_us >= self.deadline_us:
            finish.settled()
        elif self.session.woken:
            self.node.shard.reactor.call_soon(self.take, finish)
        else:
            self._park(finish)

    def _is_over(self) -> bool:
        superseded = self.session.epoch != self.epoch or not self.node.share_sessions.is_open(self.session)
        return superseded or self.ctx.connection.closed

    # Waiting

    def _park(self, finish: Finish) -> None:
        """Release the memory, and wait until the session is woken or the time has passed."""
        self._unreserve()
        self.ctx.rest()

        def go_on() -> None:
            if self.timer is None:
                return
            self.timer.cancel()
            self.timer = None
            self.session.wake = None
            self.ctx.connection.intake.parking.go_on(self.ctx)
            if self._is_over():
                finish.settled()
            else:
                self.node.shard.reactor.call_soon(self.take, finish)

        def end() -> None:
            self.deadline_us = 0
            go_on()

        self.timer = self.node.shard.reactor.call_at(self.deadline_us, end)
        self.session.wake = go_on
        self.ctx.connection.intake.parking.wait(self.ctx, end)

    # Answering

    def answer(self) -> None:
        """Build the answer around the batches."""
        ctx, node = self.ctx, self.node
        session = self.session
        final = self.request.share_session_epoch == FINAL_EPOCH
        names_all = self.request.share_session_epoch == INITIAL_EPOCH
        if not final and self._is_over():
            for one in self.taken.values():
                if one.data is not None:
                    one.data.release()
            self._unreserve()
            ctx.respond(refusal(ErrorCode.INVALID_SHARE_SESSION_EPOCH))
            return
        endpoints: list[NodeEndpoint] = []
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        data: list[IoBuf] = []
        for topic_partition in {**self.taken, **self.acknowledged}:
            one = self.taken.get(topic_partition, Taken(ErrorCode.NONE))
            said = self.acknowledged.get(topic_partition)
            if not one.acquired and not one.error and said is None and not names_all:
                continue
            topic_id, index = topic_partition
            topic = topics.setdefault(topic_id, ShareFetchableTopicResponse(topic_id))
            if one.data is not None:
                data.append(one.data)
            topic.partitions.append(
                SharePartitionData(
                    partition_index=index,
                    error_code=one.error,
                    error_message=one.error.name if one.error else None,
                    acknowledge_error_code=said or 0,
                    acknowledge_error_message=said.name if said else None,
                    current_leader=leader_of(node, ctx, topic_partition, one.error or said or one.error, endpoints),
                    records=b"" if one.data is None else one.data,
                    acquired_records=[_acquired(each) for each in one.acquired],
                )
            )
        size = self._size
        sent = None
        if size:
            if self.reserved > size:
                node.shard.arena.unreserve(MemoryClass.FETCH, self.reserved - size)
                self.reserved = size
            sent = Lent(node.shard.arena, data, self.reserved)
            self.reserved = 0
        self._unreserve()
        node.meters.fetched.inc(size)
        session.wake = None
        lock_ms = node.share_partitions.limits_of(session.group_id).lock_us // 1000
        message = ShareFetchResponse(
            acquisition_lock_timeout_ms=lock_ms, responses=[*topics.values()], node_endpoints=endpoints
        )
        ctx.respond_vectored(message, sent)

    def _unreserve(self) -> None:
        if self.reserved:
            self.node.shard.arena.unreserve(MemoryClass.FETCH, self.reserved)
            self.reserved = 0


def _acquired(one: Acquired) -> AcquiredRecords:
    return AcquiredRecords(one.first, one.last, one.count)


def _refuse_later(node: Node, ctx: RequestContext, request: ShareFetchRequest) -> None:
    """There is no seat for another session: answer when the request's wait, or its connection, has ended."""
    parking = ctx.connection.intake.parking

    def answer() -> None:
        timer.cancel()
        parking.go_on(ctx)
        if not ctx.done:
            ctx.respond(refusal(ErrorCode.SHARE_SESSION_LIMIT_REACHED))

    wait_us = min(max(request.max_wait_ms, 0), MAX_WAIT_MS) * 1000
    timer = node.shard.reactor.call_later(wait_us, answer)
    parking.wait(ctx, answer)


def refusal(error: ErrorCode) -> ShareFetchResponse:
    """The answer that refuses a request as a whole."""
    return ShareFetchResponse(error_code=error, error_message=error.name)


def handle(node: Node, ctx: RequestContext, request: ShareFetchRequest) -> None:
    """Find or open the session, and run the call."""
    group_id, member_id, epoch = request.group_id, request.member_id, request.share_session_epoch
    batches = {
        (topic.topic_id, one.partition_index): one.acknowledgement_batches
        for topic in request.topics
        for one in topic.partitions
        if one.acknowledgement_batches
    }
    renews = request.is_renew_ack
    fetches = request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records
    named = group_id is not None and member_id is not None and is_member(group_id, member_id)
    known = request.share_acquire_mode in (_BATCHES, _RECORD_LIMIT)
    if not named or not known or (renews and fetches) or (epoch == INITIAL_EPOCH and batches):
        ctx.respond(refusal(ErrorCode.INVALID_REQUEST))
        return
    assert group_id is not None and member_id is not None
    forgotten = () if epoch == INITIAL_EPOCH else request.forgotten_topics_data  # a new session has nothing to forget

    def found(session: ShareSession | ErrorCode) -> None:
        if session is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            _refuse_later(node, ctx, request)
        elif isinstance(session, ErrorCode):
            ctx.respond(refusal(session))
        else:
            change(
                session,
                ((topic.topic_id, one.partition_index) for topic in request.topics for one in topic.partitions),
                ((topic.topic_id, index) for topic in forgotten for index in topic.partitions),
            )
            ShareFetchCall(node, ctx, request, session).run(batches)

    if epoch == INITIAL_EPOCH:
        node.share_sessions.open(group_id, member_id, ctx.connection, found)
    else:
        node.share_sessions.seek(group_id, member_id, epoch, found)
    ctx.hold()
