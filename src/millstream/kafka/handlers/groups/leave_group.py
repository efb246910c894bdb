"""LeaveGroup: members leave (``core.group.leave``)."""

from millstream.coordinator.asks import LEAVE_GROUP
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import pass_on
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse


def handle(node: Node, ctx: RequestContext, request: LeaveGroupRequest) -> None:
    """Answer when the coordinator has answered."""
    pass_on(node, ctx, request.group_id, LEAVE_GROUP, request, LeaveGroupResponse)
