"""DeleteGroups: delete groups without members, and their offsets (``core.group.delete``).

Each group may be on another shard; the response is sent when all have answered. A group that is named twice is deleted,
and answered, once.
"""

from collections.abc import Callable

from millstream.coordinator.asks import DELETE_GROUPS
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: DeleteGroupsRequest) -> None:
    """Answer when every group's coordinator has answered."""

    def delete(name: str, deleted: Callable[[DeletableGroupResult], None]) -> None:
        def done(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                answer = DeletableGroupResult(group_id=name, error_code=answer)
            assert isinstance(answer, DeletableGroupResult)
            deleted(answer)

        ask(node, ctx, name, DELETE_GROUPS, DeleteGroupsRequest(groups_names=[name]), done)

    names = list(dict.fromkeys(request.groups_names))
    gather(names, delete, lambda results: ctx.respond(DeleteGroupsResponse(results=results)))
