"""API key 74, ListConfigResources: the names of what has configurations.

Version 0 was ListClientMetricsResources; 1 added the types (KIP-1142).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Message, Request, Response


class ListConfigResourcesRequest(Request, api_key=74, versions=(0, 1), flexible=0):
    """Which resources are there? No types means all types."""

    resource_types: Annotated[list[Int8], F("1+")] = []


class ConfigResource(Message):
    """One resource."""

    resource_name: str = ""
    resource_type: Annotated[Int8, F("1+")] = 16


class ListConfigResourcesResponse(Response, api_key=74, versions=(0, 1), flexible=0):
    """The resources of the types that were asked for."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
