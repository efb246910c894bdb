"""API key 45, AlterPartitionReassignments: move replicas to other brokers (KIP-455)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Message, Request, Response


class ReassignablePartition(Message):
    """The brokers that shall hold a partition; ``None`` stops a move."""

    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Message):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[ReassignablePartition] = []


class AlterPartitionReassignmentsRequest(Request, api_key=45, versions=(0, 1), flexible=0):
    """Move replicas."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[bool, F("1+")] = True
    topics: list[ReassignableTopic] = []


class ReassignablePartitionResponse(Message):
    """The outcome for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReassignableTopicResponse(Message):
    """The outcome for one topic."""

    name: str = ""
    partitions: list[ReassignablePartitionResponse] = []


class AlterPartitionReassignmentsResponse(Response, api_key=45, versions=(0, 1), flexible=0):
    """The result for each move."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[bool, F("1+")] = True
    error_code: Int16 = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = []
