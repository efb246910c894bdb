"""DescribeClientQuotas: quotas of users, client ids and addresses that pass a filter (KIP-546).

Codes and words for filters that cannot be are Kafka's.
"""

from collections.abc import Sequence
from typing import Final

from millstream.core.quota.limits import CLIENT_ID, IP, USER, EntityFilter
from millstream.errors import Rejected
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

_ENTITIES: Final = (USER, CLIENT_ID, IP)
_EXACT, _DEFAULT, _ANY = range(3)
_MATCHES: Final = {_EXACT: "EXACT", _DEFAULT: "DEFAULT", _ANY: "SPECIFIED"}


def handle(node: Node, ctx: RequestContext, request: DescribeClientQuotasRequest) -> None:
    """List the quotas, by entity."""
    try:
        _check(request.components)
    except Rejected as refusal:
        ctx.respond(DescribeClientQuotasResponse(error_code=refusal.code, error_message=refusal.message, entries=None))
        return
    wanted = EntityFilter(
        {one.entity_type: one.match for one in request.components if one.match_type != _ANY},
        frozenset(one.entity_type for one in request.components if one.match_type == _ANY),
        request.strict,
    )
    entries = [
        EntryData(
            [EntityData(kind, name) for kind, name in entity],
            [ValueData(kind, value) for kind, value in sorted(values.items())],
        )
        for entity, values in node.metadata.state.security.limits.entities.items()
        if wanted.matches(entity)
    ]
    ctx.respond(DescribeClientQuotasResponse(entries=entries))


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
    if IP in seen and len(seen) > 1:
        raise Rejected(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
            ErrorCode.INVALID_REQUEST,
        )
