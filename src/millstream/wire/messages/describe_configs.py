"""API key 32, DescribeConfigs: properties of topics and brokers.

Version 1 added sources and synonyms, 3 types and documentation.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Message, Request, Response


class DescribeConfigsResource(Message):
    """A resource and the properties wanted of it; ``None`` is all of them."""

    resource_type: Int8 = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []


class DescribeConfigsRequest(Request, api_key=32, versions=(1, 4), flexible=4):
    """Read properties of topics and brokers."""

    resources: list[DescribeConfigsResource] = []
    include_synonyms: bool = False
    include_documentation: Annotated[bool, F("3+")] = False


class DescribeConfigsSynonym(Message):
    """A setting that stands behind a property, in the order in which they win."""

    name: str = ""
    value: str | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    """A property: its value, where that comes from, and what else would have set it."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Annotated[Int8, F("3+")] = 0
    documentation: Annotated[str | None, F("3+")] = ""


class DescribeConfigsResult(Message):
    """The properties of one resource, or the reason for none."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Response, api_key=32, versions=(1, 4), flexible=4):
    """The properties of each resource."""

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []
