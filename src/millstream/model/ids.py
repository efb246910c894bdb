"""Identifiers with a type of their own, so that the checker tells an offset from a term.

``last_`` is inclusive, ``next_`` and ``end_`` are exclusive everywhere in the code base.
"""

from typing import NewType

Offset = NewType("Offset", int)
"""Kafka's position of a record in a partition; dense from 0."""

Term = NewType("Term", int)
"""Raft's term. Clients see it as the leader epoch."""

LeaderEpoch = NewType("LeaderEpoch", int)
NodeId = NewType("NodeId", int)
ShardId = NewType("ShardId", int)
RaftGroupId = NewType("RaftGroupId", int)
"""Number of a Raft group in the cluster; 0 is the controller."""

PartitionId = NewType("PartitionId", int)
ProducerId = NewType("ProducerId", int)

TopicId = bytes
"""Sixteen bytes, a random UUID that is never reused."""

CONTROLLER_GROUP = RaftGroupId(0)
