"""ShareGroupDescribe: epochs, members and assignments of share groups, from their coordinators."""

from collections.abc import Callable

from millstream.coordinator.asks import SHARE_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.described_kind import describe
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.share_group_describe import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: ShareGroupDescribeRequest) -> None:
    """Answer when every group's coordinator has answered."""

    def ask(name: str, done: Callable[[Message | ErrorCode], None]) -> None:
        one = ShareGroupDescribeRequest(group_ids=[name])
        node.coordinator.ask(name, SHARE_GROUP_DESCRIBE, ctx.api_version, ctx.client_id, ctx.host, one, done)

    def respond(groups: list[DescribedShareGroup]) -> None:
        ctx.respond(ShareGroupDescribeResponse(groups=groups))

    describe(
        DescribedShareGroup, request.group_ids, ask, respond, with_operations=request.include_authorized_operations
    )
