"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups, from their coordinators."""

from collections.abc import Callable

import msgspec

from millstream.coordinator.asks import CONSUMER_GROUP_DESCRIBE
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers import repeats
from millstream.kafka.handlers.describe_groups import ALL_GROUP_OPERATIONS
from millstream.kafka.handlers.gathering import gather
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
    """Answer when every group's coordinator has answered."""
    names = list(dict.fromkeys(request.group_ids))

    def ask(name: str, answered: Callable[[DescribedConsumerGroup], None]) -> None:
        def done(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                answer = DescribedConsumerGroup(group_id=name, error_code=answer)
            assert isinstance(answer, DescribedConsumerGroup)
            if request.include_authorized_operations and not answer.error_code:
                answer = msgspec.structs.replace(answer, authorized_operations=ALL_GROUP_OPERATIONS)
            answered(answer)

        one = ConsumerGroupDescribeRequest(group_ids=[name])
        node.coordinator.ask(name, API_KEY, ctx.api_version, ctx.client_id, ctx.host, one, done)

    def all_described(groups: list[DescribedConsumerGroup]) -> None:
        answers = dict(zip(names, groups, strict=True))
        respond(ConsumerGroupDescribeResponse(groups=repeats.tell(request.group_ids, answers, _refused)))

    gather(names, ask, all_described)


def _refused(name: str) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group_id=name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=repeats.REFUSAL
    )
