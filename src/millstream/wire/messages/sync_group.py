"""API key 14, SyncGroup: hand out the assignments of a rebalance.

Version 3 brought static members, 5 the protocol's type and name.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Message, Request, Response


class SyncGroupRequestAssignment(Message):
    """What the leader assigned to one member."""

    member_id: str = ""
    assignment: bytes = b""


class SyncGroupRequest(Request, api_key=14, versions=(0, 5), flexible=4):
    """Fetch the own assignment; the leader brings everybody's."""

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, F("3+")] = None
    protocol_type: Annotated[str | None, F("5+")] = None
    protocol_name: Annotated[str | None, F("5+")] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Response, api_key=14, versions=(0, 5), flexible=4):
    """The assignment of this member."""

    throttle_time_ms: Annotated[Int32, F("1+")] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[str | None, F("5+")] = None
    protocol_name: Annotated[str | None, F("5+")] = None
    assignment: bytes = b""
