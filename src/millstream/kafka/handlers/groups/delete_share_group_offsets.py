"""DeleteShareGroupOffsets: let a share group without members forget topics (``core.group.share.offsets``)."""

from millstream.coordinator.asks import DELETE_SHARE_GROUP_OFFSETS
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import pass_on
from millstream.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)


def handle(node: Node, ctx: RequestContext, request: DeleteShareGroupOffsetsRequest) -> None:
    """Answer when the coordinator has answered."""
    pass_on(node, ctx, request.group_id, DELETE_SHARE_GROUP_OFFSETS, request, DeleteShareGroupOffsetsResponse)
