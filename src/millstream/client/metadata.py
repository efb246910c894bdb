"""What a client knows of a cluster: brokers, topics, leaders. Values, built from one Metadata answer."""

from collections.abc import Mapping

import msgspec

from millstream.wire.messages.metadata import MetadataResponse


class BrokerAddress(msgspec.Struct, frozen=True):
    """Where a broker is reached."""

    node_id: int
    host: str
    port: int


class PartitionLeader(msgspec.Struct, frozen=True):
    """Who leads a partition, since which epoch; ``node_id`` is -1 while nobody does."""

    node_id: int
    epoch: int


class TopicMetadata(msgspec.Struct, frozen=True):
    """A topic; ``error_code`` is not 0 where the broker had none to show."""

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
        """The broker that leads a partition, if there is one and its address is known."""
        found = self.topics.get(topic)
        leader = found.partitions.get(partition) if found else None
        return self.brokers.get(leader.node_id) if leader else None


def read_metadata(answer: MetadataResponse) -> ClusterMetadata:
    """The same facts as values."""
    topics: dict[str, TopicMetadata] = {}
    for topic in answer.topics:
        name = topic.name or ""
        leaders = {p.partition_index: PartitionLeader(p.leader_id, p.leader_epoch) for p in topic.partitions}
        topics[name] = TopicMetadata(
            name, topic.topic_id, topic.is_internal, dict(sorted(leaders.items())), topic.error_code
        )
    brokers = {b.node_id: BrokerAddress(b.node_id, b.host, b.port) for b in answer.brokers}
    return ClusterMetadata(answer.cluster_id, answer.controller_id, brokers, topics)
