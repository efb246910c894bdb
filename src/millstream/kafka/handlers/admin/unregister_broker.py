"""UnregisterBroker: forget a broker that will not come back.

As in Kafka the broker's id is free then. Unlike in Kafka a broker that is alive, or that still holds replicas, is
refused: ``millstream cluster decommission`` moves its replicas and then lets it go.
"""

from typing import Final

from millstream.core.controller.requests import Results, UnregisterBroker
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

_TIMEOUT_MS: Final = 30_000
"""The request has no timeout of its own; Kafka's clients wait this long."""


def handle(node: Node, ctx: RequestContext, request: UnregisterBrokerRequest) -> None:
    """Have the controller forget the broker."""

    def answered(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            code = results.code or ErrorCode.UNKNOWN_SERVER_ERROR
            ctx.respond(UnregisterBrokerResponse(error_code=code, error_message=results.message))
        else:
            ctx.respond(UnregisterBrokerResponse(error_code=results[0].error, error_message=results[0].message))

    node.controller.submit(UnregisterBroker(NodeId(request.broker_id)), answered, _TIMEOUT_MS)
