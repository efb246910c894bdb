"""API key 15100, PushEvents: append one event batch to a partition of an event topic.

Millstream's own API; no Kafka client sends it. The five APIs of events have keys from 15100 on, far above Kafka's.
"""

from typing import Annotated

from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Records, Request, Response, Uuid


class PushEventsRequest(Request, api_key=15100, versions=(0, 0), flexible=0):
    """One batch, built as ``format.events.batch`` says. It is answered when its events are committed."""

    topic_id: Uuid = ZERO_UUID
    partition_index: Int32 = 0
    timeout_ms: Int32 = 0
    batch: Records = b""


class PushEventsResponse(Response, api_key=15100, versions=(0, 0), flexible=0):
    """The id of the batch's first event, or the error. The others follow without a gap."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    first_event_id: Int64 = -1
    current_leader: Annotated[LeaderIdAndEpoch, F(tag=0)] = LeaderIdAndEpoch()
    node_endpoints: Annotated[list[NodeEndpoint], F(tag=1)] = []  # noqa: RUF012 (msgspec copies an empty list)
