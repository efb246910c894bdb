"""API key 33, AlterConfigs: replace what resources say for themselves; IncrementalAlterConfigs changes parts."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class AlterableConfig(Message):
    """One property and its value."""

    name: str = ""
    value: str | None = ""


class AlterConfigsResource(Message):
    """Everything that one resource shall say for itself from now on."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Request, api_key=33, versions=(0, 2), flexible=2):
    """Replace the configurations of resources."""

    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class AlterConfigsResourceResponse(Message):
    """The outcome for one resource: everything or nothing."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


class AlterConfigsResponse(Response, api_key=33, versions=(0, 2), flexible=2):
    """The result for each resource."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
