"""API key 15103, AcknowledgeEvents: where a consumer stands, durable in ``__consumer_offsets``.

An acknowledgement only moves forward: one below the stored position changes nothing. ``seek`` sets it, backwards too.
A request with ``next_event_id`` -1 only asks. A member of the consumer's group stores with its
member id and epoch, as in OffsetCommit.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import ZERO_UUID, Int16, Int32, Int64, Message, Request, Response, Uuid


class AcknowledgedPartition(Message):
    """The first event that the consumer has not acknowledged."""

    partition_index: Int32 = 0
    next_event_id: Int64 = -1


class AcknowledgeEventsRequest(Request, api_key=15103, versions=(0, 0), flexible=0):
    """Positions of one consumer, by its name, in one topic."""

    consumer: str = ""
    topic_id: Uuid = ZERO_UUID
    seek: bool = False
    partitions: list[AcknowledgedPartition] = []
    member_id: str = ""
    member_epoch: Int32 = -1


class AcknowledgedPartitionResult(Message):
    """The stored position after the request; -1 without one."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    next_event_id: Int64 = -1


class AcknowledgeEventsResponse(Response, api_key=15103, versions=(0, 0), flexible=0):
    """The result for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    partitions: list[AcknowledgedPartitionResult] = []
