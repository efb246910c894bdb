"""InitProducerId: an id for an idempotent producer, from blocks that the controller made durable.

Transactions are not served, so a request with a transactional id is refused, and a producer that asks to bump its own epoch
(KIP-360) gets the next epoch of its id, or a new id where the epoch is used up.
"""

from collections.abc import Callable

from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_LAST_EPOCH = 32766
"""Kafka keeps 32767 for fencing."""


def handle(
    node: Node, ctx: RequestContext, request: InitProducerIdRequest, respond: Callable[[InitProducerIdResponse], None]
) -> None:
    """Answer with a fresh id at epoch 0, or the caller's own at its next epoch."""
    _ = ctx
    if request.transactional_id is not None:
        code = ErrorCode.INVALID_REQUEST if not request.transactional_id else ErrorCode.COORDINATOR_NOT_AVAILABLE
        respond(InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))
        return

    def answer(producer_id: int | MillstreamError) -> None:
        if isinstance(producer_id, MillstreamError):
            respond(InitProducerIdResponse(error_code=producer_id.code, producer_id=-1, producer_epoch=-1))
        else:
            respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    if request.producer_id >= 0 and 0 <= request.producer_epoch < _LAST_EPOCH:
        respond(InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1))
        return
    node.producer_ids.next(answer)
