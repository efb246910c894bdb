"""OffsetCommit: store the offsets that a group has read (``core.group.commit``).

Topics are resolved here against the metadata of this shard: ids to names from version 10 on, names to ids before, so
that a stored offset names the exact topic. Partitions that do not exist are refused one by one; the others go to the
group's coordinator, and the results are merged.
"""

from millstream.coordinator.asks import OFFSET_COMMIT
from millstream.core.group.commit import commit_error
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millstream.wire.schema import Message

_TOPIC_IDS_FROM = 10


def handle(node: Node, ctx: RequestContext, request: OffsetCommitRequest) -> None:
    """Answer when the offsets of existing partitions are committed."""
    good, refused = _sort_out(node, request, ctx.api_version)
    if not good:
        ctx.respond(OffsetCommitResponse(topics=_merged(refused)))
        return
    resolved = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=good,
    )

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = commit_error(resolved, answer)
        assert isinstance(answer, OffsetCommitResponse)
        ctx.respond(OffsetCommitResponse(topics=_merged([*refused, *answer.topics])) if refused else answer)

    ask(node, ctx, request.group_id, OFFSET_COMMIT, resolved, done)


def _sort_out(
    node: Node, request: OffsetCommitRequest, version: int
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """The existing topics with names and ids, and the results for the others."""
    good: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    by_id = version >= _TOPIC_IDS_FROM
    metadata = node.metadata
    for asked in request.topics:
        topic = metadata.topic_by_id(asked.topic_id) if by_id else metadata.topic(asked.name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(_refused(asked, asked.partitions, error))
            continue
        count = len(topic.partitions)
        partitions = [partition for partition in asked.partitions if 0 <= partition.partition_index < count]
        named = OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        if len(partitions) < len(asked.partitions):
            missing = [partition for partition in asked.partitions if not 0 <= partition.partition_index < count]
            refused.append(_refused(named, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if partitions:
            good.append(named)
    return good, refused


def _refused(
    topic: OffsetCommitRequestTopic, partitions: list[OffsetCommitRequestPartition], error: ErrorCode
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            for partition in partitions
        ],
    )


def _merged(answers: list[OffsetCommitResponseTopic]) -> list[OffsetCommitResponseTopic]:
    """The same partitions with one entry per topic, because a request may name a topic twice."""
    topics: dict[tuple[str, bytes], list[OffsetCommitResponsePartition]] = {}
    for topic in answers:
        topics.setdefault((topic.name, topic.topic_id), []).extend(topic.partitions)
    return [
        OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=partitions)
        for (name, topic_id), partitions in topics.items()
    ]
