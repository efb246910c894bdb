"""API key 30, CreateAcls: add access control entries (KIP-140, KIP-290)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class AclCreation(Message):
    """An entry to be added."""

    resource_type: Int8 = 0
    resource_name: str = ""
    resource_pattern_type: Int8 = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Request, api_key=30, versions=(1, 3), flexible=2):
    """Entries, each added or refused on its own."""

    creations: list[AclCreation] = []


class AclCreationResult(Message):
    """What became of one entry."""

    error_code: Int16 = 0
    error_message: str | None = ""


class CreateAclsResponse(Response, api_key=30, versions=(1, 3), flexible=2):
    """Results in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []
