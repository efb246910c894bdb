"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups, from their coordinators."""

from collections.abc import Callable

from millstream.coordinator.asks import CONSUMER_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.described_kind import describe
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: ConsumerGroupDescribeRequest) -> None:
    """Answer when every group's coordinator has answered."""
    enabled = "consumer" in node.settings.group_coordinator_rebalance_protocols

    def ask(name: str, done: Callable[[Message | ErrorCode], None]) -> None:
        if not enabled:
            done(ErrorCode.UNSUPPORTED_VERSION)
            return
        one = ConsumerGroupDescribeRequest(group_ids=[name])
        node.coordinator.ask(name, CONSUMER_GROUP_DESCRIBE, ctx.api_version, ctx.client_id, ctx.host, one, done)

    def respond(groups: list[DescribedConsumerGroup]) -> None:
        ctx.respond(ConsumerGroupDescribeResponse(groups=groups))

    describe(
        DescribedConsumerGroup, request.group_ids, ask, respond, with_operations=request.include_authorized_operations
    )
