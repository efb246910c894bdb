"""A group whose members the coordinator assigns: the sum of its newest records, with derived counts.

``apply`` processes one record, just decided or read from the log. The newest records of a group may be applied in any
order. ``record`` returns the current value of a key, so that a change that could not be written is undone by applying
the former values.

Five records are the same in each type of group (``wire.messages.assigned_group_storage``); a sixth belongs to one type
alone. Derived counts follow each record and are not stored.
"""

from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from millstream.core.group.assigned_state.member import AssignedMember
from millstream.core.group.deadlines import Deadline
from millstream.core.group.state import GroupState
from millstream.core.group.topics import NEVER_CHECKED, Topics
from millstream.wire.messages.assigned_group_storage import (
    AssignmentEpochKey,
    AssignmentEpochValue,
    CurrentKey,
    GroupEpochKey,
    GroupEpochValue,
    MemberKey,
    TargetKey,
)
from millstream.wire.schema import Stored
from millstream.wire.stored import AssignedGroupKey

FIRST_EPOCH: Final = 1
"""Group and assignment epoch of a group without stored epochs, as in Kafka."""
_NEVER_ASSIGNED: Final = AssignmentEpochValue(FIRST_EPOCH)

M = TypeVar("M", bound=AssignedMember)
T = TypeVar("T")
"""What a member is to have."""
E = TypeVar("E", bound=GroupEpochValue)

AssignedRecord: TypeAlias = tuple[AssignedGroupKey, Stored | None]
AnyGroup: TypeAlias = "AssignedGroup[Any, Any, Any]"


class RecordTypes(NamedTuple):
    """Keys and values of the records of one type of group. ``own_key``: of the record that only this type has."""

    epoch_key: type[GroupEpochKey]
    member_key: type[MemberKey]
    assignment_key: type[AssignmentEpochKey]
    assignment: type[AssignmentEpochValue]
    target_key: type[TargetKey]
    current_key: type[CurrentKey]
    own_key: type[AssignedGroupKey]

    @property
    def keys(self) -> tuple[type[AssignedGroupKey], ...]:
        return (
            self.epoch_key,
            self.member_key,
            self.assignment_key,
            self.target_key,
            self.current_key,
            self.own_key,
        )


class MemberTimers:
    """The deadlines of one member. All but ``session`` are only set while needed: ``rebalance`` until the member has
    given back what it must; ``join`` and ``sync`` until a classic member of a consumer group sends that request.
    """

    __slots__ = ("join", "rebalance", "session", "sync")

    def __init__(
        self, session: Deadline[Any], rebalance: Deadline[Any], join: Deadline[Any], sync: Deadline[Any]
    ) -> None:
        self.session = session
        self.rebalance = rebalance
        self.join = join
        self.sync = sync

    @property
    def all(self) -> tuple[Deadline[Any], ...]:
        return self.session, self.rebalance, self.join, self.sync


