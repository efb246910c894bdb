"""API key 42, DeleteGroups: forget groups that have no members, with their offsets."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Message, Request, Response


class DeleteGroupsRequest(Request, api_key=42, versions=(0, 2), flexible=2):
    """Delete these groups."""

    groups_names: list[str] = []


class DeletableGroupResult(Message):
    """A deleted group, or the reason against it."""

    group_id: str = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Response, api_key=42, versions=(0, 2), flexible=2):
    """The result for each group."""

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
