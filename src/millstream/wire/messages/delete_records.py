"""API key 21, DeleteRecords: let partitions start at a later offset."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Int64, Message, Request, Response


class DeleteRecordsPartition(Message):
    """Records before ``offset`` go; -1 is the high watermark."""

    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Message):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Request, api_key=21, versions=(0, 2), flexible=2):
    """Delete the records before an offset, per partition."""

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message):
    """Where the partition starts now; -1 with an error."""

    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    """The outcome for one topic."""

    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Response, api_key=21, versions=(0, 2), flexible=2):
    """The result for each partition."""

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []
