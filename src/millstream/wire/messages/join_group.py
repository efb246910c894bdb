"""API key 11, JoinGroup: enter a classic group and its rebalance.

Version 4 requires a member id before joining (KIP-394), 5 brought static members, 7 the protocol type, 8 the reason, 9
the leader's leave to skip the assignment (KIP-814).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Message, Request, Response


class JoinGroupRequestProtocol(Message):
    """An assignor that the member can use, with the metadata that it needs."""

    name: str = ""
    metadata: bytes = b""


class JoinGroupRequest(Request, api_key=11, versions=(0, 9), flexible=6):
    """Enter a group, or answer its call to rebalance."""

    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, F("1+")] = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, F("5+")] = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[str | None, F("8+")] = None


class JoinGroupResponseMember(Message):
    """A member and its metadata for the chosen protocol."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, F("5+")] = None
    metadata: bytes = b""


class JoinGroupResponse(Response, api_key=11, versions=(0, 9), flexible=6):
    """The new generation. Only the leader gets the members."""

    throttle_time_ms: Annotated[Int32, F("2+")] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[str | None, F("7+")] = None
    protocol_name: Annotated[str | None, F(nullable="7+")] = ""
    leader: str = ""
    skip_assignment: Annotated[bool, F("9+")] = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []
