"""ListPartitionReassignments: partitions that move to other brokers. There are none."""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

API_KEY: Final = 46


def handle(
    node: Node,
    ctx: RequestContext,
    request: ListPartitionReassignmentsRequest,
    respond: Callable[[ListPartitionReassignmentsResponse], None],
) -> None:
    """Answer with an empty list, also for unknown topics, as in Kafka."""
    _ = node, ctx, request
    respond(ListPartitionReassignmentsResponse(error_message=None))
