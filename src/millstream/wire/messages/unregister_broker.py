"""API key 64, UnregisterBroker: forget a broker that left permanently."""

from millstream.wire.schema import Int16, Int32, Request, Response


class UnregisterBrokerRequest(Request, api_key=64, versions=(0, 0), flexible=0):
    """Forget a broker."""

    broker_id: Int32 = 0


class UnregisterBrokerResponse(Response, api_key=64, versions=(0, 0), flexible=0):
    """The outcome."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
