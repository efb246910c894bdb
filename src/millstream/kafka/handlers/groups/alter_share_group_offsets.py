"""AlterShareGroupOffsets: let a share group without members start elsewhere (``core.group.share.offsets``)."""

from millstream.coordinator.asks import ALTER_SHARE_GROUP_OFFSETS
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import pass_on
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)


def handle(node: Node, ctx: RequestContext, request: AlterShareGroupOffsetsRequest) -> None:
    """Answer when the coordinator has answered."""
    pass_on(node, ctx, request.group_id, ALTER_SHARE_GROUP_OFFSETS, request, AlterShareGroupOffsetsResponse)
