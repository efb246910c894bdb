"""ShareStates: the state of share partitions, for any part of the broker, on any shard.

::

    share partition, group coordinator, APIs 83–87 ─► ShareStates.ask ─► the partition of the state topic
                                                        ├► on this shard: `share_state_partition`
                                                        ├► on another shard: one call through the mailbox
                                                        └► on another broker: one call over ``peers.calls``

The partition is Kafka's hash of ``group:topicId:partition``. One request may name many share partitions; they are sent
together to each place. ``__share_group_state`` is created by the first request that initialises a share partition.

**Errors.** Without a coordinator, an answer or the state topic, a request gets COORDINATOR_NOT_AVAILABLE or
NOT_COORDINATOR, and its sender tries again. Sending it twice is harmless: an old report changes nothing that a newer
one said. **Crash:** nothing is kept here. **Overload:** a full mailbox or connection
refuses at once.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from millstream.cluster.metadata import MetadataListener
from millstream.cluster.topic_table import TopicMeta
from millstream.coordinator.share_state_partition import ShareStatePartition
from millstream.coordinator.share_state_records import from_wire, to_wire
from millstream.coordinator.state_partition import State
from millstream.coordinator.state_topic import Loads, StateTopic
from millstream.core.controller.topic_names import SHARE_GROUP_STATE
from millstream.core.share import stored
from millstream.core.share.batches import Batch
from millstream.core.share.stored import UNKNOWN, Answer, Image, Key
from millstream.errors import MillstreamError
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import LeaderEpoch, Offset
from millstream.partition.append.internal import InternalLog, InternalLogs
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from millstream.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStatePartitionResult,
    ReadStateTopicResult,
    StateBatch,
)
from millstream.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    StateSummary,
    StateSummaryTopic,
)
from millstream.wire.messages.share_state_results import StatePartitionResult, StateTopicResult
from millstream.wire.messages.write_share_group_state import WriteShareGroupStateRequest, WriteShareGroupStateResponse

if TYPE_CHECKING:
    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache
    from millstream.model.replication import ReplicaId
    from millstream.peers.calls import CallDone, Calls
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply

ASK: Final = 69
"""Method of the mailbox."""
ASK_BROKER: Final = 19
"""Method of ``peers.calls``."""

TIMEOUT_MS: Final = 10_000
_OFFSET_MAX: Final = 2**63 - 1

INITIALIZE, READ, WRITE, DELETE, SUMMARY = range(5)


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """One share partition, and what is asked of it. What the kind does not need is left at its default."""

    kind: int
    key: Key
    state_epoch: int = UNKNOWN
    leader_epoch: LeaderEpoch = UNKNOWN
    start: Offset = Offset(UNKNOWN)
    complete: int = UNKNOWN
    batches: Sequence[Batch] = ()
    created_ms: int = UNKNOWN


Asked: TypeAlias = tuple[int, Ask]
"""(partition of the state topic, ask)"""
Answered: TypeAlias = tuple[int, Image | None]
"""Error code, and the state if it was asked for."""
Done: TypeAlias = Callable[[Sequence[Answered]], None]

StateRequest: TypeAlias = (
    InitializeShareGroupStateRequest
    | ReadShareGroupStateRequest
    | WriteShareGroupStateRequest
    | DeleteShareGroupStateRequest
    | ReadShareGroupStateSummaryRequest
)
StateResponse: TypeAlias = (
    InitializeShareGroupStateResponse
    | ReadShareGroupStateResponse
    | WriteShareGroupStateResponse
    | DeleteShareGroupStateResponse
    | ReadShareGroupStateSummaryResponse
)

_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(list[Asked]).decode
_decode_answered = msgspec.msgpack.Decoder(list[Answered]).decode


def key_text(key: Key) -> str:
    """A share partition in Kafka's notation, which its coordinator is found by."""
    group_id, topic_id, partition = key
    return f"{group_id}:{base64.urlsafe_b64encode(topic_id).rstrip(b'=').decode()}:{partition}"


