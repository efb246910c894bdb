"""DeleteGroups: delete groups without members, and their offsets (``core.group.delete``).

Each group may be on another shard; the response is sent when all have answered. A group that is named twice is deleted,
and answered, once.
"""

from millstream.coordinator.asks import DELETE_GROUPS
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.schema import Message


def handle(node: Node, ctx: RequestContext, request: DeleteGroupsRequest) -> None:
    """Answer when every group's coordinator has answered."""
    names = list(dict.fromkeys(request.groups_names))
    results = [DeletableGroupResult(group_id=name) for name in names]
    missing = len(names) + 1

    def settled() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            ctx.respond(DeleteGroupsResponse(results=results))

    def ask(slot: int, name: str) -> None:
        def done(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                answer = DeletableGroupResult(group_id=name, error_code=answer)
            assert isinstance(answer, DeletableGroupResult)
            results[slot] = answer
            settled()

        one = DeleteGroupsRequest(groups_names=[name])
        node.coordinator.ask(name, DELETE_GROUPS, ctx.api_version, ctx.client_id, ctx.host, one, done)

    for slot, name in enumerate(names):
        ask(slot, name)
    settled()
