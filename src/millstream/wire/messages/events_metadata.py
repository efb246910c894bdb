"""API key 15104, EventsMetadata: event topics, how their events are checked and encoded, and where partitions are."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import ZERO_UUID, Int16, Int32, Int64, Message, Request, Response, Uuid


class EventsMetadataRequest(Request, api_key=15104, versions=(0, 0), flexible=0):
    """Event topics by name; all of them if ``topics`` is null."""

    topics: list[str] | None = []


class EventsMetadataBroker(Message):
    """The address of a broker."""

    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0


class EventsMetadataPartition(Message):
    """One partition. ``next_event_id`` is the id that the next event will have; -1 if the leader is not known."""

    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    uuid: Uuid = ZERO_UUID
    first_event_id: Int64 = -1
    next_event_id: Int64 = -1


class EventsMetadataTopic(Message):
    """One topic. ``validator``, ``selector`` and ``serializer`` are JSON objects with a ``type``."""

    error_code: Int16 = 0
    error_message: str | None = None
    name: str = ""
    topic_id: Uuid = ZERO_UUID
    validator: str = ""
    selector: str = ""
    serializer: str = ""
    event_bytes_max: Int32 = 0
    complete: bool = False
    partitions: list[EventsMetadataPartition] = []


class EventsMetadataResponse(Response, api_key=15104, versions=(0, 0), flexible=0):
    """Topics and brokers."""

    throttle_time_ms: Int32 = 0
    brokers: list[EventsMetadataBroker] = []
    topics: list[EventsMetadataTopic] = []
