"""API key 2, ListOffsets: offsets by timestamp.

Version 2 added isolation levels, 4 leader epochs, 7 the largest timestamp (KIP-734), 8 the earliest local offset, 9 the
last tiered offset, 10 a time limit for lookups in remote storage, 11 the earliest offset not yet tiered.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Int64, Message, Request, Response


class ListOffsetsPartition(Message):
    """The time to look up in one partition."""

    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, F("4+")] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(Message):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Request, api_key=2, versions=(1, 11), flexible=6):
    """Offsets by time. ``timestamp``: -1 latest, -2 earliest, -3 the record with the largest timestamp."""

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, F("2+")] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, F("10+")] = 0


class ListOffsetsPartitionResponse(Message):
    """The first offset at or after the time; -1 and -1 without one."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, F("4+")] = -1


class ListOffsetsTopicResponse(Message):
    """The answers for one topic."""

    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Response, api_key=2, versions=(1, 11), flexible=6):
    """The offsets that were found."""

    throttle_time_ms: Annotated[Int32, F("2+")] = 0
    topics: list[ListOffsetsTopicResponse] = []
