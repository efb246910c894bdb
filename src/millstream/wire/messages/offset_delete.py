"""API key 47, OffsetDelete: forget committed offsets of a group (KIP-496)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Message, Request, Response


class OffsetDeleteRequestPartition(Message):
    """A partition whose offset is to be forgotten."""

    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message):
    """Partitions of one topic."""

    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Request, api_key=47, versions=(0, 0)):
    """Delete these offsets of a group."""

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    """The outcome for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    """The outcomes of one topic."""

    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Response, api_key=47, versions=(0, 0)):
    """The outcome for the group and for each partition."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
