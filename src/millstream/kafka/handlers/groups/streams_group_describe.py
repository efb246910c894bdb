"""StreamsGroupDescribe: topology, epochs, members and tasks of streams groups, from their coordinators."""

from collections.abc import Callable

from millstream.coordinator.asks import STREAMS_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.described_kind import describe
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.streams_group_describe import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: StreamsGroupDescribeRequest) -> None:
    """Answer when every group's coordinator has answered, or at once if the protocol is switched off."""
    enabled = "streams" in node.settings.group_coordinator_rebalance_protocols

    def ask(name: str, done: Callable[[Message | ErrorCode], None]) -> None:
        if not enabled:
            done(ErrorCode.UNSUPPORTED_VERSION)
            return
        one = StreamsGroupDescribeRequest(group_ids=[name])
        node.coordinator.ask(name, STREAMS_GROUP_DESCRIBE, ctx.api_version, ctx.client_id, ctx.host, one, done)

    def respond(groups: list[DescribedStreamsGroup]) -> None:
        ctx.respond(StreamsGroupDescribeResponse(groups=groups))

    describe(
        DescribedStreamsGroup, request.group_ids, ask, respond, with_operations=request.include_authorized_operations
    )
