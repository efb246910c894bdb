"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups, each asked of its coordinator."""

from collections.abc import Callable

import msgspec

from millstream.coordinator.asks import CONSUMER_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.describe_groups import ALL_GROUP_OPERATIONS
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from millstream.wire.schema import Message

API_KEY = CONSUMER_GROUP_DESCRIBE


def handle(
    node: Node,
    ctx: RequestContext,
    request: ConsumerGroupDescribeRequest,
    respond: Callable[[ConsumerGroupDescribeResponse], None],
) -> None:
    """Answer when every group's coordinator has."""
    names = request.group_ids
    groups = [DescribedConsumerGroup(group_id=name) for name in names]
    missing = len(names) + 1

    def settled() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            respond(ConsumerGroupDescribeResponse(groups=groups))

    def ask(slot: int, name: str) -> None:
        def done(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                answer = DescribedConsumerGroup(group_id=name, error_code=answer)
            assert isinstance(answer, DescribedConsumerGroup)
            if request.include_authorized_operations and not answer.error_code:
                answer = msgspec.structs.replace(answer, authorized_operations=ALL_GROUP_OPERATIONS)
            groups[slot] = answer
            settled()

        one = ConsumerGroupDescribeRequest(group_ids=[name])
        node.coordinator.ask(name, API_KEY, ctx.api_version, ctx.client_id, ctx.host, one, done)

    for slot, name in enumerate(names):
        ask(slot, name)
    settled()
