"""API key 44, IncrementalAlterConfigs: change single properties (KIP-339)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.alter_configs import AlterConfigsResourceResponse
from millstream.wire.schema import Int8, Int32, Message, Request, Response


class AlterableConfig(Message):
    """One change. ``config_operation``: 0 set, 1 delete, 2 append, 3 subtract."""

    name: str = ""
    config_operation: Int8 = 0
    value: str | None = ""


class AlterConfigsResource(Message):
    """The changes to one resource."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(Request, api_key=44, versions=(0, 1), flexible=1):
    """Change single properties, leaving the others alone."""

    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class IncrementalAlterConfigsResponse(Response, api_key=44, versions=(0, 1), flexible=1):
    """The result for each resource."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
