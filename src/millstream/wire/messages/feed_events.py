"""API key 15101, FeedEvents: metadata and descriptors of the next events of a partition, and no data.

Each request grants credit: at most ``max_events`` events and ``max_bytes`` bytes. A consumer keeps several requests in
flight, so that reading and sending overlap; the broker never sends more than was granted. A request that finds nothing
waits up to ``max_wait_ms``. A request with ``stop`` ends those that wait: each is answered with what there is. When
nothing is left and the consumer stops, or the topic is complete, the answer is empty and says ``no_more_events``.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Message, Records, Request, Response, Uuid


class FeedEventsRequest(Request, api_key=15101, versions=(0, 0), flexible=0):
    """``next_event_id``: the first event wanted. The first batch comes whole even above ``max_bytes``, but not above
    ``max_events``.
    """

    consumer: str = ""
    topic_id: Uuid = ZERO_UUID
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = -1
    next_event_id: Int64 = 0
    max_events: Int32 = 0
    max_bytes: Int32 = 0
    max_wait_ms: Int32 = 0
    stop: bool = False


class EventTimes(Message):
    """``count`` events in a row have this time (ms since 1970 UTC)."""

    count: Int32 = 0
    timestamp: Int64 = -1


class FeedEventsResponse(Response, api_key=15101, versions=(0, 0), flexible=0):
    """Events from ``first_event_id`` on.

    ``metadata_sizes`` and ``descriptor_sizes`` are little-endian uint32, one an event; ``metadata`` and
    ``descriptors`` have these runs back to back.
    """

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    first_event_id: Int64 = -1
    high_watermark: Int64 = -1
    log_start_offset: Int64 = -1
    no_more_events: bool = False
    times: list[EventTimes] = []
    metadata_sizes: bytes = b""
    metadata: Records = b""
    descriptor_sizes: bytes = b""
    descriptors: Records = b""
    current_leader: Annotated[LeaderIdAndEpoch, F(tag=0)] = LeaderIdAndEpoch()
    node_endpoints: Annotated[list[NodeEndpoint], F(tag=1)] = []
