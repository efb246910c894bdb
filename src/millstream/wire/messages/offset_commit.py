"""API key 8, OffsetCommit: store how far a group has read.

Version 5 dropped the retention time, 6 added leader epochs, 7 static members, 9 member epochs (KIP-848), 10 topic ids.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Message, Request, Response, Uuid


class OffsetCommitRequestPartition(Message):
    """The next offset to read, with what the consumer wants to remember beside it."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, F("6+")] = -1
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(Message):
    """The offsets of one topic; by id instead of by name from version 10."""

    name: Annotated[str, F("0-9")] = ""
    topic_id: Annotated[Uuid, F("10+")] = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Request, api_key=8, versions=(2, 10), flexible=8):
    """Store how far a group has read. A simple consumer commits with generation -1 and no member."""

    group_id: str = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, F("7+")] = None
    retention_time_ms: Annotated[Int64, F("2-4")] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    """The outcome for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    """The outcomes of one topic."""

    name: Annotated[str, F("0-9")] = ""
    topic_id: Annotated[Uuid, F("10+")] = ZERO_UUID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Response, api_key=8, versions=(2, 10), flexible=8):
    """The outcome for each partition."""

    throttle_time_ms: Annotated[Int32, F("3+")] = 0
    topics: list[OffsetCommitResponseTopic] = []
