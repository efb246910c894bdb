"""API key 34, AlterReplicaLogDirs: move a broker's replicas to another of its directories (KIP-113)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Int32, Message, Request, Response


class AlterReplicaLogDirTopic(Message):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[Int32] = []


class AlterReplicaLogDir(Message):
    """A directory and what shall move there."""

    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirsRequest(Request, api_key=34, versions=(1, 2), flexible=2):
    """Move replicas between directories."""

    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Message):
    """The outcome for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message):
    """The outcome for one topic."""

    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirsResponse(Response, api_key=34, versions=(1, 2), flexible=2):
    """The result for each replica."""

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []
