"""API key 61, DescribeProducers: the idempotent and transactional producers that a partition remembers (KIP-664)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Int64, Message, Request, Response


class DescribeProducersTopic(Message):
    """Partitions of one topic."""

    name: str = ""
    partition_indexes: list[Int32] = []


class DescribeProducersRequest(Request, api_key=61, versions=(0, 0), flexible=0):
    """The producers of partitions."""

    topics: list[DescribeProducersTopic] = []


class ActiveProducer(Message):
    """One producer: its last batch, and where its open transaction started (-1: none)."""

    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class DescribeProducersPartition(Message):
    """The producers of one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: list[ActiveProducer] = []


class DescribeProducersTopicResponse(Message):
    """The answers for one topic."""

    name: str = ""
    partitions: list[DescribeProducersPartition] = []


class DescribeProducersResponse(Response, api_key=61, versions=(0, 0), flexible=0):
    """The producers that were found."""

    throttle_time_ms: Int32 = 0
    topics: list[DescribeProducersTopicResponse] = []
