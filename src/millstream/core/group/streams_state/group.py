"""A streams group: a topology, and members with tasks of it.

Derived (who holds a task) follows each record and is not stored. What only this coordinator knows is in ``Live``: a
successor starts without it.
"""

from typing import Any

import msgspec

from millstream.core.group.assigned_state.group import AssignedGroup, RecordTypes
from millstream.core.group.deadlines import Deadline
from millstream.core.group.state import GroupState
from millstream.core.group.streams_state.configured import Configured
from millstream.core.group.streams_state.member import StreamsMember
from millstream.core.group.streams_state.tasks import NOTHING, Task, TaskSets, each, of
from millstream.core.group.streams_state.topology import Topology, restored
from millstream.core.group.topics import NEVER_CHECKED, Topics
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from millstream.wire.schema import Stored
from millstream.wire.stored import AssignedGroupKey


class Holders:
    """Which members hold a task, or have yet to give it back. An active task has one holder at most."""

    __slots__ = ("active", "standby", "warmup")

    def __init__(self) -> None:
        self.active: dict[Task, str] = {}
        self.standby: dict[Task, set[str]] = {}
        self.warmup: dict[Task, set[str]] = {}

    def add(self, member: StreamsMember) -> None:
        """The member holds its tasks."""
        member_id = member.member_id
        for held in (member.assigned, member.revoking):
            for task in each(held.active):
                self.active[task] = member_id
            for tasks, holders in ((held.standby, self.standby), (held.warmup, self.warmup)):
                for task in each(tasks):
                    holders.setdefault(task, set()).add(member_id)

    def remove(self, member: StreamsMember) -> None:
        """The member holds nothing."""
        member_id = member.member_id
        for held in (member.assigned, member.revoking):
            for task in each(held.active):
                if self.active.get(task) == member_id:
                    del self.active[task]
            for tasks, holders in ((held.standby, self.standby), (held.warmup, self.warmup)):
                for task in each(tasks):
                    if task in holders:
                        holders[task].discard(member_id)
                        if not holders[task]:
                            del holders[task]


class Live:
    """What is not stored."""

    __slots__ = ("configured", "endpoint_epoch", "first_assignment", "shutdown_by")

    def __init__(self) -> None:
        self.configured: Configured | None = None
        """The topology on the topics of ``StreamsGroup.checked_revision``."""
        self.endpoint_epoch = 0
        """Increases when the tasks of a member with an endpoint change."""
        self.first_assignment: Deadline[Any] | None = None
        """Set while a group that was empty waits for more members before it assigns."""
        self.shutdown_by: str | None = None
        """The member that asked all others to shut down. None again when the group is empty."""


class StreamsGroup(AssignedGroup[StreamsMember, TaskSets, StreamsGroupMetadataValue]):
    """The state of one streams group. ``live.configured`` was computed at ``checked_revision``.

    Invariant: ``holders`` has exactly what the members hold.
    """

    group_type = "streams"
    unit = "tasks"
    records = RecordTypes(
        StreamsGroupMetadataKey,
        StreamsGroupMemberMetadataKey,
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTargetAssignmentMetadataValue,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupTopologyKey,
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id, StreamsMember, StreamsGroupMetadataValue)
        self.topology: Topology | None = None
        self.holders = Holders()
        self.live = Live()

    # What it is

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.metadata.validated_topology_epoch:
            return GroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.RECONCILING if self.behind else GroupState.STABLE

    def target(self, member_id: str) -> TaskSets:
        """The tasks that a member is to have."""
        return self.targets.get(member_id, NOTHING)

    def consumes(self, topic: str) -> bool:
        """Whether members may be reading ``topic`` now."""
        return bool(self.members) and self.topology is not None and topic in self.topology.sources

    def is_active_elsewhere(self, task: Task, member: StreamsMember) -> bool:
        """Whether another member holds the active task, or has yet to give it back."""
        return self.holders.active.get(task, member.member_id) != member.member_id

    def is_active_beside(self, task: Task, member: StreamsMember) -> bool:
        """Whether that other member is of the same process."""
        return self.is_active_elsewhere(task, member) and self._same_process(self.holders.active[task], member)

    def has_copy_beside(self, task: Task, member: StreamsMember) -> bool:
        """Whether another member of the same process holds the task as a standby or warm-up task, or has yet to give it
        back.
        """
        return any(
            holder != member.member_id and self._same_process(holder, member)
            for holders in (self.holders.standby, self.holders.warmup)
            for holder in holders.get(task, ())
        )

    def _same_process(self, member_id: str, member: StreamsMember) -> bool:
        other = self.members.get(member_id)
        return other is not None and other.process_id == member.process_id

    def settled(self) -> None:
        if not self.members:
            self.live.shutdown_by = None

    # Records

    def next_metadata(self, topics: Topics) -> StreamsGroupMetadataValue:
        _ = topics
        return msgspec.structs.replace(self.metadata, epoch=self.epoch + 1)

    def target_value(self, target: TaskSets) -> StreamsGroupTargetAssignmentMemberValue:
        return target.value()

    def _target_of(self, value: Stored) -> TaskSets:
        assert isinstance(value, StreamsGroupTargetAssignmentMemberValue)
        return TaskSets(of(value.active_tasks), of(value.standby_tasks), of(value.warmup_tasks))

    def _apply_own(self, key: AssignedGroupKey, value: Stored | None) -> None:
        assert isinstance(key, StreamsGroupTopologyKey)
        assert value is None or isinstance(value, StreamsGroupTopologyValue)
        self.topology = None if value is None else restored(value)
        self.checked_revision = NEVER_CHECKED

    def _own_record(self, key: AssignedGroupKey) -> Stored | None:
        assert isinstance(key, StreamsGroupTopologyKey)
        return None if self.topology is None else self.topology.value()

    def _hold(self, before: StreamsMember | None, after: StreamsMember | None) -> None:
        if before is not None:
            self.holders.remove(before)
        if after is not None:
            self.holders.add(after)
