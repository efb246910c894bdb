"""A consumer group: members with subscriptions, partitions with owners.

Derived counts (owners of partitions, subscribers of topics) follow each record and are not stored.
"""

from collections.abc import Iterable

from millstream.core.group.assign.spec import NOTHING, Partitions
from millstream.core.group.assigned_state.group import AssignedGroup, RecordTypes
from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.core.group.consumer_state.subscriptions import Resolved, Subscriptions, add
from millstream.core.group.state import GroupState
from millstream.core.group.topics import Topics, metadata_hash
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
)
from millstream.wire.schema import Stored
from millstream.wire.stored import AssignedGroupKey


class ConsumerGroup(AssignedGroup[ConsumerMember, Partitions, ConsumerGroupMetadataValue]):
    """The state of one consumer group.

    Invariants: ``owners`` names exactly the member that owns, or has yet to revoke, each partition; ``statics`` maps
    instance ids to members.
    """

    group_type = "consumer"
    records = RecordTypes(
        ConsumerGroupMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupRegularExpressionKey,
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id, ConsumerMember, ConsumerGroupMetadataValue)
        self.subscriptions = Subscriptions()
        self.statics: dict[str, str] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        self.assignors: dict[str, int] = {}
        self.classic_members = 0
        self.supporters: dict[str, int] = {}
        """Classic assignor → number of classic members that support it."""

    # What it is

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.RECONCILING if self.behind else GroupState.STABLE

    def target(self, member: ConsumerMember) -> Partitions:
        """The member's target assignment. A static member inherits its predecessor's."""
        member_id = member.member_id
        if member.instance_id is not None:
            member_id = self.statics.get(member.instance_id, member_id)
        return self.targets.get(member_id, NOTHING)

    def topic_ids_of(self, member: ConsumerMember, topics: Topics) -> frozenset[bytes]:
        """The ids of the topics that a member subscribes to, as far as they exist."""
        found = (topics.by_name(name) for name in self.subscriptions.topics_of(member))
        return frozenset(topic.topic_id for topic in found if topic is not None)

    def consumes(self, topic: str) -> bool:
        return self.subscriptions.include(topic)

    def is_owned(self, topic_id: bytes, partition: int) -> bool:
        """Whether a member owns this partition, or has yet to revoke it."""
        return partition in self.owners.get(topic_id, {})

    def preferred_assignor(self) -> str | None:
        """The assignor that most members request; None if none does."""
        return max(self.assignors, key=self.assignors.__getitem__) if self.assignors else None

    def supports(self, protocol_type: str, assignors: Iterable[str]) -> bool:
        """Whether a classic member with these assignors could join: it must share one with all other classic
        members.
        """
        return protocol_type == "consumer" and any(
            self.supporters.get(name, 0) == self.classic_members for name in assignors
        )

    # Records

    def next_metadata(self, topics: Topics) -> ConsumerGroupMetadataValue:
        return ConsumerGroupMetadataValue(self.epoch + 1, metadata_hash(self.subscriptions.topics(), topics.by_name))

    def target_value(self, target: Partitions) -> ConsumerGroupTargetAssignmentMemberValue:
        return ConsumerGroupTargetAssignmentMemberValue(
            [TargetTopicPartitions(topic_id, sorted(partitions)) for topic_id, partitions in target.items()]
        )

    def _target_of(self, value: Stored) -> Partitions:
        assert isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
        return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}

    def _apply_own(self, key: AssignedGroupKey, value: Stored | None) -> None:
        assert isinstance(key, ConsumerGroupRegularExpressionKey)
        if value is None:
            self.subscriptions.expressions.pop(key.regular_expression, None)
        else:
            assert isinstance(value, ConsumerGroupRegularExpressionValue)
            resolved = Resolved(frozenset(value.topics), value.version, value.timestamp)
            self.subscriptions.expressions[key.regular_expression] = resolved

    def _own_record(self, key: AssignedGroupKey) -> Stored | None:
        assert isinstance(key, ConsumerGroupRegularExpressionKey)
        resolved = self.subscriptions.expressions.get(key.regular_expression)
        return None if resolved is None else resolved.value()

    def _own_keys(self) -> list[AssignedGroupKey]:
        return [ConsumerGroupRegularExpressionKey(self.group_id, regex) for regex in self.subscriptions.expressions]

    def _count(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        if before is not None:
            self._count_one(before, -1)
            instance_id = before.instance_id
            left = after is None or after.instance_id != instance_id
            if left and instance_id is not None and self.statics.get(instance_id) == before.member_id:
                del self.statics[instance_id]
        if after is not None:
            self._count_one(after, 1)
            if after.instance_id is not None:
                self.statics[after.instance_id] = after.member_id

    def _count_one(self, member: ConsumerMember, by: int) -> None:
        self.subscriptions.add(member, by)
        if member.server_assignor is not None:
            add(self.assignors, member.server_assignor, by)
        if member.classic is not None:
            self.classic_members += by
            for protocol in member.classic.supported_protocols:
                add(self.supporters, protocol.name, by)

    def _hold(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        if before is not None:
            for topic_id, partitions in before.held():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == before.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)
        if after is not None:
            for topic_id, partitions in after.held():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, after.member_id))
