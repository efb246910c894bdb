"""AlterClientQuotas: change quotas of users, client ids and addresses (KIP-546). Each entity has its own result."""

from millstream.core.controller.requests import AlterQuotas, ChangeQuotas, Results
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
)


def handle(node: Node, ctx: RequestContext, request: AlterClientQuotasRequest) -> None:
    """Let the controller change the quotas."""

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            answers = [AlteredEntryData(results.code, results.message, each.entity) for each in request.entries]
        else:
            answers = [
                AlteredEntryData(one.error, one.message, each.entity)
                for one, each in zip(results, request.entries, strict=True)
            ]
        ctx.respond(AlterClientQuotasResponse(entries=answers))

    entities = tuple(
        ChangeQuotas(
            tuple((part.entity_type, part.entity_name) for part in each.entity),
            tuple((op.key, None if op.remove else op.value) for op in each.ops),
        )
        for each in request.entries
    )
    node.controller.submit(AlterQuotas(entities, request.validate_only), done)
