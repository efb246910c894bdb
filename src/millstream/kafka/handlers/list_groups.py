"""ListGroups: every group that this broker coordinates, on all shards."""

from collections.abc import Callable

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

API_KEY = 16


def handle(
    node: Node, ctx: RequestContext, request: ListGroupsRequest, respond: Callable[[ListGroupsResponse], None]
) -> None:
    """Answer when every shard has listed its groups."""
    _ = ctx

    def done(error: ErrorCode, groups: list[ListedGroup]) -> None:
        respond(ListGroupsResponse(error_code=error, groups=groups))

    node.coordinator.list_groups(request.states_filter, request.types_filter, done)
