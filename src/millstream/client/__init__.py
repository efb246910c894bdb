"""A small synchronous Kafka client that moves raw record batches.

For programs that want the bytes of the log and nothing else: the Spark source, tools, tests. It has no threads, no
groups and no batching; a call does one thing and returns. It speaks to any Kafka-compatible broker. Of Millstream it
imports only the codec, so it can ship to machines that run no broker.

``Cluster`` routes requests: metadata, offsets, produce, configuration. ``PartitionLog`` reads one partition and keeps
one request in flight; ``record_reader`` reads the records of many. ``transactional`` writes in transactions,
``transactions`` is what administrators ask about them. ``Connection`` is one socket. Each object belongs to the thread
that uses it.
"""

from millstream.client.cluster import EARLIEST, LATEST, MAX_TIMESTAMP, Cluster
from millstream.client.connection import Connection
from millstream.client.metadata import BrokerAddress, ClusterMetadata, TopicMetadata
from millstream.client.partition_log import Fetched, OffsetOutOfRange, PartitionLog, TopicReplaced

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "BrokerAddress",
    "Cluster",
    "ClusterMetadata",
    "Connection",
    "Fetched",
    "OffsetOutOfRange",
    "PartitionLog",
    "TopicMetadata",
    "TopicReplaced",
]
