"""InitProducerId: an id for a producer, from blocks that the controller made durable.

Without a transactional id every request gets a new id at epoch 0, also a caller that had one: an idempotent producer
increases its epoch by itself (KIP-360). With a transactional id the coordinator decides (``core.txn``): the producer
keeps its id, and the one before it is fenced. An id without an epoch, or an epoch without an id, is INVALID_REQUEST.
"""

from typing import Final

from millstream.core.txn.messages import Identity
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.transactions.transactional import in_version
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FENCED_FROM: Final = 4
"""First version that knows PRODUCER_FENCED."""


def handle(node: Node, ctx: RequestContext, request: InitProducerIdRequest) -> None:
    """Answer with a new id at epoch 0, or with what the coordinator of the transactional id says."""
    if request.transactional_id is not None:

        def begun(identity: Identity) -> None:
            error = in_version(identity.error, ctx.api_version >= _FENCED_FROM)
            ctx.respond(
                InitProducerIdResponse(
                    error_code=error, producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
                )
            )

        if not request.transactional_id:
            begun(Identity(ErrorCode.INVALID_REQUEST))
            return
        node.transactions.init(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
            begun,
        )
        return

    if (request.producer_id < 0) != (request.producer_epoch < 0):
        ctx.respond(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1))
        return

    def answer(producer_id: int | MillstreamError) -> None:
        if isinstance(producer_id, MillstreamError):
            ctx.respond(InitProducerIdResponse(error_code=producer_id.code, producer_id=-1, producer_epoch=-1))
        else:
            ctx.respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    node.producer_ids.next(answer)
