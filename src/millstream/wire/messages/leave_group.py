"""API key 13, LeaveGroup: take members out of a classic group.

Version 3 takes several members at once (KIP-345), 5 their reasons.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Message, Request, Response


class MemberIdentity(Message):
    """A member by id, or a static one by its instance id."""

    member_id: str = ""
    group_instance_id: str | None = None
    reason: Annotated[str | None, F("5+")] = None


class LeaveGroupRequest(Request, api_key=13, versions=(0, 5), flexible=4):
    """Leave: one member up to version 2, several after."""

    group_id: str = ""
    member_id: Annotated[str, F("0-2")] = ""
    members: Annotated[list[MemberIdentity], F("3+")] = []


class MemberResponse(Message):
    """The outcome for one member."""

    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: Int16 = 0


class LeaveGroupResponse(Response, api_key=13, versions=(0, 5), flexible=4):
    """The outcome for the request and, from version 3, for each member."""

    throttle_time_ms: Annotated[Int32, F("1+")] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], F("3+")] = []
