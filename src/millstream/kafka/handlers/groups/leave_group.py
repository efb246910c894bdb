"""LeaveGroup: members leave (``core.group.leave``)."""

from millstream.coordinator.asks import LEAVE_GROUP
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: LeaveGroupRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            ctx.respond(LeaveGroupResponse(error_code=answer))
        else:
            assert isinstance(answer, LeaveGroupResponse)
            ctx.respond(answer)

    node.coordinator.ask(request.group_id, LEAVE_GROUP, ctx.api_version, ctx.client_id, ctx.host, request, done)
