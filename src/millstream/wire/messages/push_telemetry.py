"""API key 72, PushTelemetry: a client's metrics in OpenTelemetry's form (KIP-714)."""

from millstream.wire.schema import Int8, Int16, Int32, Request, Response, Uuid


class PushTelemetryRequest(Request, api_key=72, versions=(0, 0), flexible=0):
    """Metrics for a subscription. ``terminating``: the client's last words."""

    client_instance_id: Uuid = bytes(16)
    subscription_id: Int32 = 0
    terminating: bool = False
    compression_type: Int8 = 0
    metrics: bytes = b""


class PushTelemetryResponse(Response, api_key=72, versions=(0, 0), flexible=0):
    """Whether the broker took them."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
