"""InitProducerId: an id for an idempotent producer, from blocks that the controller made durable.

Without a transactional id every request gets a new id at epoch 0, whatever id the caller had: an idempotent producer
increases its epoch by itself (KIP-360). A request with a transactional id is refused with UNSUPPORTED_VERSION, which is
final for clients. An id without an epoch, or an epoch without an id, is INVALID_REQUEST.
"""

from collections.abc import Callable

from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def handle(
    node: Node, ctx: RequestContext, request: InitProducerIdRequest, respond: Callable[[InitProducerIdResponse], None]
) -> None:
    """Answer with a new id at epoch 0."""
    _ = ctx
    if request.transactional_id is not None:
        code = ErrorCode.INVALID_REQUEST if not request.transactional_id else ErrorCode.UNSUPPORTED_VERSION
        respond(InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))
        return

    if (request.producer_id < 0) != (request.producer_epoch < 0):
        respond(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1))
        return

    def answer(producer_id: int | MillstreamError) -> None:
        if isinstance(producer_id, MillstreamError):
            respond(InitProducerIdResponse(error_code=producer_id.code, producer_id=-1, producer_epoch=-1))
        else:
            respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    node.producer_ids.next(answer)
