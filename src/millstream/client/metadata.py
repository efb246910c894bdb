"""A client's view of a cluster: brokers, topics, leaders. Values built from one Metadata response."""

from collections.abc import Mapping

import msgspec

from millstream.wire.messages.metadata import MetadataResponse


class BrokerAddress(msgspec.Struct, frozen=True):
    """Address of a broker."""

    node_id: int
    host: str
    port: int


class PartitionLeader(msgspec.Struct, frozen=True):
    """Leader of a partition and its epoch. ``node_id`` is -1 while the partition has no leader."""

    node_id: int
    epoch: int


class TopicMetadata(msgspec.Struct, frozen=True):
    """A topic. ``error_code`` is not 0 if the broker could not describe it."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionLeader]
    error_code: int = 0


class ClusterMetadata(msgspec.Struct, frozen=True):
    """Brokers by node id, topics by name."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicMetadata]

    def leader(self, topic: str, partition: int) -> BrokerAddress | None:
        """The broker that leads a partition; None without one or if its address is unknown."""
        found = self.topics.get(topic)
        leader = found.partitions.get(partition) if found else None
        return self.brokers.get(leader.node_id) if leader else None


def read_metadata(answer: MetadataResponse) -> ClusterMetadata:
    """Convert a Metadata response."""
    topics: dict[str, TopicMetadata] = {}
    for topic in answer.topics:
        name = topic.name or ""
        leaders = {p.partition_index: PartitionLeader(p.leader_id, p.leader_epoch) for p in topic.partitions}
        topics[name] = TopicMetadata(
            name, topic.topic_id, topic.is_internal, dict(sorted(leaders.items())), topic.error_code
        )
    brokers = {b.node_id: BrokerAddress(b.node_id, b.host, b.port) for b in answer.brokers}
    return ClusterMetadata(answer.cluster_id, answer.controller_id, brokers, topics)
