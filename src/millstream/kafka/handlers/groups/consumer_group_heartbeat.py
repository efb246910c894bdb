"""ConsumerGroupHeartbeat: a member joins, reports, or leaves (``core.group.consumer.heartbeat``)."""

from millstream.coordinator.asks import CONSUMER_GROUP_HEARTBEAT
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> None:
    """Answer when the coordinator has answered, or at once if the protocol is switched off."""
    if "consumer" not in node.settings.group_coordinator_rebalance_protocols:
        ctx.respond(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
        return

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = ConsumerGroupHeartbeatResponse(error_code=answer)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        ctx.respond(answer)

    node.coordinator.ask(
        request.group_id,
        CONSUMER_GROUP_HEARTBEAT,
        ctx.api_version,
        ctx.client_id,
        ctx.host,
        request,
        done,
        principal=ctx.principal,
    )
