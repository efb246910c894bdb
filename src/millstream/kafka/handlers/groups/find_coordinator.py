"""FindCoordinator: the coordinator of a group or a transactional id, which leads the partition that stores it.

The first request creates ``__consumer_offsets`` or ``__transaction_state``. A broker is named once it coordinates
(``coordinator.finding``); until then the answer waits, for a second at most, and is COORDINATOR_NOT_AVAILABLE then. If
this broker has no contact to a leader of the partition for some seconds, a client that asks again is sent to each of
the other replicas in turn, as by Metadata (`metadata`): one of them may coordinate, or knows who does.

A share partition (``group:topicId:partition``, KIP-932) has a coordinator from version 6 on, where share groups are
served. Otherwise, and for a key that is not valid, the answer is INVALID_REQUEST, which clients show with its message.
With COORDINATOR_NOT_AVAILABLE they would retry until they time out.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from millstream.cluster.topic_table import TopicMeta
from millstream.coordinator.hashing import partition_of
from millstream.core.controller.features import has_share_groups
from millstream.core.controller.topic_names import GROUP_METADATA, SHARE_GROUP_STATE, TRANSACTION_STATE
from millstream.kafka.cluster_view import BrokerView, brokers
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_SEVERAL_KEYS_FROM = 4
_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_SHARE_FROM: Final = 6
_TOPICS: Final = {_GROUP: GROUP_METADATA, _TRANSACTION: TRANSACTION_STATE, _SHARE: SHARE_GROUP_STATE}
_REFUSALS: Final = {2: "Not every broker of this cluster serves share groups yet."}
_TOPIC_ID: Final = re.compile("[A-Za-z0-9_-]{21}[AQgw]")
"""16 bytes in base64 without padding."""
_INDEX: Final = re.compile("0|[1-9][0-9]{0,9}")
_NOBODY: Final = BrokerView(-1, "", -1, None)


def handle(node: Node, ctx: RequestContext, request: FindCoordinatorRequest) -> None:
    """Answer with the leader once the topic exists and the leader coordinates."""

    def done(error: ErrorCode, message: str | None = None) -> None:
        ctx.respond(_answer(node, ctx, request, {}, error, message))

    def ensured(error: ErrorCode) -> None:
        topic = node.metadata.topic(_TOPICS[request.key_type])
        if error is not ErrorCode.NONE or topic is None:
            done(error or ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            _find(node, ctx, request, topic)

    if request.key_type == _GROUP:
        node.coordinator.ensure(ensured)
    elif request.key_type == _TRANSACTION:
        node.transactions.ensure(ensured)
    elif (
        request.key_type == _SHARE
        and ctx.api_version >= _SHARE_FROM
        and has_share_groups(node.metadata.state.feature_level)
    ):
        node.share_states.ensure(ensured)
    else:
        done(ErrorCode.INVALID_REQUEST, _REFUSALS.get(request.key_type, "There is no such type of coordinator."))


def _find(node: Node, ctx: RequestContext, request: FindCoordinatorRequest, topic: TopicMeta) -> None:
    """Answer when it is known of the partition of each key whether its leader coordinates."""
    keys = [request.key] if ctx.api_version < _SEVERAL_KEYS_FROM else request.coordinator_keys
    partitions = {
        PartitionIndex(partition_of(key, len(topic.partitions)))
        for key in keys
        if request.key_type != _SHARE or is_share_partition(key)
    }
    found: dict[int, ErrorCode] = {}
    missing = len(partitions) + 1

    def settled(partition: int | None, error: ErrorCode) -> None:
        nonlocal missing
        if partition is not None:
            found[partition] = error
        missing -= 1
        if not missing:
            ctx.respond(_answer(node, ctx, request, found))

    for partition in partitions:
        node.coordinators.find(topic.name, partition, partial(settled, partition))
    settled(None, ErrorCode.NONE)


def is_share_partition(key: str) -> bool:
    """Whether a key names a share partition as Kafka writes it. It is read from its end: group ids have colons."""
    group_id, _, rest = key.rpartition(":")[0].rpartition(":")
    partition = key.rpartition(":")[2]
    return bool(group_id) and _TOPIC_ID.fullmatch(rest) is not None and _INDEX.fullmatch(partition) is not None


def _answer(
    node: Node,
    ctx: RequestContext,
    request: FindCoordinatorRequest,
    found: Mapping[int, ErrorCode],
    error: ErrorCode = ErrorCode.NONE,
    message: str | None = None,
) -> FindCoordinatorResponse:
    """``found`` has the outcome for each partition, unless ``error`` refuses the request."""
    turn = ctx.connection.client.leaderless
    topic = node.metadata.topic(_TOPICS.get(request.key_type, GROUP_METADATA))
    if topic is not None and topic.lost:
        ctx.connection.client.leaderless += 1

    def coordinator(key: str) -> tuple[BrokerView, ErrorCode]:
        if error is not ErrorCode.NONE or topic is None:
            return _NOBODY, error or ErrorCode.COORDINATOR_NOT_AVAILABLE
        if request.key_type == _SHARE and not is_share_partition(key):
            return _NOBODY, ErrorCode.INVALID_REQUEST
        part = topic.partitions[partition_of(key, len(topic.partitions))]
        other = node.metadata.other_replica(part, turn)
        refusal = found.get(part.index, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if other is None and refusal is not ErrorCode.NONE:
            return _NOBODY, refusal
        wanted = part.leader if other is None else other
        named = (broker for broker in brokers(node, ctx) if broker.node_id == wanted)
        broker = next(named, None)
        return (_NOBODY, ErrorCode.COORDINATOR_NOT_AVAILABLE) if broker is None else (broker, ErrorCode.NONE)

    if ctx.api_version < _SEVERAL_KEYS_FROM:
        broker, code = coordinator(request.key)
        text = code.name if message is None else message
        return FindCoordinatorResponse(
            error_code=code, error_message=text, node_id=broker.node_id, host=broker.host, port=broker.port
        )
    answer = FindCoordinatorResponse()
    for key in request.coordinator_keys:
        broker, code = coordinator(key)
        answer.coordinators.append(
            Coordinator(
                key=key,
                node_id=broker.node_id,
                host=broker.host,
                port=broker.port,
                error_code=code,
                error_message=message or "",
            )
        )
    return answer
