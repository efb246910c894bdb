"""One well-formed request for every API: what the cases of frames and fields then spoil.

Each builder makes what its request needs and returns the request, valid at every version of its API.
"""

from collections.abc import Callable

from differential.good_access import GOOD_ACCESS
from differential.good_admin import GOOD_ADMIN
from differential.good_share import GOOD_SHARE
from differential.good_transactions import GOOD_TRANSACTIONS
from differential.talk import Talk, Topic, batch, produce_request
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millstream.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millstream.wire.schema import Request

TOPIC, PARTITION = 2, 1
MIB = 1 << 20


def fetch_request(topic: Topic, *offsets: int, partition: int = 0, **options: object) -> FetchRequest:
    """Reads a partition from an offset; further options are fields of the request."""
    parts = [FetchPartition(partition, fetch_offset=offset, partition_max_bytes=MIB) for offset in offsets]
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 * MIB, **options}
    return FetchRequest(topics=[FetchTopic(topic.name, topic.id, parts)], **fields)


def commit_request(t: Talk, topic: Topic, *offsets: int, group: str = "g", **options: object) -> OffsetCommitRequest:
    """Commits offsets for partitions 0, 1 and so on."""
    parts = [
        OffsetCommitRequestPartition(index, offset, committed_metadata="m") for index, offset in enumerate(offsets)
    ]
    topics = [OffsetCommitRequestTopic(topic.name, topic.id, parts)]
    return OffsetCommitRequest(t.name(group), topics=topics, **options)


def offset_fetch_request(
    group: str, topic: Topic | None = None, partitions: tuple[int, ...] = (0,)
) -> OffsetFetchRequest:
    """The offsets of one group, in the old and the new way of asking; without a topic all of them."""
    old = None if topic is None else [OffsetFetchRequestTopic(topic.name, list(partitions))]
    new = None if topic is None else [OffsetFetchRequestTopics(topic.name, topic.id, list(partitions))]
    return OffsetFetchRequest(group, old, [OffsetFetchRequestGroup(group, topics=new)])


def join_request(t: Talk, member: str = "", group: str = "g", **options: object) -> JoinGroupRequest:
    """A consumer that would join."""
    fields = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"} | options
    fields.setdefault("protocols", [JoinGroupRequestProtocol("range", b"r"), JoinGroupRequestProtocol("rr", b"s")])
    return JoinGroupRequest(group_id=t.name(group), member_id=member, **fields)


def alter_request(
    name: str, *configs: tuple[str, str | None], operation: int = 0, kind: int = TOPIC, validate: bool = False
) -> IncrementalAlterConfigsRequest:
    """Sets (0), deletes (1), appends to (2) or subtracts from (3) properties of one resource."""
    entries = [AlterableConfig(key, operation, value) for key, value in configs]
    return IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, entries)], validate)


def describe_request(name: str, *keys: str, kind: int = TOPIC, **options: bool) -> DescribeConfigsRequest:
    """Reads properties of one resource; without keys all of them."""
    return DescribeConfigsRequest([DescribeConfigsResource(kind, name, list(keys) or None)], **options)


def metadata_request(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], create)


def list_offsets_request(topic: str, *timestamps: int, partition: int = 0, isolation: int = 0) -> ListOffsetsRequest:
    parts = [ListOffsetsPartition(partition, -1, timestamp) for timestamp in timestamps]
    return ListOffsetsRequest(-1, isolation, [ListOffsetsTopic(topic, parts)])


def create_request(name: str, partitions: int = 1, replicas: int = 1, **configs: object) -> CreateTopicsRequest:
    settings = [CreatableTopicConfig(key.replace("_", "."), str(value)) for key, value in configs.items()]
    return CreateTopicsRequest([CreatableTopic(name, partitions, replicas, [], settings)], 30_000)


def delete_request(*topics: str, timeout_ms: int = 30_000) -> DeleteTopicsRequest:
    return DeleteTopicsRequest([DeleteTopicState(name) for name in topics], list(topics), timeout_ms)


def _produce(t: Talk) -> Request:
    return produce_request(t.topic(), batch(2))


def _fetch(t: Talk) -> Request:
    return fetch_request(t.filled(2), 0)


def _epochs(t: Talk) -> Request:
    return OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(t.topic().name, [OffsetForLeaderPartition(0, -1, 0)])])


def _join(t: Talk) -> Request:
    return join_request(t, group_instance_id="i", reason="why")


GOOD: dict[int, Callable[[Talk], Request]] = {
    0: _produce,
    1: _fetch,
    2: lambda t: list_offsets_request(t.topic().name, -1),
    3: lambda t: metadata_request(t.topic().name),
    8: lambda t: commit_request(t, t.topic(), 5),
    9: lambda t: offset_fetch_request(t.name("g"), t.topic()),
    10: lambda t: FindCoordinatorRequest(t.name("g"), 0, [t.name("g")]),
    11: _join,
    12: lambda t: HeartbeatRequest(t.name("g"), 1, "m", "i"),
    13: lambda t: LeaveGroupRequest(t.name("g"), "m", [MemberIdentity("m", None, "why")]),
    14: lambda t: SyncGroupRequest(
        t.name("g"), 1, "m", None, "consumer", "range", [SyncGroupRequestAssignment("m", b"a")]
    ),
    15: lambda t: DescribeGroupsRequest([t.name("g")]),
    16: lambda t: ListGroupsRequest([t.name("no such state")]),
    18: lambda _: ApiVersionsRequest("differential", "1.0"),
    19: lambda t: create_request(t.name("a"), 2, retention_ms=1000),
    20: lambda t: delete_request(t.topic().name),
    22: lambda _: InitProducerIdRequest(None, 1000),
    23: _epochs,
    32: lambda t: describe_request(t.topic().name, "retention.ms"),
    37: lambda t: CreatePartitionsRequest([CreatePartitionsTopic(t.topic().name, 2, None)], 30_000),
    44: lambda t: alter_request(t.topic().name, ("retention.ms", "1000")),
    60: lambda _: DescribeClusterRequest(),
    **GOOD_ACCESS,
    **GOOD_ADMIN,
    **GOOD_SHARE,
    **GOOD_TRANSACTIONS,
}
"""API key → a good request."""
