"""ConsumerGroupHeartbeat: a member joins, reports, or leaves (``core.group.consumer.heartbeat``)."""

from collections.abc import Callable

from millstream.coordinator.asks import CONSUMER_GROUP_HEARTBEAT
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.schema import Message

API_KEY = CONSUMER_GROUP_HEARTBEAT


def handle(
    node: Node,
    ctx: RequestContext,
    request: ConsumerGroupHeartbeatRequest,
    respond: Callable[[ConsumerGroupHeartbeatResponse], None],
) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = ConsumerGroupHeartbeatResponse(error_code=answer)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        respond(answer)

    node.coordinator.ask(request.group_id, API_KEY, ctx.api_version, ctx.client_id, ctx.host, request, done)
