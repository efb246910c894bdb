"""AlterShareGroupOffsets: let a share group without members start elsewhere (``core.group.share.offsets``)."""

from millstream.coordinator.asks import ALTER_SHARE_GROUP_OFFSETS
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: AlterShareGroupOffsetsRequest) -> None:
    """Answer when the coordinator has answered."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = AlterShareGroupOffsetsResponse(error_code=answer)
        assert isinstance(answer, AlterShareGroupOffsetsResponse)
        ctx.respond(answer)

    node.coordinator.ask(
        request.group_id, ALTER_SHARE_GROUP_OFFSETS, ctx.api_version, ctx.client_id, ctx.host, request, done
    )
