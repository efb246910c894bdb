"""Well-formed requests of the administrative APIs and of consumer groups of the new protocol; see ``good``."""

from collections.abc import Callable

from differential.talk import Talk, Topic
from millstream.wire.messages import alter_configs
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterEntryData, OpData
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millstream.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest, EntityData
from millstream.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from millstream.wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopic
from millstream.wire.messages.describe_quorum import DescribeQuorumRequest, QuorumPartitionRequest, QuorumTopicRequest
from millstream.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.push_telemetry import PushTelemetryRequest
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest
from millstream.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from millstream.wire.schema import Request


def delete_records_request(name: str, *offsets: int, timeout_ms: int = 10_000) -> DeleteRecordsRequest:
    """Partitions 0, 1 and so on up to these offsets."""
    parts = [DeleteRecordsPartition(index, offset) for index, offset in enumerate(offsets)]
    return DeleteRecordsRequest([DeleteRecordsTopic(name, parts)], timeout_ms)


def offset_delete_request(group: str, topic: str, *partitions: int) -> OffsetDeleteRequest:
    parts = [OffsetDeleteRequestPartition(index) for index in partitions]
    return OffsetDeleteRequest(group, [OffsetDeleteRequestTopic(topic, parts)])


def log_dirs_request(*topics: Topic) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest([DescribableLogDirTopic(topic.name, [0]) for topic in topics])


def heartbeat_request(t: Talk, member: str = "m-1", epoch: int = 0, **options: object) -> ConsumerGroupHeartbeatRequest:
    """A member of a consumer group that says something about itself."""
    return ConsumerGroupHeartbeatRequest(t.name("g"), member, epoch, **options)


def instance_id(t: Talk) -> bytes:
    """A client instance that nobody has heard of; one that asks again too soon is told to wait."""
    return t.name("").encode().ljust(16, b".")[:16]


def _replaced(t: Talk) -> Request:
    entries = [alter_configs.AlterableConfig("retention.ms", "1000")]
    return alter_configs.AlterConfigsRequest([alter_configs.AlterConfigsResource(2, t.topic().name, entries)])


def _moved(t: Talk) -> Request:
    return AlterReplicaLogDirsRequest(
        [AlterReplicaLogDir("/no/such/directory", [AlterReplicaLogDirTopic(t.topic().name, [0])])]
    )


def _reassigned(t: Talk) -> Request:
    parts = [ReassignablePartition(0, [1])]
    return AlterPartitionReassignmentsRequest(10_000, True, [ReassignableTopic(t.topic().name, parts)])


def _quorum(_: Talk) -> Request:
    return DescribeQuorumRequest([QuorumTopicRequest("__cluster_metadata", [QuorumPartitionRequest(0)])])


def _described(t: Talk) -> Request:
    name = t.topic().name
    return DescribeTopicPartitionsRequest([TopicRequest(name)], 2000, Cursor(name, 0))


def _first_heartbeat(t: Talk) -> Request:
    name = t.topic().name
    t.fence()  # the coordinator has to know the topic, too
    return heartbeat_request(
        t, rebalance_timeout_ms=5000, subscribed_topic_names=[name], server_assignor="uniform", topic_partitions=[]
    )


GOOD_ADMIN: dict[int, Callable[[Talk], Request]] = {
    21: lambda t: delete_records_request(t.filled(3).name, 1),
    29: lambda _: DescribeAclsRequest(1, None, 1, None, None, 1, 1),
    30: lambda _: CreateAclsRequest(
        [AclCreation(2, "t", 3, "User:a", "*", 3, 3), AclCreation(2, "u", 3, "User:a", "*", 3, 3)]
    ),
    31: lambda _: DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]),
    33: _replaced,
    34: _moved,
    35: lambda t: log_dirs_request(t.topic()),
    42: lambda t: DeleteGroupsRequest([t.name("g")]),
    43: lambda t: ElectLeadersRequest(0, [TopicPartitions(t.topic().name, [0])], 10_000),
    45: _reassigned,
    46: lambda t: ListPartitionReassignmentsRequest(10_000, [ListPartitionReassignmentsTopics(t.topic().name, [0])]),
    47: lambda t: offset_delete_request(t.name("g"), t.topic().name, 0),
    48: lambda _: DescribeClientQuotasRequest([ComponentData("user", 0, "x")], True),
    49: lambda _: AlterClientQuotasRequest(
        [AlterEntryData([EntityData("user", "x")], [OpData("producer_byte_rate", 1e6, False)])], True
    ),
    55: _quorum,
    57: lambda _: UpdateFeaturesRequest(10_000, [FeatureUpdateKey("group.version", 1)]),
    61: lambda t: DescribeProducersRequest([DescribeProducersTopic(t.topic().name, [0])]),
    64: lambda _: UnregisterBrokerRequest(999_999),
    68: _first_heartbeat,
    69: lambda t: ConsumerGroupDescribeRequest([t.name("g")], True),
    71: lambda t: GetTelemetrySubscriptionsRequest(instance_id(t)),
    72: lambda t: PushTelemetryRequest(instance_id(t), 0, False, 0, b""),
    74: lambda _: ListConfigResourcesRequest([16]),
    75: _described,
}
"""API key → a good request."""
