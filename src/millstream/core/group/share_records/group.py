"""A share group: the sum of its newest records, with derived counts.

``apply`` processes one record, just decided or read from the log. The newest records of a group may be applied in any
order. ``record`` returns the current value of a key, so that a change that could not be written is undone by applying
the former values.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from millstream.core.group.assign.spec import NOTHING, Partitions
from millstream.core.group.consumer_state.topics import NEVER_CHECKED, Topics
from millstream.core.group.deadlines import Deadline
from millstream.core.group.share_records.member import LEAVES, ShareMember, restored, stored
from millstream.core.group.share_records.states import NO_STATES, ShareStates, states_of
from millstream.core.group.state import GroupState
from millstream.wire.messages.share_group_storage import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from millstream.wire.stored import ShareGroupKey

FIRST_EPOCH: Final = 1
"""Group and assignment epoch of a group without stored epochs, as in Kafka."""

ShareGroupValue: TypeAlias = (
    ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
)
ShareRecord: TypeAlias = tuple[ShareGroupKey, ShareGroupValue | None]


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


class ShareGroup:
    """The state of one share group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_ms = 0
        """Time at which the target assignment was computed (wall clock, ms); 0 for never."""
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.states: ShareStates = NO_STATES
        self.sessions: dict[str, Deadline[Any]] = {}
        self.requests = StateRequests()
        self.checked_revision = NEVER_CHECKED
        """Revision of the metadata with which the group was last compared and nothing was left to do. NEVER_CHECKED
        after every record.
        """

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

    def apply(self, key: ShareGroupKey, value: ShareGroupValue | None) -> None:
        """Apply a record; value None deletes."""
        self.checked_revision = NEVER_CHECKED
        match key:
            case ShareGroupMetadataKey():
                assert value is None or isinstance(value, ShareGroupMetadataValue)
                self.epoch = FIRST_EPOCH if value is None else value.epoch
                self.metadata_hash = 0 if value is None else value.metadata_hash
            case ShareGroupMemberMetadataKey():
                assert value is None or isinstance(value, ShareGroupMemberMetadataValue)
                if value is None:
                    self.members.pop(key.member_id, None)
                else:
                    self.members[key.member_id] = self._member(key.member_id).with_metadata(value)
            case ShareGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, ShareGroupTargetAssignmentMetadataValue)
                self.assignment_epoch = FIRST_EPOCH if value is None else value.assignment_epoch
                self.assignment_ms = 0 if value is None else value.assignment_timestamp
            case ShareGroupTargetAssignmentMemberKey():
                assert value is None or isinstance(value, ShareGroupTargetAssignmentMemberValue)
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = restored(value.topic_partitions)
            case ShareGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, ShareGroupCurrentMemberAssignmentValue)
                if value is not None:
                    self.members[key.member_id] = self._member(key.member_id).with_current(value)
                elif key.member_id in self.members:
                    self.members[key.member_id] = self._member(key.member_id).at(LEAVES, NOTHING, LEAVES)
            case ShareGroupStatePartitionMetadataKey():
                assert value is None or isinstance(value, ShareGroupStatePartitionMetadataValue)
                self.states = NO_STATES if value is None else states_of(value)

    def record(self, key: ShareGroupKey) -> ShareGroupValue | None:
        """The current value of ``key``."""
        match key:
            case ShareGroupMetadataKey():
                return ShareGroupMetadataValue(self.epoch, self.metadata_hash)
            case ShareGroupMemberMetadataKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.metadata_value()
            case ShareGroupTargetAssignmentMetadataKey():
                return ShareGroupTargetAssignmentMetadataValue(self.assignment_epoch, self.assignment_ms)
            case ShareGroupTargetAssignmentMemberKey():
                target = self.targets.get(key.member_id)
                return None if target is None else ShareGroupTargetAssignmentMemberValue(stored(target))
            case ShareGroupCurrentMemberAssignmentKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.current_value()
            case ShareGroupStatePartitionMetadataKey():
                return self.states.value()

    def tombstones(self) -> list[ShareRecord]:
        """The records that delete the group."""
        group_id = self.group_id
        records: list[ShareRecord] = []
        for member_id in self.members:
            records += member_tombstones(group_id, member_id)
        return [
            *records,
            (ShareGroupTargetAssignmentMetadataKey(group_id), None),
            (ShareGroupStatePartitionMetadataKey(group_id), None),
            (ShareGroupMetadataKey(group_id), None),
        ]

    def _member(self, member_id: str) -> ShareMember:
        return self.members.get(member_id) or ShareMember(member_id)


def member_tombstones(group_id: str, member_id: str) -> list[ShareRecord]:
    """The records that delete a member."""
    return [
        (ShareGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        (ShareGroupTargetAssignmentMemberKey(group_id, member_id), None),
        (ShareGroupMemberMetadataKey(group_id, member_id), None),
    ]
