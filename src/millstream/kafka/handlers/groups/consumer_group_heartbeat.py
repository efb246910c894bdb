"""ConsumerGroupHeartbeat: a member joins, reports, or leaves (``core.group.consumer.heartbeat``)."""

from millstream.coordinator.asks import CONSUMER_GROUP_HEARTBEAT
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import pass_on
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def handle(node: Node, ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> None:
    """Answer when the coordinator has answered, or at once if the protocol is switched off."""
    if "consumer" not in node.settings.group_coordinator_rebalance_protocols:
        ctx.respond(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
    else:
        pass_on(node, ctx, request.group_id, CONSUMER_GROUP_HEARTBEAT, request, ConsumerGroupHeartbeatResponse)
