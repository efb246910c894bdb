"""API key 15102, FetchEventData: the selected data of many events in one round trip.

The broker checks each descriptor against the index of its event, so that a client reads no byte outside of the topic.
The answer has only the selected bytes, back to back in the order of the request. Where they would pass ``max_bytes``
the answer stops before the next event, and the client asks again; the first event comes whole.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Message, Records, Request, Response, Uuid


class WantedEventData(Message):
    """One event, and its descriptor with the views that select of it."""

    event_id: Int64 = 0
    descriptor: bytes = b""


class FetchEventDataRequest(Request, api_key=15102, versions=(0, 0), flexible=0):
    """Selections of one partition."""

    topic_id: Uuid = ZERO_UUID
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = -1
    max_bytes: Int32 = 0
    events: list[WantedEventData] = []


class FoundEventData(Message):
    """How many bytes of ``data`` belong to the event, or the error."""

    error_code: Int16 = 0
    size: Int32 = 0


class FetchEventDataResponse(Response, api_key=15102, versions=(0, 0), flexible=0):
    """Results of the first events of the request, one at least unless there is an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    events: list[FoundEventData] = []
    data: Records = b""
    current_leader: Annotated[LeaderIdAndEpoch, F(tag=0)] = LeaderIdAndEpoch()
    node_endpoints: Annotated[list[NodeEndpoint], F(tag=1)] = []
