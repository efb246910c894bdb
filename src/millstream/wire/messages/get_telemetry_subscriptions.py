"""API key 71, GetTelemetrySubscriptions: which of a client's metrics the broker wants (KIP-714)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Request, Response, Uuid


class GetTelemetrySubscriptionsRequest(Request, api_key=71, versions=(0, 0), flexible=0):
    """What shall I push? A client without an id yet sends zeros."""

    client_instance_id: Uuid = bytes(16)


class GetTelemetrySubscriptionsResponse(Response, api_key=71, versions=(0, 0), flexible=0):
    """What to push, how often, in what form; no metrics means nothing, one empty name means all."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = bytes(16)
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = []
