"""Moves a member from its current to its target tasks, one step at a time, as ``consumer.reconcile`` does partitions.

::

                                    new target
    STABLE ────────────────► something is to be given back? ──yes──► UNREVOKED (epoch stays)
      ▲  ▲                        │ no                                    │ the member no longer owns any of it
      │  │                        ▼                                       ▼
      │  └──nothing missing── takes what is free, at the target's epoch ◄─┘
      │                           │ some is still held by others
      └──all of it is free── UNRELEASED (tries again with each heartbeat)

An active task is given to a member only if no other one holds it or has yet to give it back, and if no other member of
its process has a copy of it: a process keeps the state of a task once. A standby or warm-up task is given if no other
member of the process holds the task in any way.
"""

from collections.abc import Callable, Mapping

from millstream.core.group.streams_state.group import StreamsGroup
from millstream.core.group.streams_state.member import MemberState, StreamsMember
from millstream.core.group.streams_state.tasks import NOTHING_HELD, HeldTasks, Task, Tasks, TaskSets
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import MemberEpoch


def reconcile(
    streams: StreamsGroup, member: StreamsMember, target: TaskSets, epoch: MemberEpoch, owned: TaskSets | None
) -> StreamsMember:
    """The member after this heartbeat; unchanged if no step is possible.

    Args:
        streams: the group, in the state of its records.
        member: a member of it.
        target: what it is to have at ``epoch``.
        epoch: the epoch of the target assignment.
        owned: the tasks that the member says it owns; None if it says nothing.
    """
    if member.is_reconciled_to(epoch):
        return member
    match member.state:
        case MemberState.UNREVOKED_TASKS:
            if owned is None or member.revoking.overlaps(owned):
                return member
        case MemberState.UNKNOWN:
            if owned != TaskSets():
                raise Rejected(
                    "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
                    ErrorCode.FENCED_MEMBER_EPOCH,
                )
        case MemberState.STABLE | MemberState.UNRELEASED_TASKS:
            pass
    return _toward_target(streams, member, target, epoch, owned)


def _toward_target(
    streams: StreamsGroup, member: StreamsMember, target: TaskSets, epoch: MemberEpoch, owned: TaskSets | None
) -> StreamsMember:
    has = member.assigned
    active = {
        name: {partition: since for partition, since in parts.items() if partition in target.active.get(name, ())}
        for name, parts in has.active.items()
    }
    revoking_active = {
        name: {partition: since for partition, since in parts.items() if partition not in target.active.get(name, ())}
        for name, parts in has.active.items()
    }
    kept = HeldTasks(_kept(active), _both(has.standby, target.standby), _both(has.warmup, target.warmup))
    revoking = HeldTasks(
        _kept(revoking_active), _first_only(has.standby, target.standby), _first_only(has.warmup, target.warmup)
    )
    if not revoking.is_empty and (owned is None or revoking.overlaps(owned)):
        return member.at(member.epoch, MemberState.UNREVOKED_TASKS, kept, revoking)

    def active_taken(task: Task) -> bool:
        return streams.is_active_elsewhere(task, member) or streams.has_copy_beside(task, member)

    def copy_taken(task: Task) -> bool:
        return streams.is_active_beside(task, member) or streams.has_copy_beside(task, member)

    free_active, wait_active = _free(target.active, kept.active, active_taken)
    free_standby, wait_standby = _free(target.standby, kept.standby, copy_taken)
    free_warmup, wait_warmup = _free(target.warmup, kept.warmup, copy_taken)
    given = {name: dict.fromkeys(partitions, epoch) for name, partitions in free_active.items()}
    assigned = HeldTasks(
        {name: {**kept.active.get(name, {}), **given.get(name, {})} for name in {**kept.active, **given}},
        _union(kept.standby, free_standby),
        _union(kept.warmup, free_warmup),
    )
    waits = wait_active or wait_standby or wait_warmup
    state = MemberState.UNRELEASED_TASKS if waits else MemberState.STABLE
    return member.at(epoch, state, assigned, NOTHING_HELD)


def _free(wanted: Tasks, kept: Mapping[str, object], is_taken: Callable[[Task], bool]) -> tuple[Tasks, bool]:
    """The wanted tasks that the member does not have and can get, and whether there are some that it cannot get yet."""
    found: dict[str, frozenset[int]] = {}
    waits = False
    for name, partitions in wanted.items():
        has = kept.get(name, frozenset[int]())
        assert isinstance(has, frozenset | dict)
        missing = [partition for partition in partitions if partition not in has]
        free = frozenset(partition for partition in missing if not is_taken(Task(name, partition)))
        waits = waits or len(free) < len(missing)
        if free:
            found[name] = free
    return found, waits


def _kept(tasks: Mapping[str, Mapping[int, int]]) -> dict[str, Mapping[int, int]]:
    return {name: partitions for name, partitions in tasks.items() if partitions}


def _both(one: Tasks, other: Tasks) -> Tasks:
    found = {name: partitions & other.get(name, frozenset()) for name, partitions in one.items()}
    return {name: partitions for name, partitions in found.items() if partitions}


def _first_only(one: Tasks, other: Tasks) -> Tasks:
    found = {name: partitions - other.get(name, frozenset()) for name, partitions in one.items()}
    return {name: partitions for name, partitions in found.items() if partitions}


def _union(one: Tasks, other: Tasks) -> Tasks:
    return {name: one.get(name, frozenset()) | other.get(name, frozenset()) for name in {**one, **other}}
