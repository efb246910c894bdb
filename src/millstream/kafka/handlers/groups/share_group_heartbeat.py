"""ShareGroupHeartbeat: a member of a share group joins, reports, or leaves (``core.group.share.heartbeat``)."""

from millstream.coordinator.asks import SHARE_GROUP_HEARTBEAT
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: ShareGroupHeartbeatRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = ShareGroupHeartbeatResponse(error_code=answer)
        assert isinstance(answer, ShareGroupHeartbeatResponse)
        ctx.respond(answer)

    node.coordinator.ask(
        request.group_id, SHARE_GROUP_HEARTBEAT, ctx.api_version, ctx.client_id, ctx.host, request, done
    )
