"""JoinGroup: join a group or its rebalance. The response waits for the end of the join phase (``core.group.join``)."""

import msgspec

from millstream.coordinator.asks import JOIN_GROUP
from millstream.core.group.rebalance import join_error
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.schema import Message

_NULL_PROTOCOL_FROM = 7


def handle(node: Node, ctx: RequestContext, request: JoinGroupRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = join_error("", answer)
        assert isinstance(answer, JoinGroupResponse)
        if answer.protocol_name is None and ctx.api_version < _NULL_PROTOCOL_FROM:
            answer = msgspec.structs.replace(answer, protocol_name="")
        ctx.respond(answer)

    ask(node, ctx, request.group_id, JOIN_GROUP, request, done)
