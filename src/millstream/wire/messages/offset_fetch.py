"""API key 9, OffsetFetch: how far a group has read.

Version 2 can ask for every topic, 7 for stable offsets only, 8 for several groups (KIP-709), 9 adds member epochs, 10
topic ids.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Message, Request, Response, Uuid


class OffsetFetchRequestTopic(Message):
    """The partitions of one topic, up to version 7."""

    name: str = ""
    partition_indexes: list[Int32] = []


class OffsetFetchRequestTopics(Message):
    """The partitions of one topic, from version 8."""

    name: Annotated[str, F("8-9")] = ""
    topic_id: Annotated[Uuid, F("10+")] = ZERO_UUID
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Message):
    """A group and the topics wanted of it."""

    group_id: str = ""
    member_id: Annotated[str | None, F("9+")] = None
    member_epoch: Annotated[Int32, F("9+")] = -1
    topics: list[OffsetFetchRequestTopics] | None = []


class OffsetFetchRequest(Request, api_key=9, versions=(1, 10), flexible=6):
    """How far has a group read? One group up to version 7, several after; ``topics`` None asks for all."""

    group_id: Annotated[str, F("0-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, F("0-7", nullable="2-7")] = []
    groups: Annotated[list[OffsetFetchRequestGroup], F("8+")] = []
    require_stable: Annotated[bool, F("7+")] = False


class OffsetFetchResponsePartition(Message):
    """A committed offset, -1 without one, up to version 7."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, F("5-7")] = -1
    metadata: str | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    """The offsets of one topic, up to version 7."""

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Message):
    """A committed offset, -1 without one, from version 8."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: str | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Message):
    """The offsets of one topic, from version 8."""

    name: Annotated[str, F("8-9")] = ""
    topic_id: Annotated[Uuid, F("10+")] = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Message):
    """The offsets of one group."""

    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


class OffsetFetchResponse(Response, api_key=9, versions=(1, 10), flexible=6):
    """Committed offsets; the single-group fields serve versions up to 7."""

    throttle_time_ms: Annotated[Int32, F("3+")] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], F("0-7")] = []
    error_code: Annotated[Int16, F("2-7")] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], F("8+")] = []
