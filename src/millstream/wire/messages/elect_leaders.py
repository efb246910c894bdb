"""API key 43, ElectLeaders: have preferred replicas lead, or any replica. Version 1 added the kinds (KIP-460)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Message, Request, Response


class TopicPartitions(Message):
    """The partitions of one topic."""

    topic: str = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(Request, api_key=43, versions=(0, 2), flexible=2):
    """Elect leaders; ``election_type`` 0 preferred, 1 unclean. ``None`` is every partition."""

    election_type: Annotated[Int8, F("1+")] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: Int32 = 60000


class PartitionResult(Message):
    """The outcome for one partition."""

    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReplicaElectionResult(Message):
    """The outcome for one topic."""

    topic: str = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Response, api_key=43, versions=(0, 2), flexible=2):
    """The result for each election."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F("1+")] = 0
    replica_election_results: list[ReplicaElectionResult] = []
