"""ApiVersions: what this broker serves, in which versions (KIP-511 for the fall-back), and which features it has.

A feature's level says that all brokers of a cluster speak something (``core.controller.features``). Features of Kafka
that this version does not have are not listed, and neither is a feature that is at level 0.
"""

import struct
from typing import Final

from millstream.core.controller.features import FEATURES, has_share_groups, has_streams_groups, level_in_force
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.served import API_VERSIONS_KEY, SHARE_GROUPS, STREAMS_GROUPS, advertised_versions
from millstream.model.error_code import ErrorCode
from millstream.wire.codec import encode_response
from millstream.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SOFTWARE_KEPT: Final = 1024
"""Characters of a client library's name and version that are kept with its connection, as of a client id."""
_LOWEST_LEVEL_0_FROM: Final = 4
_TELEMETRY: Final = frozenset({71, 72})
"""APIs that are announced to clients only where telemetry is collected (``kafka.telemetry``)."""


def handle(node: Node, ctx: RequestContext, request: ApiVersionsRequest) -> None:
    """Answer the table of served APIs; a client name that breaks KIP-511's pattern is refused."""
    if ctx.api_version >= 3 and not (
        _is_name(request.client_software_name) and _is_name(request.client_software_version)
    ):
        ctx.respond(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    name, version = request.client_software_name, request.client_software_version
    ctx.connection.client.software = (name[:SOFTWARE_KEPT], version[:SOFTWARE_KEPT])
    ctx.respond(_table(node, ctx.api_version))


def answer_unsupported(ctx: RequestContext) -> None:
    """A newer version than we know: version 0 of the answer, which everybody reads, with our versions of this API."""
    low, high = advertised_versions()[API_VERSIONS_KEY]
    ours = ApiVersion(api_key=API_VERSIONS_KEY, min_version=low, max_version=high)
    body = encode_response(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[ours]), 0)
    ctx.api.answered(ctx.received_us)
    head = struct.pack(">ii", len(body) + 4, ctx.correlation_id)
    ctx.complete((head + body,), len(head) + len(body))


def _table(node: Node, version: int) -> ApiVersionsResponse:
    cluster_level = node.metadata.state.feature_level
    unsaid = frozenset[int]() if node.settings.client_telemetry_topic else _TELEMETRY
    if not has_share_groups(cluster_level):
        unsaid |= SHARE_GROUPS
    if not has_streams_groups(cluster_level):
        unsaid |= STREAMS_GROUPS
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in advertised_versions().items()
            if key not in unsaid
        ],
        supported_features=[
            SupportedFeatureKey(name=feature.name, min_version=feature.lowest, max_version=feature.highest)
            for feature in FEATURES
            if feature.lowest or version >= _LOWEST_LEVEL_0_FROM
        ],
        finalized_features_epoch=node.metadata.revision,
        finalized_features=[
            FinalizedFeatureKey(name=feature.name, max_version_level=level, min_version_level=level)
            for feature in FEATURES
            if (level := level_in_force(feature, cluster_level, node.settings))
        ],
    )


def _is_name(text: str) -> bool:
    r"""``[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?``, as KIP-511 has it."""
    if not text or not text.isascii() or not text.replace("-", "").replace(".", "").isalnum():
        return False
    return text[0].isalnum() and text[-1].isalnum()
