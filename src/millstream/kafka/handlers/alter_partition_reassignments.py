"""AlterPartitionReassignments: move replicas to other brokers. This version moves none.

A request for the present replicas succeeds, one that names an unregistered broker is refused as in Kafka, any other one
with a sentence, and nothing can be cancelled because nothing moves. So no request changes anything, and
``list_partition_reassignments`` is always empty.
"""

from collections.abc import Callable
from typing import Final

from millstream.core.controller.topics import assignment_problem
from millstream.errors import Rejected
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)

API_KEY: Final = 45


def handle(
    node: Node,
    ctx: RequestContext,
    request: AlterPartitionReassignmentsRequest,
    respond: Callable[[AlterPartitionReassignmentsResponse], None],
) -> None:
    """Check each move."""
    _ = ctx
    respond(
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name, partitions=[_answer(node, topic, asked) for asked in topic.partitions]
                )
                for topic in request.topics
            ],
        )
    )


def _answer(node: Node, topic: ReassignableTopic, asked: ReassignablePartition) -> ReassignablePartitionResponse:
    error, message = ErrorCode.NONE, None
    try:
        _judge(node, topic.name, asked)
    except Rejected as refusal:
        error, message = refusal.code, refusal.message or None
    return ReassignablePartitionResponse(partition_index=asked.partition_index, error_code=error, error_message=message)


def _judge(node: Node, topic: str, asked: ReassignablePartition) -> None:
    """Raise Rejected unless the partition already has the requested assignment."""
    if node.metadata.topic(topic) is None:
        raise Rejected(f"Unable to find a topic named {topic}.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = node.metadata.partition(topic, asked.partition_index)
    if partition is None:
        raise Rejected(
            f"Unable to find partition {topic}:{asked.partition_index}.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    if asked.replicas is None:
        raise Rejected("", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    registered = node.metadata.state.registry.nodes() or (node.metadata.node_id,)
    problem = assignment_problem(tuple(asked.replicas), registered)
    if problem is not None:
        raise Rejected(f"The manual partition assignment {problem}", ErrorCode.INVALID_REPLICATION_ASSIGNMENT)
    if sorted(asked.replicas) != sorted(partition.replicas):
        raise Rejected(
            f"The replicas of {topic}-{asked.partition_index} stay on brokers {list(partition.replicas)}: this version "
            "moves none.",
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
        )
