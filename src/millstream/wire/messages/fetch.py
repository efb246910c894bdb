"""API key 1, Fetch: read record batches, as a consumer or as a follower.

Version 7 brought sessions (KIP-227), 9 leader epochs, 11 fetching from the closest replica, 12 truncation on
divergence, 13 topic ids, 16 where the leader went (KIP-951), 17 the replica's directory, 18 the follower's high
watermark.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.schema import ZERO_UUID, F, Int8, Int16, Int32, Int64, Message, Records, Request, Response, Uuid


class ReplicaState(Message):
    """Which follower asks; -1 is a consumer."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    """Where to read in a partition, and how much of it."""

    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, F("9+")] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, F("12+")] = -1
    log_start_offset: Annotated[Int64, F("5+")] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, F("17+", tag=0)] = ZERO_UUID
    high_watermark: Annotated[Int64, F("18+", tag=1)] = 0x7FFFFFFFFFFFFFFF


class FetchTopic(Message):
    """The partitions of one topic; by id instead of by name from version 13."""

    topic: Annotated[str, F("0-12")] = ""
    topic_id: Annotated[Uuid, F("13+")] = ZERO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    """Partitions that an incremental fetch takes out of its session."""

    topic: Annotated[str, F("7-12")] = ""
    topic_id: Annotated[Uuid, F("13+")] = ZERO_UUID
    partitions: list[Int32] = []


class FetchRequest(Request, api_key=1, versions=(4, 18), flexible=12):
    """Read from offsets, waiting up to ``max_wait_ms`` for ``min_bytes``. Sessions (KIP-227) from version 7."""

    cluster_id: Annotated[str | None, F("12+", tag=0)] = None
    replica_id: Annotated[Int32, F("0-14")] = -1
    replica_state: Annotated[ReplicaState, F("15+", tag=1)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, F("7+")] = 0
    session_epoch: Annotated[Int32, F("7+")] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], F("7+")] = []
    rack_id: Annotated[str, F("11+")] = ""


class EpochEndOffset(Message):
    """Where a follower's log parts from the leader's."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(Message):
    """The snapshot that a follower has to fetch instead."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    """A transaction whose records a read_committed consumer skips."""

    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    """What was read of one partition; ``high_watermark`` and ``last_stable_offset`` are exclusive ends."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, F("5+")] = -1
    diverging_epoch: Annotated[EpochEndOffset, F("12+", tag=0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, F("12+", tag=1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, F("12+", tag=2)] = SnapshotId()
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: Annotated[Int32, F("11+")] = -1
    records: Records | None = None


class FetchableTopicResponse(Message):
    """What was read of one topic."""

    topic: Annotated[str, F("0-12")] = ""
    topic_id: Annotated[Uuid, F("13+")] = ZERO_UUID
    partitions: list[PartitionData] = []


class FetchResponse(Response, api_key=1, versions=(4, 18), flexible=12):
    """Record batches, whole and as stored."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F("7+")] = 0
    session_id: Annotated[Int32, F("7+")] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], F("16+", tag=0)] = []
