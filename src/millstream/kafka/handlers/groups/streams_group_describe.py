"""StreamsGroupDescribe: topology, epochs, members and tasks of streams groups, from their coordinators."""

from millstream.coordinator.asks import STREAMS_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.described_kind import describe
from millstream.wire.messages.streams_group_describe import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)


def handle(node: Node, ctx: RequestContext, request: StreamsGroupDescribeRequest) -> None:
    """Answer when every group's coordinator has answered, or at once if the protocol is switched off."""
    enabled = "streams" in node.settings.group_coordinator_rebalance_protocols
    described, response = DescribedStreamsGroup, StreamsGroupDescribeResponse
    describe(node, ctx, STREAMS_GROUP_DESCRIBE, request, described, response, enabled=enabled)
