"""AcknowledgeEvents: where a consumer stands in an event topic, kept as a group's offsets in ``__consumer_offsets``.

A consumer's name is a group, so that lag is shown by every tool of Kafka's. An acknowledgement only moves forward;
``seek`` moves anywhere. What is stored is read first and the greater of the two is written. The requests of one group
that this broker's shard has under way take turns, so that no acknowledgement overtakes another.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from millstream.coordinator.asks import OFFSET_COMMIT, OFFSET_FETCH
from millstream.core.controller.topic_names import GROUP_METADATA
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.acknowledge_events import (
    AcknowledgedPartition,
    AcknowledgedPartitionResult,
    AcknowledgeEventsRequest,
    AcknowledgeEventsResponse,
)
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
from millstream.wire.schema import Message

_COMMIT_VERSION: Final = 9
_FETCH_VERSION: Final = 9

Respond = Callable[[AcknowledgeEventsResponse], None]


def handle(node: Node, ctx: RequestContext, request: AcknowledgeEventsRequest, respond: Respond) -> None:
    """Answer when the positions are durable."""
    topic = node.metadata.topic_by_id(request.topic_id)
    if topic is None or not topic.config.has_events:
        code = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.INVALID_TOPIC_EXCEPTION
        respond(AcknowledgeEventsResponse(error_code=int(code)))
        return
    if not request.consumer:
        what = "a consumer that keeps its position has a name"
        respond(AcknowledgeEventsResponse(error_code=int(ErrorCode.INVALID_GROUP_ID), error_message=what))
        return
    count = len(topic.partitions)
    queue = _queue(node, request.consumer)
    queue.append(_Turn(node, ctx, request, topic.name, count, respond, queue).start)
    if len(queue) == 1:
        queue[0]()


def _queue(node: Node, consumer: str) -> deque[Callable[[], None]]:
    """Requests of a group under way on this shard, in order; the first one is at work."""
    queues = node.acknowledging
    if consumer not in queues:
        for name in [name for name, queue in queues.items() if not queue]:
            del queues[name]
        queues[consumer] = deque()
    return queues[consumer]


class _Turn:
    """One request: read what is stored, write what is more, answer."""

    def __init__(
        self,
        node: Node,
        ctx: RequestContext,
        request: AcknowledgeEventsRequest,
        topic: str,
        count: int,
        respond: Respond,
        queue: deque[Callable[[], None]],
    ) -> None:
        self._node = node
        self._ctx = ctx
        self._request = request
        self._topic = topic
        self._count = count
        self._respond = respond
        self._queue = queue
        self._stored: dict[int, int] = {}

    @property
    def _known(self) -> list[AcknowledgedPartition]:
        return [one for one in self._request.partitions if 0 <= one.partition_index < self._count]

    def start(self) -> None:
        if self._node.metadata.topic(GROUP_METADATA) is not None:
            self._begin()
        elif any(one.next_event_id >= 0 for one in self._known):
            self._node.coordinator.ensure(lambda error: self._finish(error) if error else self._begin())
        else:
            self._finish(ErrorCode.NONE)  # nobody ever acknowledged anything

    def _begin(self) -> None:
        indexes = [one.partition_index for one in self._known]
        topics = [
            OffsetFetchRequestTopics(name=self._topic, topic_id=self._request.topic_id, partition_indexes=indexes)
        ]
        self._ask(
            OFFSET_FETCH, _FETCH_VERSION, OffsetFetchRequestGroup(self._request.consumer, topics=topics), self._read
        )

    def _read(self, answer: Message | ErrorCode) -> None:
        code = answer if isinstance(answer, ErrorCode) else ErrorCode.NONE
        if isinstance(answer, OffsetFetchResponseGroup):
            code = ErrorCode(answer.error_code)
            for topic in answer.topics:
                for one in topic.partitions:
                    code = code or ErrorCode(one.error_code)
                    self._stored[one.partition_index] = one.committed_offset
        if code:
            self._finish(code)
            return
        moved = [
            OffsetCommitRequestPartition(partition_index=one.partition_index, committed_offset=one.next_event_id)
            for one in self._known
            if one.next_event_id >= 0
            and (self._request.seek or one.next_event_id > self._stored.get(one.partition_index, -1))
        ]
        if not moved:
            self._finish(ErrorCode.NONE)
            return
        topic = OffsetCommitRequestTopic(name=self._topic, topic_id=self._request.topic_id, partitions=moved)
        request = OffsetCommitRequest(group_id=self._request.consumer, topics=[topic])

        def written(answer: Message | ErrorCode) -> None:
            code = answer if isinstance(answer, ErrorCode) else ErrorCode.NONE
            if isinstance(answer, OffsetCommitResponse):
                code = ErrorCode(max(one.error_code for topic in answer.topics for one in topic.partitions))
            if not code:
                self._stored.update({one.partition_index: one.committed_offset for one in moved})
            self._finish(code)

        self._ask(OFFSET_COMMIT, _COMMIT_VERSION, request, written)

    def _ask(self, api: int, version: int, request: Message, done: Callable[[Message | ErrorCode], None]) -> None:
        ctx = self._ctx
        self._node.coordinator.ask(self._request.consumer, api, version, ctx.client_id, ctx.host, request, done)

    def _finish(self, code: ErrorCode) -> None:
        results = [
            AcknowledgedPartitionResult(
                one.partition_index,
                0 if 0 <= one.partition_index < self._count else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                self._stored.get(one.partition_index, -1),
            )
            for one in self._request.partitions
        ]
        message = None
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            message = f"group {self._request.consumer} has members of Kafka's group protocol: take another name"
        self._queue.popleft()
        self._respond(AcknowledgeEventsResponse(error_code=int(code), error_message=message, partitions=results))
        if self._queue:
            self._queue[0]()
