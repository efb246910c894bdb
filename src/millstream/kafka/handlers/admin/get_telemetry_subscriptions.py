"""GetTelemetrySubscriptions: the metrics that a client shall push, and how often (KIP-714).

``core.client_telemetry`` has the rules; ``kafka.telemetry`` stores pushed metrics.
"""

from millstream.core.client_telemetry import COMPRESSIONS
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.telemetry import attributes
from millstream.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


def handle(node: Node, ctx: RequestContext, request: GetTelemetrySubscriptionsRequest) -> None:
    """Answer from the subscriptions. Clients push deltas since their last push."""
    clients = node.telemetry.clients
    now_ms = node.shard.reactor.now_us() // 1000
    error, instance_id, wanted = clients.get(now_ms, request.client_instance_id, attributes(ctx.connection.client))
    if wanted is None:
        ctx.respond(GetTelemetrySubscriptionsResponse(error_code=error))
        return
    ctx.respond(
        GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=wanted.subscription_id,
            accepted_compression_types=list(COMPRESSIONS),
            push_interval_ms=wanted.interval_ms,
            telemetry_max_bytes=clients.max_bytes,
            delta_temporality=True,
            requested_metrics=list(wanted.metrics),
        )
    )
