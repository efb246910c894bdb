"""FindCoordinator: the coordinator of a group, which is the leader of the partition that stores it.

The first request creates ``__consumer_offsets`` and is answered when it exists. Transactions and share groups have no
coordinator here: INVALID_REQUEST, which clients show with its message. With COORDINATOR_NOT_AVAILABLE they would retry
until they time out.
"""

from collections.abc import Callable
from typing import Final

from millstream.coordinator.hashing import partition_of
from millstream.core.controller.topic_names import GROUP_METADATA
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.cluster_view import BrokerView, brokers
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

API_KEY = 10
_SEVERAL_KEYS_FROM = 4
_GROUP: Final = 0
_REFUSALS: Final = {
    1: "This broker does not serve transactions.",
    2: "This broker does not serve share groups.",
}
_NOBODY: Final = BrokerView(-1, "", -1, None)


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
    if ctx.api_version < _SEVERAL_KEYS_FROM:
        broker, error = _coordinator(node, ctx, request.key, error)
        text = error.name if message is None else message
        return FindCoordinatorResponse(
            error_code=error, error_message=text, node_id=broker.node_id, host=broker.host, port=broker.port
        )
    found = FindCoordinatorResponse()
    for key in request.coordinator_keys:
        broker, of_key = _coordinator(node, ctx, key, error)
        found.coordinators.append(
            Coordinator(
                key=key,
                node_id=broker.node_id,
                host=broker.host,
                port=broker.port,
                error_code=of_key,
                error_message=message or "",
            )
        )
    return found


def _coordinator(node: Node, ctx: RequestContext, group: str, error: ErrorCode) -> tuple[BrokerView, ErrorCode]:
    """The broker that leads the partition of ``group``; COORDINATOR_NOT_AVAILABLE if it is not alive."""
    topic = node.metadata.topic(GROUP_METADATA)
    if error is not ErrorCode.NONE or topic is None:
        return _NOBODY, error or ErrorCode.COORDINATOR_NOT_AVAILABLE
    leader = topic.partitions[partition_of(group, len(topic.partitions))].leader
    for broker in brokers(node, ctx):
        if broker.node_id == leader:
            return broker, ErrorCode.NONE
    return _NOBODY, ErrorCode.COORDINATOR_NOT_AVAILABLE
