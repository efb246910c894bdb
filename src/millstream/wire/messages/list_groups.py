"""API key 16, ListGroups: the groups that a broker coordinates.

Version 4 filters by state, 5 by type.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Message, Request, Response


class ListGroupsRequest(Request, api_key=16, versions=(0, 5), flexible=3):
    """Which groups are there, in these states and of these types? Empty lists mean any."""

    states_filter: Annotated[list[str], F("4+")] = []
    types_filter: Annotated[list[str], F("5+")] = []


class ListedGroup(Message):
    """One group."""

    group_id: str = ""
    protocol_type: str = ""
    group_state: Annotated[str, F("4+")] = ""
    group_type: Annotated[str, F("5+")] = ""


class ListGroupsResponse(Response, api_key=16, versions=(0, 5), flexible=3):
    """The groups that this broker coordinates."""

    throttle_time_ms: Annotated[Int32, F("1+")] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
