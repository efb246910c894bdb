"""Identifiers and quantities of logs. Each has a type of its own, so that no two are mixed up. At run time each is a
plain ``int``.

Raft's own (term, position in a group's log, replica) are in `millstream.model.replication`.
"""

from typing import NewType, TypeAlias

Offset = NewType("Offset", int)
"""Kafka offset of a record in its partition, dense from 0. An end offset is exclusive; -1 stands for none."""

BytePosition = NewType("BytePosition", int)
"""Byte in a log's stream: the bytes of all its segments one after the other. Positions hold until the log is closed;
the next time it is opened they may count from another byte. An end is exclusive.
"""

FilePosition = NewType("FilePosition", int)
"""Byte in one file, from 0. An end is exclusive."""

ArenaOffset = NewType("ArenaOffset", int)
"""Byte in a shard's arena, from 0; the same byte for the shard and for its helper processes."""

ManifestVersion = NewType("ManifestVersion", int)
"""How often archived segments of a partition were replaced."""

RaftGroupId = NewType("RaftGroupId", int)
"""Number of a Raft group, unique in the cluster's life. Group 0 is the controller's; every other one is a partition."""

MemoryNode = NewType("MemoryNode", int)
"""Number of a memory node (NUMA) of the machine."""

ShardId = NewType("ShardId", int)
"""Number of a shard in its broker, from 0."""

TimestampMs = NewType("TimestampMs", int)
"""Wall-clock time in milliseconds since 1970 UTC, as in a Kafka record; -1 stands for none."""

# Numbers of the Kafka protocol, which come from clients and from records unchecked.

ProducerId: TypeAlias = int
"""Identity of a producer, unique in the cluster's life; -1 stands for none."""

ProducerEpoch: TypeAlias = int
"""Number of a producer's life, from 0 to 32,767; a later one fences those before. -1 stands for none."""

CoordinatorEpoch: TypeAlias = int
"""Leader epoch of the partition of ``__transaction_state`` whose leader coordinates a transaction; -1 for none."""

ApiKey: TypeAlias = int
"""Number of a Kafka API, such as 0 for Produce."""

ApiVersion: TypeAlias = int
"""Version of a Kafka API in which a request is encoded."""

LeaderEpoch: TypeAlias = int
"""Leader epoch that a client names; -1 stands for none. The broker's own epochs are a ``Term``."""

MemberEpoch: TypeAlias = int
"""Version of a member's assignment in a consumer group (KIP-848); negative numbers mean that it leaves."""

RequestedTime: TypeAlias = int
"""Timestamp of ListOffsets: milliseconds since 1970 UTC, or one of the negative numbers that stand for an offset."""

Sequence: TypeAlias = int
"""Number of a record of an idempotent producer, from 0 to 2^31 - 1, then from 0 again."""

SlotIndex: TypeAlias = int
"""Place of a partition in the order of its request, from 0."""

TransactionVersion: TypeAlias = int
"""Version of transactions (KIP-890): from 2 on each ends with a new epoch."""
