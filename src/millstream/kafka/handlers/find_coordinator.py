"""FindCoordinator: the coordinator of a group. On a single node this broker.

The first request creates ``__consumer_offsets`` and is answered when it exists. Transactions and share groups have no
coordinator here: INVALID_REQUEST, which clients show with its message. With COORDINATOR_NOT_AVAILABLE they would retry
until they time out.
"""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.cluster_view import advertised
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

API_KEY = 10
_SEVERAL_KEYS_FROM = 4
_GROUP: Final = 0
_REFUSALS: Final = {
    1: "This broker does not serve transactions.",
    2: "This broker does not serve share groups.",
}
_NO_NODE: Final = -1


def handle(
    node: Node, ctx: RequestContext, request: FindCoordinatorRequest, respond: Callable[[FindCoordinatorResponse], None]
) -> None:
    """Answer with this node once ``__consumer_offsets`` exists."""

    def done(error: ErrorCode, message: str | None = None) -> None:
        respond(_answer(node, ctx, request, error, message))

    if request.key_type == _GROUP:
        node.coordinator.ensure(done)
    else:
        done(ErrorCode.INVALID_REQUEST, _REFUSALS.get(request.key_type, "There is no such type of coordinator."))


def _answer(
    node: Node, ctx: RequestContext, request: FindCoordinatorRequest, error: ErrorCode, message: str | None
) -> FindCoordinatorResponse:
    node_id, host, port = _NO_NODE, "", -1
    if error is ErrorCode.NONE:
        node_id = node.settings.node_id
        host, port = advertised(node, ctx)
    if ctx.api_version < _SEVERAL_KEYS_FROM:
        text = error.name if message is None else message
        return FindCoordinatorResponse(error_code=error, error_message=text, node_id=node_id, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=message or "")
            for key in request.coordinator_keys
        ]
    )
