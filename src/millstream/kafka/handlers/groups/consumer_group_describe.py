"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups, from their coordinators."""

from millstream.coordinator.asks import CONSUMER_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.described_kind import describe
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)


def handle(node: Node, ctx: RequestContext, request: ConsumerGroupDescribeRequest) -> None:
    """Answer when every group's coordinator has answered, or at once if the protocol is switched off."""
    enabled = "consumer" in node.settings.group_coordinator_rebalance_protocols
    described, response = DescribedConsumerGroup, ConsumerGroupDescribeResponse
    describe(node, ctx, CONSUMER_GROUP_DESCRIBE, request, described, response, enabled=enabled)
