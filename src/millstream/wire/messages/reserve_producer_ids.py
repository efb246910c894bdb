"""API key 15301, ReserveProducerIds: producer ids that the cluster hands out to no producer.

Millstream's own API; no Kafka client sends it. ``millstream backup restore`` gives the producers of a backup ids of
this range, so that a new producer never gets the id of one whose records are in the log.
"""

from millstream.wire.schema import Int16, Int32, Int64, Request, Response


class ReserveProducerIdsRequest(Request, api_key=15301, versions=(0, 0), flexible=0):
    """How many ids, one at least."""

    count: Int64 = 0


class ReserveProducerIdsResponse(Response, api_key=15301, versions=(0, 0), flexible=0):
    """The first of the ids; the others follow without a gap. -1 with an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    first_producer_id: Int64 = -1
