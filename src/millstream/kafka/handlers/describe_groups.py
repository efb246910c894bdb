"""DescribeGroups: state, members and assignments of classic groups."""

from collections.abc import Callable
from typing import Final

import msgspec

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

API_KEY = 15

_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 3, 6, 8, 10, 11
ALL_GROUP_OPERATIONS: Final = sum(
    1 << operation for operation in (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
)
"""Without access control everybody may do what can be done to a group (Kafka's numbers of ``AclOperation``)."""


def handle(
    node: Node, ctx: RequestContext, request: DescribeGroupsRequest, respond: Callable[[DescribeGroupsResponse], None]
) -> None:
    """Answer when every group's coordinator has."""

    def done(groups: list[DescribedGroup]) -> None:
        if request.include_authorized_operations:
            groups = [
                msgspec.structs.replace(group, authorized_operations=ALL_GROUP_OPERATIONS)
                if group.error_code == ErrorCode.NONE
                else group
                for group in groups
            ]
        respond(DescribeGroupsResponse(groups=groups))

    node.coordinator.describe_groups(request.groups, ctx.api_version, done)
