"""API key 31, DeleteAcls: remove the access control entries that pass filters (KIP-140, KIP-290)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class DeleteAclsFilter(Message):
    """A filter; None and the numeric value 1 match anything."""

    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Request, api_key=31, versions=(1, 3), flexible=2):
    """Filters, each with a result of its own."""

    filters: list[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Message):
    """An entry that a filter found, and whether it was removed."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Message):
    """What became of one filter."""

    error_code: Int16 = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Response, api_key=31, versions=(1, 3), flexible=2):
    """Results in the order of the request."""

    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []
