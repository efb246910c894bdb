"""ReserveProducerIds: the controller reserves producer ids, which no broker hands out."""

from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.wire.messages.reserve_producer_ids import ReserveProducerIdsRequest, ReserveProducerIdsResponse


def handle(node: Node, ctx: RequestContext, request: ReserveProducerIdsRequest) -> None:
    """Ask the controller."""

    def done(first: int | MillstreamError) -> None:
        if isinstance(first, MillstreamError):
            ctx.respond(ReserveProducerIdsResponse(error_code=int(first.code), error_message=first.message))
        else:
            ctx.respond(ReserveProducerIdsResponse(first_producer_id=first))

    node.controller.allocate_producer_ids(request.count, done)
