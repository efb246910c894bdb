"""DescribeQuorum: the voters of the controller's log, and how far each is. On a single node this broker alone.

Kafka keeps that log in the topic ``__cluster_metadata``, partition 0, and its tools request exactly that; any other
topic is unknown. Only the leader of the log knows how far the others are, and clients send the request to any broker:
one that does not lead knows its own end alone. Here the log is Raft group 0 and no topic. Its voter has no directory id
(as in Kafka's quorums of ``kraft.version`` 0), and its address is that of the client's listener.
"""

from millstream.cluster.messages import Quorum
from millstream.core.controller.topic_names import CLUSTER_METADATA
from millstream.errors import MillstreamError
from millstream.kafka.cluster_view import brokers
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartition,
    QuorumTopic,
    ReplicaState,
)


def handle(node: Node, ctx: RequestContext, request: DescribeQuorumRequest) -> None:
    """Ask the controller's shard for the state of the log."""
    asked = [(topic.topic_name, part.partition_index) for topic in request.topics for part in topic.partitions]
    if asked != [(CLUSTER_METADATA, 0)]:
        ctx.respond(_unknown(request))
        return

    def done(quorum: Quorum | MillstreamError) -> None:
        if isinstance(quorum, MillstreamError):
            ctx.respond(DescribeQuorumResponse(error_code=quorum.code, error_message=quorum.message))
        else:
            ctx.respond(_described(node, ctx, quorum))

    node.controller.describe_quorum(done)


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    message = "This server does not host this topic-partition."
    return DescribeQuorumResponse(
        topics=[
            QuorumTopic(
                topic_name=topic.topic_name,
                partitions=[
                    QuorumPartition(partition_index=part.partition_index, error_code=error, error_message=message)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _described(node: Node, ctx: RequestContext, quorum: Quorum) -> DescribeQuorumResponse:
    node_id, now_ms = node.metadata.node_id, node.shard.reactor.wall_ms()
    ends = {node: (end, now_ms - ago_ms) for node, end, ago_ms in quorum.peers}
    ends[node_id] = (quorum.log_end_offset, now_ms)
    voters: list[ReplicaState] = []
    for voter in quorum.voters:
        end, seen_ms = ends.get(voter, (-1, -1))
        voters.append(
            ReplicaState(
                replica_id=voter,
                log_end_offset=end,
                last_fetch_timestamp=seen_ms,
                last_caught_up_timestamp=seen_ms if end >= quorum.log_end_offset else -1,
            )
        )
    partition = QuorumPartition(
        leader_id=quorum.leader,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=voters,
    )
    return DescribeQuorumResponse(
        topics=[QuorumTopic(topic_name=CLUSTER_METADATA, partitions=[partition])],
        nodes=[
            QuorumNode(
                node_id=each.node_id,
                listeners=[QuorumListener(name=ctx.listener, host=each.host, port=each.port)],
            )
            for each in brokers(node, ctx)
            if each.node_id in quorum.voters
        ],
    )
