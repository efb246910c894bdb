"""What descriptions of groups with assigned members have in common: each group's coordinator is asked."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from millstream.kafka import repeats
from millstream.kafka.gathering import gather
from millstream.kafka.handlers.groups.describe_groups import ALL_GROUP_OPERATIONS
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import DescribedConsumerGroup
from millstream.wire.messages.share_group_describe import DescribedShareGroup
from millstream.wire.messages.streams_group_describe import DescribedStreamsGroup
from millstream.wire.schema import Message

_Described = TypeVar("_Described", DescribedConsumerGroup, DescribedShareGroup, DescribedStreamsGroup)


def describe(
    kind: type[_Described],
    group_ids: Sequence[str],
    ask: Callable[[str, Callable[[Message | ErrorCode], None]], None],
    respond: Callable[[list[_Described]], None],
    *,
    with_operations: bool,
) -> None:
    """Call ``respond`` with the description of each group, in the order of ``group_ids``, when all have come.

    Args:
        kind: what describes a group.
        group_ids: may repeat.
        ask: asks the coordinator of one group.
        respond: is called once.
        with_operations: what the client may do with each group is wanted, too.
    """
    names = list(dict.fromkeys(group_ids))

    def ask_one(name: str, answered: Callable[[_Described], None]) -> None:
        def done(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                answer = kind(group_id=name, error_code=answer)
            assert isinstance(answer, kind)
            if with_operations and not answer.error_code:
                answer = msgspec.structs.replace(answer, authorized_operations=ALL_GROUP_OPERATIONS)
            answered(answer)

        ask(name, done)

    def refused(name: str) -> _Described:
        return kind(group_id=name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=repeats.REFUSAL)

    def all_described(groups: list[_Described]) -> None:
        respond(repeats.tell(group_ids, dict(zip(names, groups, strict=True)), refused))

    gather(names, ask_one, all_described)
