"""API key 35, DescribeLogDirs: what partitions take on disk.

Version 3 added an error for the whole answer, 4 the size of the disk, 5 whether new partitions are kept off it.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Int64, Message, Request, Response


class DescribableLogDirTopic(Message):
    """The partitions of one topic."""

    topic: str = ""
    partitions: list[Int32] = []


class DescribeLogDirsRequest(Request, api_key=35, versions=(1, 5), flexible=2):
    """What do these partitions take? ``None`` is all of them."""

    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Message):
    """One replica: its bytes, and how far it is behind."""

    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(Message):
    """The partitions of one topic in a directory."""

    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Message):
    """One directory and what is in it."""

    error_code: Int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, F("4+")] = -1
    usable_bytes: Annotated[Int64, F("4+")] = -1
    is_cordoned: Annotated[bool, F("5+")] = False


class DescribeLogDirsResponse(Response, api_key=35, versions=(1, 5), flexible=2):
    """The broker's directories."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F("3+")] = 0
    results: list[DescribeLogDirsResult] = []
