"""EndTxn: commit or abort a transaction. The answer is sent when the decision is durable; markers are written later."""

from typing import Final

from millstream.core.txn.messages import Identity
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.transactions.transactional import in_version
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_FENCED_FROM: Final = 2
_ABORTABLE_FROM: Final = 4
_EPOCHS_FROM: Final = 5
"""First version that ends every transaction with a new epoch."""


def handle(node: Node, ctx: RequestContext, request: EndTxnRequest) -> None:
    """Have the coordinator decide."""
    version = ctx.api_version

    def ended(identity: Identity) -> None:
        error = in_version(identity.error, version >= _FENCED_FROM, version >= _ABORTABLE_FROM)
        ctx.respond(EndTxnResponse(0, error, identity.producer_id, identity.producer_epoch))

    node.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        2 if version >= _EPOCHS_FROM else 0,
        ended,
    )
