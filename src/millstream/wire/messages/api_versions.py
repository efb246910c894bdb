"""API key 18, ApiVersions: what the broker serves.

Version 3 added the client's name and version and the cluster's features; version 4 lets a feature's lowest level be 0.
A request of a version that is not served is answered in version 0 with UNSUPPORTED_VERSION and the table.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Message, Request, Response


class ApiVersionsRequest(Request, api_key=18, versions=(0, 4), flexible=3):
    """What is the broker able to speak? The first request on most connections."""

    client_software_name: Annotated[str, F("3+")] = ""
    client_software_version: Annotated[str, F("3+")] = ""


class ApiVersion(Message):
    """One served API and its versions, both ends inclusive."""

    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    """A feature that the broker could run, with its levels."""

    name: str = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Message):
    """A feature level that the cluster has agreed on."""

    name: str = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Response, api_key=18, versions=(0, 4), flexible=3):
    """Every API that is served, with its versions; the header of this answer is always version 0."""

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, F("1+")] = 0
    supported_features: Annotated[list[SupportedFeatureKey], F("3+", tag=0)] = []
    finalized_features_epoch: Annotated[Int64, F("3+", tag=1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], F("3+", tag=2)] = []
    zk_migration_ready: Annotated[bool, F("3+", tag=3)] = False
