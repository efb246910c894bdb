"""Identifiers of shared storage: partitions, objects of many partitions, and lives of brokers."""

from typing import Final, NamedTuple, NewType

from millstream.model.cluster import BrokerEpoch, NodeId

ObjectId = NewType("ObjectId", int)
"""Number of a shared object, chosen so that numbers rise and are never used again."""

NO_OBJECT: Final = ObjectId(0)
"""No shared object has this number."""


class SharedPartition(NamedTuple):
    """A partition, by the id of its topic, which outlives the topic's name."""

    topic_id: bytes
    partition_index: int


class Writer(NamedTuple):
    """One life of a broker, which writes a log of its own into the store."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
