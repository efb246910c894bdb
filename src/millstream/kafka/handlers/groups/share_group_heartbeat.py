"""ShareGroupHeartbeat: a member of a share group joins, reports, or leaves (``core.group.share.heartbeat``)."""

from millstream.coordinator.asks import SHARE_GROUP_HEARTBEAT
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import pass_on
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


def handle(node: Node, ctx: RequestContext, request: ShareGroupHeartbeatRequest) -> None:
    """Answer when the coordinator has answered."""
    pass_on(node, ctx, request.group_id, SHARE_GROUP_HEARTBEAT, request, ShareGroupHeartbeatResponse)
