"""CreatePartitions: add partitions to existing topics. Each topic has its own result.

The response is sent when every shard has opened the new partitions. If ``timeout_ms`` passes first, each topic is
answered REQUEST_TIMED_OUT and may have grown.
"""

from typing import Final

from millstream.core.controller.requests import AddPartitions, Result, Results, throttle_ms
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.timeouts import bounded_ms
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_STRICT_FROM: Final = 3
"""First version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def handle(node: Node, ctx: RequestContext, request: CreatePartitionsRequest) -> None:
    """Let the controller add the missing partitions."""

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            failure = results
            names = dict.fromkeys(topic.name for topic in request.topics)
            results = tuple(Result(failure.code, failure.message, name) for name in names)
        ctx.throttle(throttle_ms(results))
        ctx.respond(
            CreatePartitionsResponse(
                results=[
                    CreatePartitionsTopicResult(
                        name=result.name or "", error_code=result.error, error_message=result.message
                    )
                    for result in results
                ]
            )
        )

    node.controller.create_partitions(
        (_wanted(topic) for topic in request.topics),
        done,
        timeout_ms=bounded_ms(request.timeout_ms),
        validate_only=request.validate_only,
        client=ctx.mutation_client(_STRICT_FROM),
    )


def _wanted(topic: CreatePartitionsTopic) -> AddPartitions:
    assignments = None if topic.assignments is None else tuple(tuple(each.broker_ids) for each in topic.assignments)
    return AddPartitions(topic.name, topic.count, assignments)
