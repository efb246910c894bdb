"""ShareGroupDescribe: epochs, members and assignments of share groups, from their coordinators."""

from millstream.coordinator.asks import SHARE_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.described_kind import describe
from millstream.wire.messages.share_group_describe import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


def handle(node: Node, ctx: RequestContext, request: ShareGroupDescribeRequest) -> None:
    """Answer when every group's coordinator has answered."""
    describe(node, ctx, SHARE_GROUP_DESCRIBE, request, DescribedShareGroup, ShareGroupDescribeResponse)
