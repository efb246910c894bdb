"""API key 23, OffsetForLeaderEpoch: where the records of a leader epoch end (KIP-101, KIP-279, KIP-320).

A consumer asks it after the leader epoch changed, to notice that the log was cut below its position. Version 3 added
the asking replica.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Message, Request, Response


class OffsetForLeaderPartition(Message):
    """The epoch to look up in one partition; ``current_leader_epoch`` fences callers with old metadata."""

    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    """The partitions of one topic."""

    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Request, api_key=23, versions=(2, 4), flexible=4):
    """The ends of epochs. ``replica_id`` is -1 for a consumer, -2 for one that debugs."""

    replica_id: Annotated[Int32, F("3+")] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    """The largest epoch not above the one asked for, and its end (exclusive); -1 and -1 where it is not known."""

    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    """The answers for one topic."""

    topic: str = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Response, api_key=23, versions=(2, 4), flexible=4):
    """The ends that were found."""

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
