"""A small synchronous Kafka client that moves raw record batches.

It is for programs that want the bytes of the log and nothing around them: the Spark source, tools, tests. There are no
threads, no groups, no batching; a call does one thing and returns. It speaks to any Kafka-compatible broker and imports
no part of ours but the codec, so it can be shipped to machines that run no broker.

``Cluster`` routes: metadata, offsets, produce, configuration. ``PartitionLog`` reads one partition with one request
always under way. ``Connection`` is one socket. All of them belong to the thread that uses them.
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
