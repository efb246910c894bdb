"""SyncGroup: fetch an assignment; the leader sends all of them (``core.group.sync``)."""

from millstream.coordinator.asks import SYNC_GROUP
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.groups.coordinated import pass_on
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def handle(node: Node, ctx: RequestContext, request: SyncGroupRequest) -> None:
    """Answer when the coordinator has answered."""
    pass_on(node, ctx, request.group_id, SYNC_GROUP, request, SyncGroupResponse)
