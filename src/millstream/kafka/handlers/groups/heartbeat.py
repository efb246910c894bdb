"""Heartbeat: keeps a member of a group alive (``core.group.heartbeat``)."""

from millstream.coordinator.asks import HEARTBEAT
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: HeartbeatRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            # No session ends while groups are loaded, so the answer is success, as in Kafka.
            loading = answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            ctx.respond(HeartbeatResponse(error_code=ErrorCode.NONE if loading else answer))
        else:
            assert isinstance(answer, HeartbeatResponse)
            ctx.respond(answer)

    node.coordinator.ask(request.group_id, HEARTBEAT, ctx.api_version, ctx.client_id, ctx.host, request, done)
