"""AlterPartitionReassignments: move replicas of partitions to other brokers, or end such a move.

It is answered when the moves have started; ``list_partition_reassignments`` shows those in progress.
"""

from millstream.core.controller.requests import ReassignPartition, ReassignPartitions, Result, Results
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.timeouts import bounded_ms
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(node: Node, ctx: RequestContext, request: AlterPartitionReassignmentsRequest) -> None:
    """Have the controller judge each partition."""
    asked = tuple(
        ReassignPartition(topic.name, part.partition_index, None if part.replicas is None else tuple(part.replicas))
        for topic in request.topics
        for part in topic.partitions
    )

    def answered(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            ctx.respond(
                AlterPartitionReassignmentsResponse(
                    allow_replication_factor_change=request.allow_replication_factor_change,
                    error_code=results.code or ErrorCode.UNKNOWN_SERVER_ERROR,
                    error_message=results.message,
                )
            )
            return
        in_order = iter(results)
        ctx.respond(
            AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=request.allow_replication_factor_change,
                error_message=None,
                responses=[
                    ReassignableTopicResponse(
                        name=topic.name,
                        partitions=[_answer(part.partition_index, next(in_order)) for part in topic.partitions],
                    )
                    for topic in request.topics
                ],
            )
        )

    wanted = ReassignPartitions(asked, request.allow_replication_factor_change)
    node.controller.submit(wanted, answered, bounded_ms(request.timeout_ms))


def _answer(index: int, result: Result) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(partition_index=index, error_code=result.error, error_message=result.message)
