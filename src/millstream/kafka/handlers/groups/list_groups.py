"""ListGroups: every group that this broker coordinates, on all shards."""

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(node: Node, ctx: RequestContext, request: ListGroupsRequest) -> None:
    """Answer when every shard has listed its groups."""

    def done(error: ErrorCode, groups: list[ListedGroup]) -> None:
        ctx.respond(ListGroupsResponse(error_code=error, groups=groups))

    node.coordinator.list_groups(request.states_filter, request.types_filter, done)
