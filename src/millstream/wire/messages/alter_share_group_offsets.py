"""API key 91, AlterShareGroupOffsets: let a share group without members start elsewhere (KIP-932)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import ZERO_UUID, Int16, Int32, Int64, Message, Request, Response, Uuid


class AlterShareOffsetsPartition(Message):
    """Where to start in a partition."""

    partition_index: Int32 = 0
    start_offset: Int64 = 0


class AlterShareOffsetsTopic(Message):
    """The partitions of one topic."""

    topic_name: str = ""
    partitions: list[AlterShareOffsetsPartition] = []


class AlterShareGroupOffsetsRequest(Request, api_key=91, versions=(0, 0), flexible=0):
    """Set the starts of one group."""

    group_id: str = ""
    topics: list[AlterShareOffsetsTopic] = []


class AlteredShareOffsetsPartition(Message):
    """What became of a partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


class AlteredShareOffsetsTopic(Message):
    """What became of a topic's partitions."""

    topic_name: str = ""
    topic_id: Uuid = ZERO_UUID
    partitions: list[AlteredShareOffsetsPartition] = []


class AlterShareGroupOffsetsResponse(Response, api_key=91, versions=(0, 0), flexible=0):
    """The outcome of each partition, or of the whole group."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[AlteredShareOffsetsTopic] = []
