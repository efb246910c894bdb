"""The replica that a consumer is directed to (KIP-392): one that is in sync, alive and in the consumer's rack.

A consumer sends its rack (``client.rack``) in every fetch. With ``replica.selector.class`` the leader names such a
replica instead of giving records, unless it is in that rack itself. The replica serves the records that it knows to be
committed. If it cannot (it has no leader, has another epoch, or has less than the consumer has read), it answers with
an error after which the consumer asks the leader again.

Internal, tiered and event topics are read from their leaders only.
"""

from typing import Final

from millstream.config.properties.cluster import RACK_AWARE
from millstream.core.fetch_session import SessionPartition
from millstream.kafka.context import Node
from millstream.model.cluster import NodeId

NO_REPLICA: Final = -1


def selects_by_rack(node: Node, rack: str) -> bool:
    """Whether a consumer in ``rack`` may be sent from a leader of this broker to another replica."""
    start = node.metadata.start_settings
    return bool(rack) and start.replica_selector_class == RACK_AWARE and start.rack != rack


def nearest_replica(node: Node, rack: str, asked: SessionPartition) -> int:
    """The replica in ``rack`` to read a partition of this broker from; `NO_REPLICA` if the leader has to serve."""
    metadata = node.metadata
    topic = metadata.topic(asked.topic)
    meta = metadata.partition(asked.topic, asked.index)
    if topic is None or meta is None or meta.leader != metadata.node_id or topic.internal or topic.data_of:
        return NO_REPLICA
    if topic.config.has_events or topic.config.is_archived:
        return NO_REPLICA
    brokers = metadata.state.registry.brokers
    near = [
        replica
        for replica in metadata.in_sync(meta)
        if replica != meta.leader
        and (broker := brokers.get(NodeId(replica))) is not None
        and broker.profile.rack == rack
    ]
    return near[asked.index % len(near)] if near else NO_REPLICA
