"""A share group: members with subscriptions, and the partitions whose share state exists."""

from collections.abc import Callable
from typing import Any

from millstream.core.group.assign.spec import Partitions
from millstream.core.group.assigned_state.group import AssignedGroup, RecordTypes
from millstream.core.group.deadlines import Deadline
from millstream.core.group.share_records.member import ShareMember, restored, stored
from millstream.core.group.share_records.states import NO_STATES, ShareStates, states_of
from millstream.core.group.state import GroupState
from millstream.core.group.topics import NEVER_CHECKED, Topics, metadata_hash
from millstream.wire.messages.share_group_storage import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from millstream.wire.schema import Stored
from millstream.wire.stored import AssignedGroupKey


class StateRequests:
    """What the group asks of the share coordinator. Not stored: a coordinator that loads the group asks again."""

    __slots__ = ("in_flight", "retry_us", "waits")

    def __init__(self) -> None:
        self.waits: dict[Deadline[Any], tuple[Any, Callable[..., None]]] = {}
        """Heartbeats that wait for an answer: until when, the heartbeat's token, and what answers it then."""
        self.in_flight: dict[bytes, frozenset[int]] = {}
        """Topic id → partitions whose state is being asked for. No set is empty."""
        self.retry_us = 0
        """Monotonic time before which no state is asked for, because the last request failed."""


class ShareGroup(AssignedGroup[ShareMember, Partitions, ShareGroupMetadataValue]):
    """The state of one share group. ``checked_revision`` is NEVER_CHECKED after every record, and as long as anything
    is left to do.
    """

    group_type = "share"
    records = RecordTypes(
        ShareGroupMetadataKey,
        ShareGroupMemberMetadataKey,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupTargetAssignmentMetadataValue,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupStatePartitionMetadataKey,
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id, ShareMember, ShareGroupMetadataValue)
        self.states: ShareStates = NO_STATES
        self.requests = StateRequests()

    @property
    def state(self) -> GroupState:
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def subscribed_names(self) -> set[str]:
        """Every topic that a member subscribes to."""
        names: set[str] = set()
        for member in self.members.values():
            names |= member.topic_names
        return names

    @staticmethod
    def topic_ids_of(member: ShareMember, topics: Topics) -> frozenset[bytes]:
        """The ids of the topics that a member subscribes to, as far as they exist."""
        found = (topics.by_name(name) for name in member.topic_names)
        return frozenset(topic.topic_id for topic in found if topic is not None)

    # Records

    def next_metadata(self, topics: Topics) -> ShareGroupMetadataValue:
        return ShareGroupMetadataValue(self.epoch + 1, metadata_hash(self.subscribed_names(), topics.by_name))

    def target_value(self, target: Partitions) -> ShareGroupTargetAssignmentMemberValue:
        return ShareGroupTargetAssignmentMemberValue(stored(target))

    def apply(self, key: AssignedGroupKey, value: Stored | None) -> None:
        self.checked_revision = NEVER_CHECKED
        super().apply(key, value)

    def _target_of(self, value: Stored) -> Partitions:
        assert isinstance(value, ShareGroupTargetAssignmentMemberValue)
        return restored(value.topic_partitions)

    def _apply_own(self, key: AssignedGroupKey, value: Stored | None) -> None:
        assert isinstance(key, ShareGroupStatePartitionMetadataKey)
        assert value is None or isinstance(value, ShareGroupStatePartitionMetadataValue)
        self.states = NO_STATES if value is None else states_of(value)

    def _own_record(self, key: AssignedGroupKey) -> Stored:
        assert isinstance(key, ShareGroupStatePartitionMetadataKey)
        return self.states.value()
