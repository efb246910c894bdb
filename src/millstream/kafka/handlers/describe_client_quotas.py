"""DescribeClientQuotas: quotas of users, client ids and addresses (KIP-546). This version has none.

A filter that Kafka would refuse is refused, so that a tool learns of its mistake; any other one finds nothing.
AlterClientQuotas is not served, and therefore not advertised.
"""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.errors import Rejected
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

API_KEY: Final = 48
_ENTITIES: Final = ("user", "client-id", "ip")
_EXACT, _DEFAULT, _ANY = range(3)
_MATCHES: Final = {_EXACT: "EXACT", _DEFAULT: "DEFAULT", _ANY: "SPECIFIED"}


def handle(
    node: Node,
    ctx: RequestContext,
    request: DescribeClientQuotasRequest,
    respond: Callable[[DescribeClientQuotasResponse], None],
) -> None:
    """Check the filter; the result is empty."""
    _ = node, ctx
    try:
        _check(request.components)
    except Rejected as refusal:
        respond(DescribeClientQuotasResponse(error_code=refusal.code, error_message=refusal.message, entries=None))
        return
    respond(DescribeClientQuotasResponse())


def _check(components: Sequence[ComponentData]) -> None:
    """Raise Rejected for an invalid filter, with Kafka's message."""
    seen: set[str] = set()
    for component in components:
        kind, match = component.entity_type, component.match_type
        if not kind:
            raise Rejected("Invalid empty entity type.", ErrorCode.INVALID_REQUEST)
        if kind in seen:
            raise Rejected(f"Entity type {kind} cannot appear more than once in the filter.", ErrorCode.INVALID_REQUEST)
        if kind not in _ENTITIES:
            raise Rejected(f"Unsupported entity type {kind}", ErrorCode.UNSUPPORTED_VERSION)
        if match not in _MATCHES:
            raise Rejected(f"Unknown match type {match}", ErrorCode.INVALID_REQUEST)
        if match == _EXACT and component.match is None:
            raise Rejected(
                "Request specified MATCH_TYPE_EXACT, but set match string to null.", ErrorCode.INVALID_REQUEST
            )
        if match != _EXACT and component.match is not None:
            raise Rejected(
                f"Request specified MATCH_TYPE_{_MATCHES[match]}, but also specified a match string.",
                ErrorCode.INVALID_REQUEST,
            )
        seen.add(kind)
    if "ip" in seen and len(seen) > 1:
        raise Rejected(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
            ErrorCode.INVALID_REQUEST,
        )
