"""Records of ``__consumer_offsets`` that share groups (KIP-932) write, as Apache Kafka 4.3 lays them out.

A group is the sum of its newest records: each member's subscription (10), its epoch (11), what every member has
(target: 12 the epoch, 13 a member; current: 14), and for which topics its share state is there, is being made, or is
being deleted (15). A null value forgets.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int8, Int32, Int64, Message, Stored, StoredKey, Uuid


class ShareGroupMemberMetadataKey(StoredKey, api_key=10):
    """Key of a member's subscription."""

    group: str = ""
    member_id: str = ""


class ShareGroupMemberMetadataValue(Stored, api_key=10, versions=(0, 0), flexible=0):
    """A member's subscription, and who it is."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []


class ShareGroupMetadataKey(StoredKey, api_key=11):
    """Key of a group's epoch."""

    group: str = ""


class ShareGroupMetadataValue(Stored, api_key=11, versions=(0, 0), flexible=0):
    """The group epoch, and a hash of the topics as they were when it was set."""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0


class ShareGroupTargetAssignmentMetadataKey(StoredKey, api_key=12):
    """Key of the target assignment's epoch."""

    group: str = ""


class ShareGroupTargetAssignmentMetadataValue(Stored, api_key=12, versions=(0, 0), flexible=0):
    """For which group epoch the target assignment was made, and when (wall clock, ms)."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, F("0+", tag=0)] = 0


class ShareGroupTargetAssignmentMemberKey(StoredKey, api_key=13):
    """Key of what a member is to have."""

    group: str = ""
    member_id: str = ""


class ShareTopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareGroupTargetAssignmentMemberValue(Stored, api_key=13, versions=(0, 0), flexible=0):
    """What a member is to have."""

    topic_partitions: list[ShareTopicPartitions] = []


class ShareGroupCurrentMemberAssignmentKey(StoredKey, api_key=14):
    """Key of what a member has."""

    group: str = ""
    member_id: str = ""


class ShareGroupCurrentMemberAssignmentValue(Stored, api_key=14, versions=(0, 0), flexible=0):
    """What a member has, and the epochs by which it is known."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[ShareTopicPartitions] = []


class ShareGroupStatePartitionMetadataKey(StoredKey, api_key=15):
    """Key of which share state a group has."""

    group: str = ""


class StateTopicPartitions(Message):
    """Partitions of one topic, with its name when the record was written."""

    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""
    partitions: list[Int32] = []


class StateTopic(Message):
    """A topic, with its name when the record was written."""

    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""


class ShareGroupStatePartitionMetadataValue(Stored, api_key=15, versions=(0, 0), flexible=0):
    """The partitions whose state is being made, those whose state is there, and the topics that lose theirs."""

    initializing_topics: list[StateTopicPartitions] = []
    initialized_topics: list[StateTopicPartitions] = []
    deleting_topics: list[StateTopic] = []