class AssignedGroup(Generic[M, T, E]):
    """The state of one group.

    Invariant: ``behind`` counts the members that are not reconciled to ``assignment_epoch``.
    """

    group_type: ClassVar[str]
    """As ListGroups names it; also the protocol type."""
    unit: ClassVar[str] = "partitions"
    """What members are assigned."""
    records: ClassVar[RecordTypes]

    def __init__(self, group_id: str, member_type: type[M], metadata_type: type[E]) -> None:
        self.group_id = group_id
        self._member_type = member_type
        self._metadata_type = metadata_type
        self.metadata: E = metadata_type(FIRST_EPOCH)
        """The newest record of the group epoch."""
        self.assignment = _NEVER_ASSIGNED
        """The newest record of the target assignment's epoch."""
        self.members: dict[str, M] = {}
        self.targets: dict[str, T] = {}
        self.behind = 0
        self.timers: dict[str, MemberTimers] = {}
        self.checked_revision = NEVER_CHECKED
        """Revision of the cluster's metadata with which the group was last compared."""

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    @property
    def assignment_epoch(self) -> int:
        return self.assignment.assignment_epoch

    @property
    def state(self) -> GroupState:
        raise NotImplementedError

    def consumes(self, topic: str) -> bool:
        """Whether members may be reading ``topic`` now, so that its committed offsets stay. Share groups have none."""
        _ = topic
        return False

    def settled(self) -> None:
        """A change of the group is durable."""

    def next_metadata(self, topics: Topics) -> E:
        """The record of the next group epoch."""
        raise NotImplementedError

    def target_value(self, target: T) -> Stored:
        """The record of a member's target."""
        raise NotImplementedError

    # Records

    def apply(self, key: AssignedGroupKey, value: Stored | None) -> None:
        """Apply a record; value None deletes."""
        match key:
            case GroupEpochKey():
                assert value is None or isinstance(value, self._metadata_type)
                self.metadata = value or self._metadata_type(FIRST_EPOCH)
            case MemberKey():
                before = self.members.get(key.member_id)
                after = None
                if value is not None:
                    after = (before or self._member_type(key.member_id)).with_metadata(value)
                self._put(before, after)
                self._count(before, after)
                if after is None:
                    self._hold(before, None)
            case AssignmentEpochKey():
                assert value is None or isinstance(value, AssignmentEpochValue)
                self.assignment = value or _NEVER_ASSIGNED
                epoch = self.assignment_epoch
                self.behind = sum(not member.is_reconciled_to(epoch) for member in self.members.values())
            case TargetKey():
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = self._target_of(value)
            case CurrentKey():
                before = self.members.get(key.member_id)
                if before is not None or value is not None:
                    after = (before or self._member_type(key.member_id)).with_current(value)
                    self._put(before, after)
                    self._hold(before, after)
            case _:
                self._apply_own(key, value)

    def record(self, key: AssignedGroupKey) -> Stored | None:
        """The current value of ``key``."""
        match key:
            case GroupEpochKey():
                return self.metadata
            case AssignmentEpochKey():
                return self.assignment
            case MemberKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.metadata_value()
            case CurrentKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.current_value()
            case TargetKey():
                target = self.targets.get(key.member_id)
                return None if target is None else self.target_value(target)
            case _:
                return self._own_record(key)

    def tombstones(self) -> list[AssignedRecord]:
        """The records that delete the group."""
        records: list[AssignedRecord] = []
        for member_id in self.members:
            records += self.member_tombstones(member_id)
        keys = [
            self.records.assignment_key(self.group_id),
            *self._own_keys(),
            self.records.epoch_key(self.group_id),
        ]
        return [*records, *((key, None) for key in keys)]

    def member_tombstones(self, member_id: str) -> list[AssignedRecord]:
        """The records that delete a member."""
        types = self.records
        return [
            (key(self.group_id, member_id), None) for key in (types.current_key, types.target_key, types.member_key)
        ]

    def _put(self, before: M | None, after: M | None) -> None:
        """Replace a member by its successor; None: it is not in the group."""
        epoch = self.assignment_epoch
        if before is not None:
            self.behind -= not before.is_reconciled_to(epoch)
        if after is not None:
            self.members[after.member_id] = after
            self.behind += not after.is_reconciled_to(epoch)
        elif before is not None:
            del self.members[before.member_id]

    def _count(self, before: M | None, after: M | None) -> None:
        """The facts of a member changed: what is derived from them follows."""

    def _hold(self, before: M | None, after: M | None) -> None:
        """What a member has changed: what is derived from it follows."""

    def _target_of(self, value: Stored) -> T:
        """The target of a record."""
        raise NotImplementedError

    # The record that only this type of group has

    def _apply_own(self, key: AssignedGroupKey, value: Stored | None) -> None:
        raise NotImplementedError

    def _own_record(self, key: AssignedGroupKey) -> Stored | None:
        raise NotImplementedError

    def _own_keys(self) -> list[AssignedGroupKey]:
        """The keys under which the group may have such records."""
        return [self.records.own_key(self.group_id)]
