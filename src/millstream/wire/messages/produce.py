"""API key 0, Produce: append record batches.

Served from version 3 (record batches of magic 2). Version 7 allows zstd, 8 reports refused records, 10 tells where the
leader went (KIP-951), 12 serves transactions without a separate call (KIP-890), 13 names topics by id.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Message, Records, Request, Response, Uuid


class PartitionProduceData(Message):
    """The batches of one partition, back to back as the client built them."""

    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Message):
    """The batches of one topic; by id instead of by name from version 13."""

    name: Annotated[str, F("0-12")] = ""
    topic_id: Annotated[Uuid, F("13+")] = ZERO_UUID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Request, api_key=0, versions=(3, 13), flexible=9):
    """Record batches for partitions. ``acks``: 0 no answer, 1 the leader, -1 all in-sync replicas."""

    transactional_id: str | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Message):
    """One record that made the broker refuse its batch."""

    batch_index: Int32 = 0
    batch_index_error_message: str | None = None


class PartitionProduceResponse(Message):
    """Base offset of the appended batch, or the error. ``log_append_time_ms`` is -1 unless the broker set the time."""

    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, F("5+")] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], F("8+")] = []
    error_message: Annotated[str | None, F("8+")] = None
    current_leader: Annotated[LeaderIdAndEpoch, F("10+", tag=0)] = LeaderIdAndEpoch()


class TopicProduceResponse(Message):
    """The answers for one topic, named the way the request named it."""

    name: Annotated[str, F("0-12")] = ""
    topic_id: Annotated[Uuid, F("13+")] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = []


class ProduceResponse(Response, api_key=0, versions=(3, 13), flexible=9):
    """What became of every partition of a produce."""

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], F("10+", tag=0)] = []
