"""Acknowledgements of events on the shard of their consumer's coordinator, one after the other for each consumer.

The position that is stored is read, and written if the new one is greater, so two acknowledgements of one consumer must
not interleave, also from several connections. Therefore all of them go to the shard that coordinates the
consumer's group and wait there for those before them.

A shard that does not answer in time is an error that clients repeat; repeating an acknowledgement is harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.coordinator.asks import OFFSET_COMMIT, OFFSET_FETCH
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.partition.hop.lookups import TIMEOUT_US
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)

if TYPE_CHECKING:
    from millstream.coordinator.router import GroupRouter
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply
    from millstream.wire.schema import Message

ACKNOWLEDGE: Final = 29

_COMMIT_VERSION: Final = 9
_FETCH_VERSION: Final = 9


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Positions of one consumer in one topic; -1 only asks. ``seek`` moves backwards, too."""

    consumer: str
    client_id: str | None
    host: str
    topic: str
    topic_id: bytes
    seek: bool
    positions: dict[int, int]
    member_id: str = ""
    member_epoch: int = -1


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """Error code, and the positions afterwards."""

    error: int
    positions: dict[int, int]


Done = Callable[[Stored], None]

_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(Ask).decode
_decode_stored = msgspec.msgpack.Decoder(Stored).decode


class Acknowledgements:
    """Both ends of the hop on one shard, and the queues of the consumers that it coordinates.

    Lifecycle: made with the shard, after its coordinator. Shard: one each.
    """

    def __init__(self, shard: Shard, coordinator: GroupRouter) -> None:
        self._shard_id = shard.id
        self._mailbox = mailbox = shard.mailbox
        self._coordinator = coordinator
        self._queues: dict[str, deque[_Acknowledgement]] = {}
        mailbox.serve(ACKNOWLEDGE, self._serve)

    def store(self, ask: Ask, done: Done) -> None:
        """Store positions, or only ask for them; ``done`` when they are durable."""
        home = self._coordinator.home_of(ask.consumer)
        if home is None or home == self._shard_id:
            self._enter(ask, done)
            return

        def answered(answer: bytes | memoryview | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(Stored(int(ErrorCode.COORDINATOR_NOT_AVAILABLE), {}))
            else:
                done(_decode_stored(answer))

        self._mailbox.call(home, ACKNOWLEDGE, _encode(ask), answered, TIMEOUT_US)

    def _serve(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = sender
        self._enter(_decode_ask(payload), lambda stored: reply.send(_encode(stored)))

    def _enter(self, ask: Ask, done: Done) -> None:
        queue = self._queues.setdefault(ask.consumer, deque())
        queue.append(_Acknowledgement(self._coordinator, ask, lambda stored: self._leave(ask.consumer, stored, done)))
        if len(queue) == 1:
            queue[0].start()

    def _leave(self, consumer: str, stored: Stored, done: Done) -> None:
        queue = self._queues[consumer]
        queue.popleft()
        done(stored)
        if queue:
            queue[0].start()
        else:
            self._queues.pop(consumer, None)


class _Acknowledgement:
    """One request in progress: it reads the stored positions and writes those that are greater."""

    __slots__ = ("_ask", "_coordinator", "_done", "_stored")

    def __init__(self, coordinator: GroupRouter, ask: Ask, done: Done) -> None:
        self._coordinator = coordinator
        self._ask = ask
        self._done = done
        self._stored: dict[int, int] = {}

    def start(self) -> None:
        """Read."""
        ask = self._ask
        topics = [OffsetFetchRequestTopics(name=ask.topic, topic_id=ask.topic_id, partition_indexes=[*ask.positions])]
        self._pass(OFFSET_FETCH, _FETCH_VERSION, OffsetFetchRequestGroup(ask.consumer, topics=topics), self._read)

    def _read(self, answer: Message | ErrorCode) -> None:
        code = answer if isinstance(answer, ErrorCode) else ErrorCode.NONE
        if isinstance(answer, OffsetFetchResponseGroup):
            code = ErrorCode(answer.error_code)
            for topic in answer.topics:
                for one in topic.partitions:
                    code = code or ErrorCode(one.error_code)
                    self._stored[one.partition_index] = one.committed_offset
        moved = {
            index: position
            for index, position in self._ask.positions.items()
            if position >= 0 and (self._ask.seek or position > self._stored.get(index, -1))
        }
        if code or not moved:
            self._done(Stored(int(code), self._stored))
        else:
            self._write(moved)

    def _write(self, moved: dict[int, int]) -> None:
        ask = self._ask
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=position)
            for index, position in moved.items()
        ]
        topic = OffsetCommitRequestTopic(name=ask.topic, topic_id=ask.topic_id, partitions=partitions)

        def written(answer: Message | ErrorCode) -> None:
            code = int(answer) if isinstance(answer, ErrorCode) else 0
            if isinstance(answer, OffsetCommitResponse):
                code = max(one.error_code for topic in answer.topics for one in topic.partitions)
            self._done(Stored(code, self._stored if code else {**self._stored, **moved}))

        request = OffsetCommitRequest(
            group_id=ask.consumer,
            generation_id_or_member_epoch=ask.member_epoch,
            member_id=ask.member_id,
            topics=[topic],
        )
        self._pass(OFFSET_COMMIT, _COMMIT_VERSION, request, written)

    def _pass(self, api: int, version: int, request: Message, done: Callable[[Message | ErrorCode], None]) -> None:
        ask = self._ask
        self._coordinator.ask(ask.consumer, api, version, ask.client_id, ask.host, request, done)
