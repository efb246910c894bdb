"""API key 90, DescribeShareGroupOffsets: where share groups start in their partitions, and their lag (KIP-932).

Version 1 added the lag (KIP-1226).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Int64, Message, Request, Response, Uuid


class DescribeShareGroupOffsetsTopic(Message):
    """Partitions of one topic."""

    topic_name: str = ""
    partitions: list[Int32] = []


class DescribeShareGroupOffsetsGroup(Message):
    """A group; None asks for all of its partitions."""

    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsTopic] | None = None


class DescribeShareGroupOffsetsRequest(Request, api_key=90, versions=(0, 1), flexible=0):
    """Describe these groups."""

    groups: list[DescribeShareGroupOffsetsGroup] = []


class ShareOffsetsPartition(Message):
    """Where a group starts in a partition (-1: nowhere yet), and how many records it has to finish (-1: unknown)."""

    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Annotated[Int64, F("1+")] = -1
    error_code: Int16 = 0
    error_message: str | None = None


class ShareOffsetsTopic(Message):
    """The partitions of one topic."""

    topic_name: str = ""
    topic_id: Uuid = ZERO_UUID
    partitions: list[ShareOffsetsPartition] = []


class ShareOffsetsGroup(Message):
    """The partitions of one group."""

    group_id: str = ""
    topics: list[ShareOffsetsTopic] = []
    error_code: Int16 = 0
    error_message: str | None = None


class DescribeShareGroupOffsetsResponse(Response, api_key=90, versions=(0, 1), flexible=0):
    """The groups, in the order asked."""

    throttle_time_ms: Int32 = 0
    groups: list[ShareOffsetsGroup] = []
