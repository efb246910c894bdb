"""API key 55, DescribeQuorum: who votes on the controller's log and how far each is.

Version 1 added times (KIP-836), 2 directories, addresses and messages (KIP-853).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Message, Request, Response, UInt16, Uuid


class QuorumPartitionRequest(Message):
    """One partition."""

    partition_index: Int32 = 0


class QuorumTopicRequest(Message):
    """The partitions of one topic."""

    topic_name: str = ""
    partitions: list[QuorumPartitionRequest] = []


class DescribeQuorumRequest(Request, api_key=55, versions=(0, 2), flexible=0):
    """Describe the quorum behind a partition of the controller's topic."""

    topics: list[QuorumTopicRequest] = []


class ReplicaState(Message):
    """A voter or an observer, and how far its log goes."""

    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, F("2+")] = bytes(16)
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, F("1+")] = -1
    last_caught_up_timestamp: Annotated[Int64, F("1+")] = -1


class QuorumPartition(Message):
    """The quorum of one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[str | None, F("2+", nullable="2+")] = ""
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []


class QuorumTopic(Message):
    """The quorums of one topic's partitions."""

    topic_name: str = ""
    partitions: list[QuorumPartition] = []


class QuorumListener(Message):
    """An address of a node."""

    name: str = ""
    host: str = ""
    port: UInt16 = 0


class QuorumNode(Message):
    """A node and its addresses."""

    node_id: Int32 = 0
    listeners: list[QuorumListener] = []


class DescribeQuorumResponse(Response, api_key=55, versions=(0, 2), flexible=0):
    """The quorums, and where their nodes are."""

    error_code: Int16 = 0
    error_message: Annotated[str | None, F("2+", nullable="2+")] = ""
    topics: list[QuorumTopic] = []
    nodes: Annotated[list[QuorumNode], F("2+")] = []
