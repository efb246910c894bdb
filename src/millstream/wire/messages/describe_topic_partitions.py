"""API key 75, DescribeTopicPartitions: topics and their partitions in pages (KIP-966)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import Int16, Int32, Message, Request, Response, Uuid


class TopicRequest(Message):
    """One topic."""

    name: str = ""


class Cursor(Message):
    """The first partition of the next page."""

    topic_name: str = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Request, api_key=75, versions=(0, 0), flexible=0):
    """Describe topics, all of them if none is named, from ``cursor`` on."""

    topics: list[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    """One partition, with the replicas that may lead it although they are not in sync."""

    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = []


class DescribeTopicPartitionsResponseTopic(Message):
    """One topic, as far as its partitions fit the page."""

    error_code: Int16 = 0
    name: str | None = ""
    topic_id: Uuid = bytes(16)
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: Int32 = OPERATIONS_NOT_ASKED


class DescribeTopicPartitionsResponse(Response, api_key=75, versions=(0, 0), flexible=0):
    """A page of topics by name, and where the next one starts."""

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
