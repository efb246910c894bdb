"""FindCoordinator: the coordinator of a group or a transactional id, which leads the partition that stores it.

The first request creates ``__consumer_offsets`` or ``__transaction_state`` and is answered when it exists. Share groups
have no coordinator here: INVALID_REQUEST, which clients show with its message. With COORDINATOR_NOT_AVAILABLE they
would retry until they time out.
"""

from collections.abc import Callable
from typing import Final

from millstream.coordinator.hashing import partition_of
from millstream.core.controller.topic_names import GROUP_METADATA, TRANSACTION_STATE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.cluster_view import BrokerView, brokers
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

API_KEY = 10
_SEVERAL_KEYS_FROM = 4
_GROUP: Final = 0
_TRANSACTION: Final = 1
_TOPICS: Final = {_GROUP: GROUP_METADATA, _TRANSACTION: TRANSACTION_STATE}
_REFUSALS: Final = {2: "This broker does not serve share groups."}
_NOBODY: Final = BrokerView(-1, "", -1, None)


def handle(
    node: Node, ctx: RequestContext, request: FindCoordinatorRequest, respond: Callable[[FindCoordinatorResponse], None]
) -> None:
    """Answer with the leader once the topic exists."""

    def done(error: ErrorCode, message: str | None = None) -> None:
        offsets = node.metadata.topic(GROUP_METADATA) if request.key_type == _GROUP else None
        if offsets is not None and node.metadata.sends_away([offsets]):
            ctx.connection.close()  # see `metadata`
            return
        respond(_answer(node, ctx, request, error, message))

    if request.key_type == _GROUP:
        node.coordinator.ensure(done)
    elif request.key_type == _TRANSACTION:
        node.transactions.ensure(done)
    else:
        done(ErrorCode.INVALID_REQUEST, _REFUSALS.get(request.key_type, "There is no such type of coordinator."))


def _answer(
    node: Node, ctx: RequestContext, request: FindCoordinatorRequest, error: ErrorCode, message: str | None
) -> FindCoordinatorResponse:
    if ctx.api_version < _SEVERAL_KEYS_FROM:
        broker, error = _coordinator(node, ctx, request.key_type, request.key, error)
        text = error.name if message is None else message
        return FindCoordinatorResponse(
            error_code=error, error_message=text, node_id=broker.node_id, host=broker.host, port=broker.port
        )
    found = FindCoordinatorResponse()
    for key in request.coordinator_keys:
        broker, of_key = _coordinator(node, ctx, request.key_type, key, error)
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


def _coordinator(
    node: Node, ctx: RequestContext, key_type: int, key: str, error: ErrorCode
) -> tuple[BrokerView, ErrorCode]:
    """The broker that leads the partition of ``key``; COORDINATOR_NOT_AVAILABLE if it is not alive."""
    topic = node.metadata.topic(_TOPICS.get(key_type, GROUP_METADATA))
    if error is not ErrorCode.NONE or topic is None:
        return _NOBODY, error or ErrorCode.COORDINATOR_NOT_AVAILABLE
    leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
    for broker in brokers(node, ctx):
        if broker.node_id == leader:
            return broker, ErrorCode.NONE
    return _NOBODY, ErrorCode.COORDINATOR_NOT_AVAILABLE
