"""DescribeTopicPartitions: topics by name, in pages of a bounded number of partitions (KIP-966).

A client that names no topic gets all of them. A page has at most ``response_partition_limit`` partitions, limited by
the setting ``max.request.partition.size.limit``, and its cursor is where the next page starts. A cursor that no page
could have returned is INVALID_REQUEST for every topic. Unknown topics are answered with an error and never created.
"""

from millstream.cluster.metadata import MetadataCache
from millstream.cluster.topic_table import PartitionMeta, TopicMeta
from millstream.core.controller.topic_names import INTERNAL_TOPICS, illegal_topic_name
from millstream.kafka.cluster_view import TOPIC_OPERATIONS, partition_view
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def handle(node: Node, ctx: RequestContext, request: DescribeTopicPartitionsRequest) -> None:
    """Answer one page from the metadata cache."""
    cursor = request.cursor
    first = cursor.topic_name if cursor is not None else ""
    everything = not request.topics
    names = node.metadata.names() if everything else sorted({topic.name for topic in request.topics})
    names = [name for name in names if name >= first]
    if cursor is not None and (cursor.partition_index < 0 or not (everything or cursor.topic_name in names)):
        refused = [
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
            for topic in request.topics
        ]
        ctx.respond(DescribeTopicPartitionsResponse(topics=refused))
        return
    limit = min(request.response_partition_limit, node.metadata.settings.max_request_partition_size_limit)
    begin = cursor.partition_index if cursor is not None else 0
    ctx.respond(_page(node, names, begin if first else 0, first, max(limit, 1), everything=everything))


def _page(
    node: Node, names: list[str], begin: int, first: str, room: int, *, everything: bool
) -> DescribeTopicPartitionsResponse:
    """As many partitions as fit, from partition ``begin`` of the topic ``first`` on."""
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if not room:
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=Cursor(topic_name=name))
        meta = node.metadata.topic(name)
        if meta is None:
            if not everything:
                topics.append(_unknown(name))
            continue
        start = begin if name == first else 0
        end = min(len(meta.partitions), start + room)
        topics.append(_described(node.metadata, meta, start, end))
        room -= max(end - start, 0)
        if end < len(meta.partitions):
            cursor = Cursor(topic_name=name, partition_index=end)
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics)


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    legal = illegal_topic_name(name) is None
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described(metadata: MetadataCache, topic: TopicMeta, start: int, end: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(metadata, part) for part in topic.partitions[start:end]],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(metadata: MetadataCache, part: PartitionMeta) -> DescribeTopicPartitionsResponsePartition:
    view = partition_view(metadata, part)
    return DescribeTopicPartitionsResponsePartition(
        error_code=view.error,
        partition_index=part.index,
        leader_id=view.leader,
        leader_epoch=view.leader_epoch,
        replica_nodes=view.replicas,
        isr_nodes=view.in_sync,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=view.offline,
    )
