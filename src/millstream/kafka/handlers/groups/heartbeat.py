"""Heartbeat: keeps a member of a group alive (``core.group.heartbeat``)."""

from millstream.coordinator.asks import HEARTBEAT
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: HeartbeatRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            # No session ends while groups are loaded, so the answer is success, as in Kafka.
            loading = answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            answer = HeartbeatResponse(error_code=ErrorCode.NONE if loading else answer)
        assert isinstance(answer, HeartbeatResponse)
        ctx.respond(answer)

    ask(node, ctx, request.group_id, HEARTBEAT, request, done)
