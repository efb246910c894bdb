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
    respond(_table(ErrorCode.NONE))


def answer_unsupported(ctx: RequestContext) -> None:
    """A newer version than we know: version 0 of the answer, which every client reads."""
    body = encode_response(_table(ErrorCode.UNSUPPORTED_VERSION), 0)
    ctx.api.answered(ctx.received_us)
    head = struct.pack(">ii", len(body) + 4, ctx.correlation_id)
    ctx.complete((head + body,), len(head) + len(body))


def _table(error: ErrorCode) -> ApiVersionsResponse:
    from millstream.kafka.dispatch import advertised_versions

    return ApiVersionsResponse(
        error_code=error,
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
