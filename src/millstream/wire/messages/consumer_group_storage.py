"""Records of ``__consumer_offsets`` that consumer groups (KIP-848) write, as Apache Kafka 4.3 lays them out.

A group is the sum of its newest records: its epoch (3), each member's subscription (5), what every member is to have
(target: 6 the epoch, 7 a member) and what each has (8), and what its regular expressions match (16). A null value
forgets. Record type 4, the topics as brokers before 4.1 kept them, is written no more and not read.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

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
from millstream.wire.schema import ZERO_UUID, F, Int32, Int64, Message, Stored, StoredKey, Uuid


class ConsumerGroupMetadataKey(GroupEpochKey, api_key=3):
    """Key of a group's epoch."""


class ConsumerGroupMetadataValue(GroupEpochValue, api_key=3, versions=(0, 0), flexible=0):
    """The group epoch, and a hash of the topics as they were when it was set."""

    metadata_hash: Annotated[Int64, F("0+", tag=0)] = 0


class ConsumerGroupMemberMetadataKey(MemberKey, api_key=5):
    """Key of a member's subscription."""


class ClassicProtocol(Message):
    """An assignor that a classic member can use, with its metadata."""

    name: str = ""
    metadata: bytes = b""


class ClassicMemberMetadata(Message):
    """What a member that speaks the classic protocol said when it joined."""

    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


class ConsumerGroupMemberMetadataValue(Stored, api_key=5, versions=(0, 0), flexible=0):
    """A member's subscription, and who it is; ``classic_member_metadata`` is None for the consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None = None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, F("0+", tag=0)] = ClassicMemberMetadata()


class ConsumerGroupTargetAssignmentMetadataKey(AssignmentEpochKey, api_key=6):
    """Key of the target assignment's epoch."""


class ConsumerGroupTargetAssignmentMetadataValue(AssignmentEpochValue, api_key=6, versions=(0, 0), flexible=0):
    """For which group epoch the target assignment was made, and when (wall clock, ms)."""


class ConsumerGroupTargetAssignmentMemberKey(TargetKey, api_key=7):
    """Key of what a member is to have."""


class TargetTopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupTargetAssignmentMemberValue(Stored, api_key=7, versions=(0, 0), flexible=0):
    """What a member is to have."""

    topic_partitions: list[TargetTopicPartitions] = []


class ConsumerGroupCurrentMemberAssignmentKey(CurrentKey, api_key=8):
    """Key of what a member has."""


class CurrentTopicPartitions(Message):
    """Partitions of one topic, each with the epoch at which the member got it (None: its member epoch)."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []
    assignment_epochs: Annotated[list[Int32] | None, F("0+", tag=0)] = None


class ConsumerGroupCurrentMemberAssignmentValue(CurrentValue, api_key=8, versions=(0, 0), flexible=0):
    """What a member has, and has yet to give back."""

    assigned_partitions: list[CurrentTopicPartitions] = []
    partitions_pending_revocation: list[CurrentTopicPartitions] = []


class ConsumerGroupRegularExpressionKey(StoredKey, api_key=16):
    """Key of what a regular expression matches."""

    group: str = ""
    regular_expression: str = ""


class ConsumerGroupRegularExpressionValue(Stored, api_key=16, versions=(0, 0), flexible=0):
    """The topics that matched, as of a metadata version and a time (wall clock, ms)."""

    topics: list[str] = []
    version: Int64 = 0
    timestamp: Int64 = 0
