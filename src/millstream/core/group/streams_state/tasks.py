"""Sets of tasks. A task is a partition of a subtopology; a member has it as active, standby or warm-up task."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from millstream.model.quantities import MemberEpoch
from millstream.wire.messages.streams_group_heartbeat import StreamsTaskIds
from millstream.wire.messages.streams_group_storage import StoredTaskIds, StreamsGroupTargetAssignmentMemberValue

Tasks: TypeAlias = Mapping[str, frozenset[int]]
"""Subtopology → partitions. No set is empty."""
Epochs: TypeAlias = Mapping[str, Mapping[int, int]]
"""Subtopology → partition → member epoch with which the task was given. No subtopology is empty."""

NO_TASKS: Final[Tasks] = {}
NO_EPOCHS: Final[Epochs] = {}


class Task(NamedTuple):
    """One task."""

    subtopology: str
    partition: int


class TaskSets(msgspec.Struct, frozen=True):
    """The tasks that a member is to have, or says that it has."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    def value(self) -> StreamsGroupTargetAssignmentMemberValue:
        """As the record of a target has it."""
        return StreamsGroupTargetAssignmentMemberValue(listed(self.active), listed(self.standby), listed(self.warmup))


NOTHING: Final = TaskSets()


class HeldTasks(msgspec.Struct, frozen=True):
    """The tasks that a member has, or has yet to give back."""

    active: Epochs = NO_EPOCHS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    @property
    def sets(self) -> TaskSets:
        """The tasks without their epochs."""
        active = {name: frozenset(partitions) for name, partitions in self.active.items()}
        return TaskSets(active, self.standby, self.warmup)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def overlaps(self, owned: TaskSets) -> bool:
        """Whether any of these tasks is among ``owned``, as a task of the same kind."""
        return (
            any(not owned.active.get(name, frozenset()).isdisjoint(parts) for name, parts in self.active.items())
            or any(not owned.standby.get(name, frozenset()).isdisjoint(parts) for name, parts in self.standby.items())
            or any(not owned.warmup.get(name, frozenset()).isdisjoint(parts) for name, parts in self.warmup.items())
        )

    def contains(self, owned: TaskSets) -> bool:
        """Whether each task of ``owned`` is among these, as a task of the same kind."""
        return (
            all(parts <= self.active.get(name, {}).keys() for name, parts in owned.active.items())
            and all(parts <= self.standby.get(name, frozenset()) for name, parts in owned.standby.items())
            and all(parts <= self.warmup.get(name, frozenset()) for name, parts in owned.warmup.items())
        )


NOTHING_HELD: Final = HeldTasks()


def each(tasks: Tasks | Epochs) -> Iterable[Task]:
    """Every task of a set."""
    return (Task(name, partition) for name, partitions in tasks.items() for partition in partitions)


def of(listed_tasks: Iterable[StreamsTaskIds] | Iterable[StoredTaskIds]) -> Tasks:
    """Tasks as messages list them."""
    found: dict[str, frozenset[int]] = {}
    for one in listed_tasks:
        if one.partitions:
            found[one.subtopology_id] = found.get(one.subtopology_id, frozenset()) | frozenset(one.partitions)
    return found


def listed(tasks: Tasks | Epochs) -> list[StreamsTaskIds]:
    """Tasks as messages list them, in order."""
    return [StreamsTaskIds(name, sorted(tasks[name])) for name in sorted(tasks)]


def stored(tasks: Tasks) -> list[StoredTaskIds]:
    """Tasks as the record of a member has them."""
    return [StoredTaskIds(name, sorted(tasks[name])) for name in sorted(tasks)]


def stored_epochs(tasks: Epochs) -> list[StoredTaskIds]:
    """Active tasks as the record of a member has them."""
    return [
        StoredTaskIds(name, parts := sorted(tasks[name]), [tasks[name][partition] for partition in parts])
        for name in sorted(tasks)
    ]


def restored_epochs(listed_tasks: Iterable[StoredTaskIds], epoch: MemberEpoch) -> Epochs:
    """Active tasks of a member's record. Those without epochs, as Kafka 4.1 wrote them, were given with ``epoch``."""
    found: dict[str, dict[int, int]] = {}
    for one in listed_tasks:
        epochs = one.assignment_epochs or ()
        if len(epochs) != len(one.partitions):
            epochs = [epoch] * len(one.partitions)
        if one.partitions:
            found.setdefault(one.subtopology_id, {}).update(zip(one.partitions, epochs, strict=True))
    return found
