"""SyncGroup: fetch an assignment; the leader sends all of them (``core.group.sync``)."""

from millstream.coordinator.asks import SYNC_GROUP
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: SyncGroupRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            ctx.respond(SyncGroupResponse(error_code=answer))
        else:
            assert isinstance(answer, SyncGroupResponse)
            ctx.respond(answer)

    node.coordinator.ask(request.group_id, SYNC_GROUP, ctx.api_version, ctx.client_id, ctx.host, request, done)
