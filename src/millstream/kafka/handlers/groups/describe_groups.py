"""DescribeGroups: state, members and assignments of classic groups."""

from typing import Final

import msgspec

from millstream.kafka import repeats
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 3, 6, 8, 10, 11
ALL_GROUP_OPERATIONS: Final = sum(
    1 << operation for operation in (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
)
"""Operations allowed on a group without access control: all of them (Kafka's numbers of ``AclOperation``)."""


def handle(node: Node, ctx: RequestContext, request: DescribeGroupsRequest) -> None:
    """Answer when every group's coordinator has answered."""
    names = list(dict.fromkeys(request.groups))

    def done(groups: list[DescribedGroup]) -> None:
        if request.include_authorized_operations:
            groups = [
                msgspec.structs.replace(group, authorized_operations=ALL_GROUP_OPERATIONS)
                if group.error_code == ErrorCode.NONE
                else group
                for group in groups
            ]
        answered = dict(zip(names, groups, strict=True))
        ctx.respond(DescribeGroupsResponse(groups=repeats.tell(request.groups, answered, _refused)))

    node.coordinator.describe_groups(names, ctx.api_version, done)


def _refused(name: str) -> DescribedGroup:
    return DescribedGroup(group_id=name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=repeats.REFUSAL)
