"""OffsetDelete: delete committed offsets of a group (``core.group.delete``).

Partitions that do not exist are refused one by one here; the others go to the group's coordinator. If the group has an
error, the response has no partitions.
"""

from millstream.coordinator.asks import OFFSET_DELETE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millstream.wire.schema import Message

Refused = dict[str, list[OffsetDeleteResponsePartition]]


def handle(node: Node, ctx: RequestContext, request: OffsetDeleteRequest) -> None:
    """Answer when the deletion is durable."""
    good, refused = _sort_out(node, request)

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = OffsetDeleteResponse(error_code=answer)
        assert isinstance(answer, OffsetDeleteResponse)
        if refused and answer.error_code == ErrorCode.NONE:
            answer = OffsetDeleteResponse(topics=_merged(refused, answer.topics))
        ctx.respond(answer)

    existing = OffsetDeleteRequest(group_id=request.group_id, topics=good)
    ask(node, ctx, request.group_id, OFFSET_DELETE, existing, done)


def _sort_out(node: Node, request: OffsetDeleteRequest) -> tuple[list[OffsetDeleteRequestTopic], Refused]:
    """The existing partitions, and the results for the others."""
    good: list[OffsetDeleteRequestTopic] = []
    refused: Refused = {}
    for asked in request.topics:
        topic = node.metadata.topic(asked.name)
        count = 0 if topic is None else len(topic.partitions)
        existing = [partition for partition in asked.partitions if 0 <= partition.partition_index < count]
        if existing:
            good.append(OffsetDeleteRequestTopic(name=asked.name, partitions=existing))
        missing = [partition for partition in asked.partitions if not 0 <= partition.partition_index < count]
        if missing:
            refused.setdefault(asked.name, []).extend(
                OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                for partition in missing
            )
    return good, refused


def _merged(refused: Refused, answered: list[OffsetDeleteResponseTopic]) -> list[OffsetDeleteResponseTopic]:
    """Both, with one entry per topic."""
    topics = {name: list(partitions) for name, partitions in refused.items()}
    for topic in answered:
        topics.setdefault(topic.name, []).extend(topic.partitions)
    return [OffsetDeleteResponseTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
