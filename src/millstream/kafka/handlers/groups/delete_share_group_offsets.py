"""DeleteShareGroupOffsets: let a share group without members forget topics (``core.group.share.offsets``)."""

from millstream.coordinator.asks import DELETE_SHARE_GROUP_OFFSETS
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: DeleteShareGroupOffsetsRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = DeleteShareGroupOffsetsResponse(error_code=answer)
        assert isinstance(answer, DeleteShareGroupOffsetsResponse)
        ctx.respond(answer)

    node.coordinator.ask(
        request.group_id, DELETE_SHARE_GROUP_OFFSETS, ctx.api_version, ctx.client_id, ctx.host, request, done
    )
