"""A streams group: the sum of its newest records, with derived counts.

``apply`` processes one record, just decided or read from the log. The newest records of a group may be applied in any
order. ``record`` returns the current value of a key, so that a change that could not be written is undone by applying
the former values.

Derived (who holds a task, how many members are not reconciled) follows each record and is not stored. What only this
coordinator knows is in ``Live``: a successor starts without it.
"""

from typing import Any, Final, TypeAlias

from millstream.core.group.consumer_state.topics import NEVER_CHECKED
from millstream.core.group.deadlines import Deadline
from millstream.core.group.state import GroupState
from millstream.core.group.streams_state.configured import Configured
from millstream.core.group.streams_state.member import LEAVES, MemberState, StreamsMember
from millstream.core.group.streams_state.tasks import NOTHING, NOTHING_HELD, Task, TaskSets, each, of
from millstream.core.group.streams_state.topology import Topology, restored
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from millstream.wire.stored import StreamsGroupKey

FIRST_EPOCH: Final = 1
"""Group and assignment epoch of a group without stored epochs, as in Kafka."""

StreamsGroupValue: TypeAlias = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)
StreamsRecord: TypeAlias = tuple[StreamsGroupKey, StreamsGroupValue | None]

_NEW: Final = StreamsGroupMetadataValue(FIRST_EPOCH)
_NEVER_ASSIGNED: Final = StreamsGroupTargetAssignmentMetadataValue(FIRST_EPOCH)


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


class MemberTimers:
    """The deadlines of one member. ``rebalance`` is only set while the member has to give tasks back."""

    __slots__ = ("rebalance", "session")

    def __init__(self, session: Deadline[Any], rebalance: Deadline[Any]) -> None:
        self.session = session
        self.rebalance = rebalance


class Live:
    """What is not stored."""

    __slots__ = ("configured", "endpoint_epoch", "first_assignment", "shutdown_by", "timers")

    def __init__(self) -> None:
        self.configured: Configured | None = None
        """The topology on the topics of ``StreamsGroup.checked_revision``."""
        self.endpoint_epoch = 0
        """Increases when the tasks of a member with an endpoint change."""
        self.first_assignment: Deadline[Any] | None = None
        """Set while a group that was empty waits for more members before it assigns."""
        self.shutdown_by: str | None = None
        """The member that asked all others to shut down. None again when the group is empty."""
        self.timers: dict[str, MemberTimers] = {}


class StreamsGroup:
    """The state of one streams group.

    Invariants: ``holders`` has exactly what the members hold; ``behind`` counts the members that are not reconciled to
    ``assignment_epoch``.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.metadata = _NEW
        self.assignment = _NEVER_ASSIGNED
        self.topology: Topology | None = None
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, TaskSets] = {}
        self.holders = Holders()
        self.behind = 0
        self.checked_revision = NEVER_CHECKED
        """Revision of the metadata with which ``live.configured`` was computed."""
        self.live = Live()

    # What it is

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    @property
    def assignment_epoch(self) -> int:
        return self.assignment.assignment_epoch

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

    # Records

    def apply(self, key: StreamsGroupKey, value: StreamsGroupValue | None) -> None:
        """Apply a record; value None deletes."""
        match key:
            case StreamsGroupMetadataKey():
                assert value is None or isinstance(value, StreamsGroupMetadataValue)
                self.metadata = value or _NEW
            case StreamsGroupMemberMetadataKey():
                assert value is None or isinstance(value, StreamsGroupMemberMetadataValue)
                member = self._remove(key.member_id)
                if value is not None:
                    self._add(member.with_metadata(value))
            case StreamsGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, StreamsGroupTargetAssignmentMetadataValue)
                self.assignment = value or _NEVER_ASSIGNED
                epoch = self.assignment_epoch
                self.behind = sum(not member.is_reconciled_to(epoch) for member in self.members.values())
            case StreamsGroupTargetAssignmentMemberKey():
                assert value is None or isinstance(value, StreamsGroupTargetAssignmentMemberValue)
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = TaskSets(
                        of(value.active_tasks), of(value.standby_tasks), of(value.warmup_tasks)
                    )
            case StreamsGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, StreamsGroupCurrentMemberAssignmentValue)
                is_known = key.member_id in self.members
                member = self._remove(key.member_id)
                if value is not None:
                    self._add(member.with_current(value))
                elif is_known:
                    self._add(_without_tasks(member))
            case StreamsGroupTopologyKey():
                assert value is None or isinstance(value, StreamsGroupTopologyValue)
                self.topology = None if value is None else restored(value)
                self.checked_revision = NEVER_CHECKED

    def record(self, key: StreamsGroupKey) -> StreamsGroupValue | None:
        """The current value of ``key``."""
        match key:
            case StreamsGroupMetadataKey():
                return self.metadata
            case StreamsGroupMemberMetadataKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.metadata_value()
            case StreamsGroupTargetAssignmentMetadataKey():
                return self.assignment
            case StreamsGroupTargetAssignmentMemberKey():
                target = self.targets.get(key.member_id)
                return None if target is None else target.value()
            case StreamsGroupCurrentMemberAssignmentKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.current_value()
            case StreamsGroupTopologyKey():
                return None if self.topology is None else self.topology.value()

    def tombstones(self) -> list[StreamsRecord]:
        """The records that delete the group."""
        group_id = self.group_id
        records: list[StreamsRecord] = []
        for member_id in self.members:
            records += member_tombstones(group_id, member_id)
        return [
            *records,
            (StreamsGroupTargetAssignmentMetadataKey(group_id), None),
            (StreamsGroupTopologyKey(group_id), None),
            (StreamsGroupMetadataKey(group_id), None),
        ]

    def _remove(self, member_id: str) -> StreamsMember:
        """Take a member out; returns it, or a new one."""
        member = self.members.pop(member_id, None)
        if member is None:
            return StreamsMember(member_id)
        self.holders.remove(member)
        self.behind -= not member.is_reconciled_to(self.assignment_epoch)
        return member

    def _add(self, member: StreamsMember) -> None:
        self.members[member.member_id] = member
        self.holders.add(member)
        self.behind += not member.is_reconciled_to(self.assignment_epoch)


def _without_tasks(member: StreamsMember) -> StreamsMember:
    return member.at(LEAVES, MemberState.STABLE, NOTHING_HELD, NOTHING_HELD)


def member_tombstones(group_id: str, member_id: str) -> list[StreamsRecord]:
    """The records that delete a member."""
    return [
        (StreamsGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        (StreamsGroupTargetAssignmentMemberKey(group_id, member_id), None),
        (StreamsGroupMemberMetadataKey(group_id, member_id), None),
    ]