class ShareStates(MetadataListener):
    """Routes questions about share partitions, and runs the coordinators of this shard.

    Lifecycle: one per shard, built before the mailbox runs and before partitions open; ``across`` if there are other
    brokers. ``stop`` when the broker drains.
    """

    def __init__(
        self, shard: "Shard", metadata: "MetadataCache", controller: "ControllerClient", logs: InternalLogs
    ) -> None:
        self._shard = shard
        self._metadata = metadata
        self._topic = StateTopic(SHARE_GROUP_STATE, metadata, controller, shard.reactor)
        self._calls: Calls | None = None
        self.partitions: dict[int, ShareStatePartition] = {}
        self.loads = Loads()
        shard.mailbox.serve(ASK, self._serve_shard)
        logs.on_open(self._opened)
        logs.on_close(self._closed)
        metadata.subscribe(self)

    def across(self, calls: "Calls") -> None:
        """There are other brokers: ask them, and answer them."""
        self._calls = calls
        calls.serve(ASK_BROKER, self._serve_broker)

    def ensure(self, done: Callable[[ErrorCode], None]) -> None:
        """Call ``done(NONE)`` when there is a coordinator. Creates the state topic if necessary."""
        self._topic.ensure(done)

    # The partitions of this shard

    def _opened(self, partition: InternalLog) -> None:
        if partition.name == SHARE_GROUP_STATE:
            self.loads.began()
            opened = ShareStatePartition(partition, self._shard.reactor, self.loads.ended)
            self.partitions[partition.index] = opened

    def _closed(self, partition: InternalLog) -> None:
        if partition.name == SHARE_GROUP_STATE:
            closed = self.partitions.pop(partition.index, None)
            if closed is not None:
                closed.close()

    def stop(self) -> None:
        """Refuse all waiting requests, so that askers look for the next coordinator."""
        for partition in self.partitions.values():
            partition.stop()

    def topic_deleted(self, topic: TopicMeta) -> None:
        """What the coordinators of this shard keep of a topic goes with it."""
        for partition in self.partitions.values():
            partition.forget_topic(topic.topic_id)

    # Asking

    def ask(self, request: StateRequest, done: Callable[[Any], None]) -> None:
        """Answer a request of APIs 83 to 87, wherever the coordinators are. ``done`` gets its response, exactly once,
        here.
        """
        if isinstance(request, InitializeShareGroupStateRequest):
            self._topic.ensure(lambda error: self._ask(request, done, error))
        else:
            self._ask(request, done, ErrorCode.NONE)

    def _ask(self, request: StateRequest, done: Callable[[Any], None], error: ErrorCode) -> None:
        asks = asks_of(request)
        if error is not ErrorCode.NONE:
            done(response_to(request, [(int(error), None)] * len(asks)))
        else:
            self.ask_all(asks, lambda answers: done(response_to(request, answers)))

    def ask_all(self, asks: Sequence[Ask], done: Done) -> None:
        """Ask for share partitions; ``done`` gets the answers in the same order, once, maybe before this returns."""
        answers: list[Answered] = [(int(ErrorCode.COORDINATOR_NOT_AVAILABLE), None)] * len(asks)
        places: dict[tuple[NodeId | None, int], list[tuple[int, Asked]]] = {}
        topic = self._metadata.topic(SHARE_GROUP_STATE)
        if topic is None:
            done(answers)
            return
        for slot, ask in enumerate(asks):
            partition, home = self._topic.place(key_text(ask.key))
            leader = topic.partitions[partition].leader
            if leader not in (UNKNOWN, self._metadata.node_id):
                places.setdefault((NodeId(leader), 0), []).append((slot, (partition, ask)))
            elif home is not None:
                places.setdefault((None, home), []).append((slot, (partition, ask)))
        missing = len(places) + 1

        def settled() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(answers)

        for (node, home), items in places.items():

            def take(got: Sequence[Answered], items: list[tuple[int, Asked]] = items) -> None:
                for (slot, _), one in zip(items, got, strict=True):
                    answers[slot] = one
                settled()

            self._ask_at(node, home, [asked for _, asked in items], take)
        settled()

    def _ask_at(self, node: NodeId | None, home: int, asked: list[Asked], take: Done) -> None:
        if node is None and home == self._shard.id:
            self._ask_here(asked, take)
            return

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                take([(int(ErrorCode.COORDINATOR_NOT_AVAILABLE), None)] * len(asked))
            else:
                take(_decode_answered(answer))

        if node is None:
            self._shard.mailbox.call(home, ASK, _encode(asked), answered, TIMEOUT_MS * 1000)
        elif self._calls is not None:
            self._calls.call(node, ASK_BROKER, _encode(asked), TIMEOUT_MS, answered)
        else:
            take([(int(ErrorCode.COORDINATOR_NOT_AVAILABLE), None)] * len(asked))

    def _ask_here(self, asked: Sequence[Asked], take: Done) -> None:
        """Ask the coordinators of this shard."""
        answers: list[Answered] = [(0, None)] * len(asked)
        missing = len(asked) + 1

        def settled() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                take(answers)

        for slot, (partition, ask) in enumerate(asked):

            def answered(answer: Answer | ErrorCode, slot: int = slot) -> None:
                if isinstance(answer, ErrorCode):
                    answers[slot] = (int(answer), None)
                else:
                    answers[slot] = (int(answer.error), answer.image)
                settled()

            found = self.partitions.get(partition)
            if found is None:
                answered(ErrorCode.NOT_COORDINATOR)
            elif found.state is not State.ACTIVE:
                answered(found.refusal)
            else:
                found.ask(_request(ask, answered))
        settled()

    def _serve_shard(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender
        self._ask_here(_decode_asked(payload), lambda answers: reply.send(_encode(answers)))

    def _serve_broker(self, sender: "ReplicaId", payload: bytes, timeout_ms: int, done: "CallDone") -> None:
        """A question of another broker; it is passed on to shards, and to no third broker."""
        _ = sender, timeout_ms
        asked = _decode_asked(payload)
        topic = self._metadata.topic(SHARE_GROUP_STATE)
        answers: list[Answered] = [(int(ErrorCode.NOT_COORDINATOR), None)] * len(asked)
        homes: dict[int, list[tuple[int, Asked]]] = {}
        for slot, (partition, ask) in enumerate(asked):
            home = self._topic.place(key_text(ask.key))[1]
            if topic is not None and home is not None:
                homes.setdefault(home, []).append((slot, (partition, ask)))
        missing = len(homes) + 1

        def settled() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(_encode(answers))

        for home, items in homes.items():

            def take(got: Sequence[Answered], items: list[tuple[int, Asked]] = items) -> None:
                for (slot, _), one in zip(items, got, strict=True):
                    answers[slot] = one
                settled()

            self._ask_at(None, home, [one for _, one in items], take)
        settled()


def _request(ask: Ask, token: object) -> stored.Request:
    """What the core is asked."""
    if ask.kind == INITIALIZE:
        return stored.Initialize(token, ask.key, ask.state_epoch, ask.start)
    if ask.kind == READ:
        return stored.Read(token, ask.key, ask.leader_epoch)
    if ask.kind == WRITE:
        epochs = ask.state_epoch, ask.leader_epoch
        return stored.Report(token, ask.key, *epochs, ask.start, ask.complete, list(ask.batches), ask.created_ms)
    if ask.kind == DELETE:
        return stored.Delete(token, ask.key)
    return stored.Summary(token, ask.key)


def asks_of(request: StateRequest) -> list[Ask]:
    """One for each share partition of a request, in its order.

    Raises:
        ValueError: a Write has a state, an offset or a count that no record has.
    """
    group_id = request.group_id
    if isinstance(request, InitializeShareGroupStateRequest):
        return [
            Ask(INITIALIZE, (group_id, topic.topic_id, one.partition), one.state_epoch, start=Offset(one.start_offset))
            for topic in request.topics
            for one in topic.partitions
        ]
    if isinstance(request, WriteShareGroupStateRequest):
        return [
            Ask(
                WRITE,
                (group_id, topic.topic_id, one.partition),
                one.state_epoch,
                one.leader_epoch,
                Offset(one.start_offset),
                one.delivery_complete_count,
                _possible(one.state_batches),
            )
            for topic in request.topics
            for one in topic.partitions
        ]
    if isinstance(request, DeleteShareGroupStateRequest):
        return [
            Ask(DELETE, (group_id, topic.topic_id, one.partition))
            for topic in request.topics
            for one in topic.partitions
        ]
    kind = READ if isinstance(request, ReadShareGroupStateRequest) else SUMMARY
    return [
        Ask(kind, (group_id, topic.topic_id, one.partition), leader_epoch=one.leader_epoch)
        for topic in request.topics
        for one in topic.partitions
    ]


def _possible(batches: list[StateBatch]) -> list[Batch]:
    """Batches of a client: their ends are offsets after which another record fits."""
    for one in batches:
        if not 0 <= one.first_offset <= one.last_offset < _OFFSET_MAX or one.delivery_count < 0:
            raise ValueError(f"there are no records {one.first_offset} to {one.last_offset}")
    return from_wire(batches)


def response_to(request: StateRequest, answers: Sequence[Answered]) -> StateResponse:
    """The response of what `ShareStates.ask_all` has answered for `asks_of` the request."""
    rest = iter(answers)
    named = [(topic.topic_id, [one.partition for one in topic.partitions]) for topic in request.topics]
    each = [(topic_id, [(partition, *next(rest)) for partition in partitions]) for topic_id, partitions in named]
    if isinstance(request, ReadShareGroupStateRequest):
        return ReadShareGroupStateResponse(
            [ReadStateTopicResult(topic_id, [_read_result(*one) for one in ones]) for topic_id, ones in each]
        )
    if isinstance(request, ReadShareGroupStateSummaryRequest):
        return ReadShareGroupStateSummaryResponse(
            [StateSummaryTopic(topic_id, [_summary(*one) for one in ones]) for topic_id, ones in each]
        )
    results = [
        StateTopicResult(topic_id, [StatePartitionResult(index, error, _message(error)) for index, error, _ in ones])
        for topic_id, ones in each
    ]
    return _RESPONSES[type(request)](results)


_RESPONSES: Final[Mapping[type, Callable[[list[StateTopicResult]], StateResponse]]] = {
    InitializeShareGroupStateRequest: InitializeShareGroupStateResponse,
    WriteShareGroupStateRequest: WriteShareGroupStateResponse,
    DeleteShareGroupStateRequest: DeleteShareGroupStateResponse,
}


def _message(error: int) -> str | None:
    return ErrorCode(error).name if error else None


def _read_result(partition: int, error: int, image: Image | None) -> ReadStatePartitionResult:
    if image is None:
        return ReadStatePartitionResult(partition, error, _message(error))
    return ReadStatePartitionResult(
        partition, error, None, image.state_epoch, image.start, state_batches=to_wire(image.batches)
    )


def _summary(partition: int, error: int, image: Image | None) -> StateSummary:
    if image is None:
        return StateSummary(partition, error, _message(error), start_offset=Offset(0 if error else UNKNOWN))
    return StateSummary(partition, error, None, image.state_epoch, image.leader_epoch, image.start, image.complete)
