"""Errors of a fetch for partitions that it cannot read.

A topic id that is not found is one of three cases: it never existed (UNKNOWN_TOPIC_ID), it existed when its fetch
session started (UNKNOWN_TOPIC_OR_PARTITION), or its topic was created again with another id (INCONSISTENT_TOPIC_ID). A
fetch that claims to come from a replica is refused like a broker that the partition is not assigned to, because a
single node has no other replica.
"""

from typing import Final

from millstream.cluster.topic_table import PartitionMeta
from millstream.core.fetch_session import SessionPartition
from millstream.kafka.cluster_view import brokers
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.readable import find_readable
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.partition.table import Entry
from millstream.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.schema import ZERO_UUID

MISSING: Final = (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.UNKNOWN_TOPIC_ID))
"""Errors that do not end the wait of a fetch for its other partitions."""

KNOWS_THE_LEADER: Final = (int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH))
"""Errors that name the leader (KIP-951)."""

NO_ABORTED: Final[list[AbortedTransaction]] = []
NO_LEADER: Final = LeaderIdAndEpoch()
NO_DIVERGENCE: Final = EpochEndOffset()

BY_ID: Final = 13
"""First version that names topics by id."""


def refuse_all(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """Refuse the whole request: once if the version has a field for it, else for every partition."""
    responses: list[FetchableTopicResponse] = []
    for topic in request.topics:
        parts = [
            PartitionData(
                partition_index=asked.partition,
                error_code=int(code),
                high_watermark=-1,
                aborted_transactions=NO_ABORTED,
                records=b"",
            )
            for asked in topic.partitions
        ]
        if topic.topic_id == ZERO_UUID:
            responses.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts))
    return FetchResponse(error_code=int(code), responses=responses)


def entry_of(node: Node, asked: SessionPartition) -> Entry | None:
    """The partition's entry, None if it is missing. A session keeps the name of a topic that it knows by id."""
    key = asked.topic if asked.topic_id == ZERO_UUID else asked.topic_id
    entry = find_readable(node, key, PartitionIndex(asked.index))
    if entry is not None and not asked.topic:
        topic = node.metadata.topic_by_id(asked.topic_id)
        asked.topic = entry.name if topic is None else topic.name
    return entry


def missing_error(node: Node, asked: SessionPartition) -> ErrorCode:
    """The error for a missing partition. A topic that existed when the session started gets another one than a topic
    that never did.
    """
    table = node.partitions
    if asked.topic_id == ZERO_UUID or not asked.topic or asked.topic_id in table.by_id:
        return table.missing(asked.topic if asked.topic_id == ZERO_UUID else asked.topic_id)
    again = table.find(asked.topic, asked.index) is not None
    return ErrorCode.INCONSISTENT_TOPIC_ID if again else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def leader_of(
    node: Node, ctx: RequestContext, asked: SessionPartition, endpoints: list[NodeEndpoint]
) -> LeaderIdAndEpoch:
    """The leader of the partition. Its address is added to ``endpoints``."""
    meta = node.metadata.partition(asked.topic, asked.index)
    return NO_LEADER if meta is None else lead_to(node, ctx, meta, endpoints)


def lead_to(node: Node, ctx: RequestContext, meta: PartitionMeta, endpoints: list[NodeEndpoint]) -> LeaderIdAndEpoch:
    """A partition's leader, whose address is added to ``endpoints``."""
    if all(endpoint.node_id != meta.leader for endpoint in endpoints):
        endpoints += [
            NodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in brokers(node, ctx)
            if each.node_id == meta.leader
        ]
    return LeaderIdAndEpoch(meta.leader, meta.leader_epoch)


def follower_error(node: Node, asked: SessionPartition) -> ErrorCode:
    """The error for a replica that the partition does not have: a broker of another cluster, or no broker."""
    entry = entry_of(node, asked)
    meta = None if entry is None else node.metadata.partition(asked.topic, asked.index)
    if meta is None:
        return missing_error(node, asked)
    epoch = asked.current_leader_epoch
    if epoch < 0:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < meta.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
