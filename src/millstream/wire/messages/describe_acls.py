"""API key 29, DescribeAcls: the access control entries that pass a filter (KIP-140, KIP-290)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class DescribeAclsRequest(Request, api_key=29, versions=(1, 3), flexible=2):
    """A filter; None and the numeric value 1 match anything."""

    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    """Who may or may not do what."""

    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Message):
    """A resource, or a pattern of names, and its entries."""

    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = []


class DescribeAclsResponse(Response, api_key=29, versions=(1, 3), flexible=2):
    """The entries that were found."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = []
