"""ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe: each group's coordinator is asked."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from millstream.kafka import repeats
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.gathering import gather
from millstream.kafka.handlers.groups.coordinated import ask
from millstream.kafka.handlers.groups.describe_groups import ALL_GROUP_OPERATIONS
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedConsumerGroup
from millstream.wire.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeRequest
from millstream.wire.messages.streams_group_describe import DescribedStreamsGroup, StreamsGroupDescribeRequest
from millstream.wire.schema import Message, Response

_Described = TypeVar("_Described", DescribedConsumerGroup, DescribedShareGroup, DescribedStreamsGroup)


class _Response(Protocol[_Described]):
    def __call__(self, *, groups: list[_Described]) -> Response: ...


def describe(
    node: Node,
    ctx: RequestContext,
    api: ApiKey,
    request: ConsumerGroupDescribeRequest | ShareGroupDescribeRequest | StreamsGroupDescribeRequest,
    described: type[_Described],
    response: _Response[_Described],
    *,
    enabled: bool = True,
) -> None:
    """Answer with the description of each group, in the order of the request, when all have come.

    Args:
        node: the node.
        ctx: the request's context.
        api: its key.
        request: may name a group several times.
        described: what describes a group.
        response: the class of the response.
        enabled: False refuses each group, because the protocol is switched off.
    """

    def describe_one(name: str, done: Callable[[_Described], None]) -> None:
        def answered(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                answer = described(group_id=name, error_code=answer)
            assert isinstance(answer, described)
            if request.include_authorized_operations and not answer.error_code:
                answer = msgspec.structs.replace(answer, authorized_operations=ALL_GROUP_OPERATIONS)
            done(answer)

        if enabled:
            ask(node, ctx, name, api, type(request)(group_ids=[name]), answered)
        else:
            answered(ErrorCode.UNSUPPORTED_VERSION)

    def refused(name: str) -> _Described:
        return described(group_id=name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=repeats.REFUSAL)

    def all_described(groups: list[_Described]) -> None:
        found = dict(zip(names, groups, strict=True))
        ctx.respond(response(groups=repeats.tell(request.group_ids, found, refused)))

    names = list(dict.fromkeys(request.group_ids))
    gather(names, describe_one, all_described)
