"""AcknowledgeEvents: a consumer's position in an event topic, stored as a group's offsets in ``__consumer_offsets``.

A consumer's name is the group's id, so every tool of Kafka's shows its lag. An acknowledgement moves the position
forward only; ``seek`` moves it anywhere. ``kafka.acknowledgements`` enforces that on the shard of the group's
coordinator.
"""

from typing import Final

from millstream.core.controller.topic_names import GROUP_METADATA
from millstream.kafka.acknowledgements import Ask, Stored
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.acknowledge_events import (
    AcknowledgedPartitionResult,
    AcknowledgeEventsRequest,
    AcknowledgeEventsResponse,
)

_MESSAGES: Final[dict[int, str]] = {
    int(
        ErrorCode.UNKNOWN_MEMBER_ID
    ): "the partitions are shared by the consumers of this name, and this one is not a member: leave its targets out,"
    " or take another name",
    int(ErrorCode.INVALID_GROUP_ID): "a consumer that keeps its position has a name",
}


def handle(node: Node, ctx: RequestContext, request: AcknowledgeEventsRequest) -> None:
    """Answer when the positions are durable."""
    topic = node.metadata.topic_by_id(request.topic_id)
    count = 0 if topic is None else len(topic.partitions)
    known = {one.partition_index: one.next_event_id for one in request.partitions if 0 <= one.partition_index < count}

    def done(stored: Stored) -> None:
        results = [
            AcknowledgedPartitionResult(
                one.partition_index,
                0 if one.partition_index in known else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                stored.positions.get(one.partition_index, -1),
            )
            for one in request.partitions
        ]
        ctx.respond(
            AcknowledgeEventsResponse(
                error_code=stored.error, error_message=_MESSAGES.get(stored.error), partitions=results
            )
        )

    if topic is None or not topic.config.has_events:
        done(Stored(int(ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.INVALID_TOPIC_EXCEPTION), {}))
        return
    if not request.consumer:
        done(Stored(int(ErrorCode.INVALID_GROUP_ID), {}))
        return
    ask = Ask(
        request.consumer,
        ctx.client_id,
        ctx.host,
        topic.name,
        topic.topic_id,
        request.seek,
        known,
        request.member_id,
        request.member_epoch,
    )
    if node.metadata.topic(GROUP_METADATA) is not None:
        node.acknowledgements.store(ask, done)
    elif all(position < 0 for position in known.values()):
        done(Stored(0, {}))  # nothing was ever acknowledged
    else:

        def ensured(error: ErrorCode) -> None:
            if error:
                done(Stored(int(error), {}))
            else:
                node.acknowledgements.store(ask, done)

        node.coordinator.ensure(ensured)
