"""PushTelemetry: a client pushes its metrics (KIP-714). ``kafka.telemetry`` stores them."""

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.telemetry import attributes
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


def handle(node: Node, ctx: RequestContext, request: PushTelemetryRequest) -> None:
    """Check the push, and store accepted metrics."""
    client = attributes(ctx.connection.client)
    error = node.telemetry.clients.push(
        node.shard.reactor.now_us() // 1000,
        request.client_instance_id,
        client,
        request.subscription_id,
        request.compression_type,
        len(request.metrics),
        terminating=request.terminating,
    )
    if error is ErrorCode.NONE:
        node.telemetry.receive(client, request, lambda outcome: ctx.respond(PushTelemetryResponse(error_code=outcome)))
    else:
        ctx.respond(PushTelemetryResponse(error_code=error))
