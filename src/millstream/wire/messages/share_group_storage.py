"""Records of ``__consumer_offsets`` that share groups (KIP-932) write, as Apache Kafka 4.3 lays them out.

A group is the sum of its newest records: each member's subscription (10), its epoch (11), what every member has
(target: 12 the epoch, 13 a member; current: 14), and for which topics its share state is there, is being made, or is
being deleted (15). A null value forgets.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.assigned_group_storage import (
    AssignmentEpochKey,
    AssignmentEpochValue,
    CurrentKey,
    CurrentValue,
    GroupEpochKey,
    GroupEpochValue,
    MemberKey,
    TargetKey,
)
from millstream.wire.schema import ZERO_UUID, Int32, Int64, Message, Stored, StoredKey, Uuid


class ShareGroupMemberMetadataKey(MemberKey, api_key=10):
    """Key of a member's subscription."""


class ShareGroupMemberMetadataValue(Stored, api_key=10, versions=(0, 0), flexible=0):
    """A member's subscription, and who it is."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []


class ShareGroupMetadataKey(GroupEpochKey, api_key=11):
    """Key of a group's epoch."""


class ShareGroupMetadataValue(GroupEpochValue, api_key=11, versions=(0, 0), flexible=0):
    """The group epoch, and a hash of the topics as they were when it was set."""

    metadata_hash: Int64 = 0


class ShareGroupTargetAssignmentMetadataKey(AssignmentEpochKey, api_key=12):
    """Key of the target assignment's epoch."""


class ShareGroupTargetAssignmentMetadataValue(AssignmentEpochValue, api_key=12, versions=(0, 0), flexible=0):
    """For which group epoch the target assignment was made, and when (wall clock, ms)."""


class ShareGroupTargetAssignmentMemberKey(TargetKey, api_key=13):
    """Key of what a member is to have."""


class ShareTopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareGroupTargetAssignmentMemberValue(Stored, api_key=13, versions=(0, 0), flexible=0):
    """What a member is to have."""

    topic_partitions: list[ShareTopicPartitions] = []


class ShareGroupCurrentMemberAssignmentKey(CurrentKey, api_key=14):
    """Key of what a member has."""


class ShareGroupCurrentMemberAssignmentValue(CurrentValue, api_key=14, versions=(0, 0), flexible=0):
    """What a member has, and the epochs by which it is known."""

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
