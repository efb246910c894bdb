"""What consumers of a classic group say to each other inside JoinGroup and SyncGroup.

The broker passes these bytes through; it looks inside only to name the topics of a group. Both start with an int16
version, and a reader that meets a newer version reads the fields that it knows and ignores the rest.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import Embedded, F, Int32, Message


class TopicPartition(Message):
    """Partitions of one topic."""

    topic: str = ""
    partitions: list[Int32] = []


class ConsumerProtocolSubscription(Embedded, versions=(0, 3)):
    """What a consumer tells its group's leader: topics, and what it owns now."""

    topics: list[str] = []
    user_data: bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], F("1+")] = []
    generation_id: Annotated[Int32, F("2+")] = -1
    rack_id: Annotated[str | None, F("3+")] = None


class ConsumerProtocolAssignment(Embedded, versions=(0, 3)):
    """What the leader assigned to one consumer."""

    assigned_partitions: list[TopicPartition] = []
    user_data: bytes | None = None
