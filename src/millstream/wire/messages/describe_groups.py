"""API key 15, DescribeGroups: state and members of classic groups.

Version 3 added authorised operations, 4 static members, 6 error messages.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import F, Int16, Int32, Message, Request, Response


class DescribeGroupsRequest(Request, api_key=15, versions=(0, 6), flexible=5):
    """Describe these classic groups."""

    groups: list[str] = []
    include_authorized_operations: Annotated[bool, F("3+")] = False


class DescribedGroupMember(Message):
    """A member, its subscription and its assignment."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, F("4+")] = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribedGroup(Message):
    """A group, its state and its members."""

    error_code: Int16 = 0
    error_message: Annotated[str | None, F("6+")] = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, F("3+")] = OPERATIONS_NOT_ASKED


class DescribeGroupsResponse(Response, api_key=15, versions=(0, 6), flexible=5):
    """The groups."""

    throttle_time_ms: Annotated[Int32, F("1+")] = 0
    groups: list[DescribedGroup] = []
