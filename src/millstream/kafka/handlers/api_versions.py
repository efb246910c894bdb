"""ApiVersions: what this broker serves, in which versions (KIP-511 for the fall-back)."""

import struct
from collections.abc import Callable

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.codec import encode_response
from millstream.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse


def handle(
    node: Node, ctx: RequestContext, request: ApiVersionsRequest, respond: Callable[[ApiVersionsResponse], None]
) -> None:
    """Answer the table of served APIs; a client name that breaks KIP-511's pattern is refused."""
    _ = node
    if ctx.api_version >= 3 and not (
        _is_name(request.client_software_name) and _is_name(request.client_software_version)
    ):
        respond(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    respond(_table())


def answer_unsupported(ctx: RequestContext) -> None:
    """A newer version than we know: version 0 of the answer, which every client reads, with our versions of this API."""
    from millstream.kafka.dispatch import API_VERSIONS_KEY, advertised_versions

    low, high = advertised_versions()[API_VERSIONS_KEY]
    ours = ApiVersion(api_key=API_VERSIONS_KEY, min_version=low, max_version=high)
    body = encode_response(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[ours]), 0)
    ctx.api.answered(ctx.received_us)
    head = struct.pack(">ii", len(body) + 4, ctx.correlation_id)
    ctx.complete((head + body,), len(head) + len(body))


def _table() -> ApiVersionsResponse:
    from millstream.kafka.dispatch import advertised_versions

    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in sorted(advertised_versions().items())
        ],
    )


def _is_name(text: str) -> bool:
    r"""``[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?``, as KIP-511 has it."""
    if not text or not text.isascii() or not text.replace("-", "").replace(".", "").isalnum():
        return False
    return text[0].isalnum() and text[-1].isalnum()
