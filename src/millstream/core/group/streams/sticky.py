"""The assignor ``sticky`` of streams groups: tasks stay where their state is, and members have about equally many.

A member is a thread of a process; the state of a task is on the process's disk. So an active task goes, in this order,
to the member that had it, to one that had it as a standby task, and to the least loaded process. Each step gives a
member no more than its share of what is left. Standby tasks of stateful subtopologies go to members that had the task,
then to the least loaded processes, never to a process that has the task already. With too few processes there are fewer
of them.

New tasks are given subtopology by subtopology, so that a member has neighbouring partitions. The order of members,
processes and tasks decides what is left, so that equal input gives equal output. Kafka 4.3's assignor of the same name
follows the same steps; ties it decides by the order of its hash tables.
"""

import heapq
from collections.abc import Iterable, Mapping
from itertools import count
from typing import TypeAlias

import msgspec

from millstream.core.group.streams_state.tasks import Task, Tasks, TaskSets, each


class TaskMember(msgspec.Struct, frozen=True):
    """A member, and its target so far."""

    process_id: str
    target: TaskSets


class TaskSpec(msgspec.Struct, frozen=True):
    """The tasks of one subtopology."""

    tasks: int
    is_stateful: bool


TaskMembers: TypeAlias = Mapping[str, TaskMember]
"""Member id → member."""


def assign_tasks(
    members: TaskMembers, subtopologies: Mapping[str, TaskSpec], standby_count: int
) -> dict[str, TaskSets]:
    """What each member is to have: every task once as an active task, and ``standby_count`` times as a standby task
    where its subtopology is stateful and there are processes for it.
    """
    if not members:
        return {}
    assigning = _Assigning(members, subtopologies, standby_count)
    assigning.give_active()
    if standby_count:
        assigning.give_standby()
    return assigning.result()


class _Process:
    """One instance of the application, and what its members got."""

    __slots__ = ("_least", "_total", "counts", "order", "tasks")

    def __init__(self, place: int) -> None:
        self.order = place
        self.counts: dict[str, int] = {}
        self.tasks: set[Task] = set()
        self._total = 0
        self._least: list[tuple[int, str]] = []
        """A heap of counts and members; an entry whose count is not the member's is out of date."""

    @property
    def load(self) -> float:
        return self._total / len(self.counts)

    def add(self, member_id: str) -> None:
        """A member without tasks."""
        self.counts[member_id] = 0
        heapq.heappush(self._least, (0, member_id))

    def took(self, member_id: str, task: Task) -> int:
        """A member gets a task; returns how many it has."""
        self.tasks.add(task)
        self._total += 1
        now = self.counts[member_id] = self.counts[member_id] + 1
        heapq.heappush(self._least, (now, member_id))
        return now

    def least_loaded(self) -> str:
        while self._least[0][0] != self.counts[self._least[0][1]]:
            heapq.heappop(self._least)
        return self._least[0][1]


class _Share:
    """How many tasks a member may have: its share of what the members without a full share have not got."""

    __slots__ = ("_members", "_tasks", "limit")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.limit = -(-tasks // members)

    def took(self, tasks: int) -> None:
        """A member has ``tasks`` now."""
        if tasks == self.limit and self._members:
            self._members -= 1
            self._tasks -= tasks
            self.limit = -(-self._tasks // self._members) if self._members else 0


class _Assigning:
    def __init__(self, members: TaskMembers, subtopologies: Mapping[str, TaskSpec], standbys: int) -> None:
        self.members = members
        self.standbys = standbys
        self.all = [Task(key, index) for key in sorted(subtopologies) for index in range(subtopologies[key].tasks)]
        self.stateful = [task for task in self.all if subtopologies[task.subtopology].is_stateful]
        self.processes: dict[str, _Process] = {}
        self.had_active: dict[Task, str] = {}
        self.had_standby: dict[Task, list[str]] = {}
        for member_id in sorted(members):
            member = members[member_id]
            process = self.processes.setdefault(member.process_id, _Process(len(self.processes)))
            process.add(member_id)
            self.had_active.update(dict.fromkeys(each(member.target.active), member_id))
            for task in each(member.target.standby):
                self.had_standby.setdefault(task, []).append(member_id)
        self.active_share = _Share(len(self.all), len(members))
        self.share = _Share(len(self.all) + standbys * len(self.stateful), len(members))
        self.active: dict[str, list[Task]] = {member_id: [] for member_id in members}
        self.standby: dict[str, list[Task]] = {member_id: [] for member_id in members}

    def _process(self, member_id: str) -> _Process:
        return self.processes[self.members[member_id].process_id]

    def _give(self, member_id: str, task: Task, *, active: bool) -> None:
        now = self._process(member_id).took(member_id, task)
        (self.active if active else self.standby)[member_id].append(task)
        if active:
            self.active_share.took(now)
        self.share.took(now)

    def _has_room(self, member_id: str, share: _Share) -> bool:
        return self._process(member_id).counts[member_id] < share.limit

    def _previous(self, task: Task) -> str | None:
        """The least loaded member that had the task as a standby task, in a process that does not have it."""
        found = [one for one in self.had_standby.get(task, ()) if task not in self._process(one).tasks]
        return min(found, key=lambda one: (self._process(one).load, self._process(one).counts[one]), default=None)

    def give_active(self) -> None:
        left: list[Task] = []
        for task in sorted(self.all, key=lambda task: (task.partition, task.subtopology)):
            former = self.had_active.get(task)
            if former is not None and self._has_room(former, self.active_share):
                self._give(former, task, active=True)
            else:
                left.append(task)
        rest: list[Task] = []
        for task in left:
            former = self._previous(task)
            if former is not None and self._has_room(former, self.active_share):
                self._give(former, task, active=True)
            else:
                rest.append(task)
        queue = self._by_load()
        for task in sorted(rest):
            _, _, process = heapq.heappop(queue)
            self._give(process.least_loaded(), task, active=True)
            heapq.heappush(queue, (process.load, process.order, process))

    def give_standby(self) -> None:
        left: list[Task] = []
        for task in sorted(self.stateful, key=lambda task: (task.partition, task.subtopology), reverse=True):
            for given in count():
                if given == self.standbys:
                    break
                former = self.had_active.get(task)
                if former is None or task in self._process(former).tasks or not self._has_room(former, self.share):
                    former = self._previous(task)
                if former is None or not self._has_room(former, self.share):
                    left += [task] * (self.standbys - given)
                    break
                self._give(former, task, active=False)
        queue = self._by_load()
        for task in sorted(left, reverse=True):
            skipped: list[tuple[float, int, _Process]] = []
            while queue and task in queue[0][2].tasks:
                skipped.append(heapq.heappop(queue))
            if queue:
                _, _, process = heapq.heappop(queue)
                self._give(process.least_loaded(), task, active=False)
                skipped.append((process.load, process.order, process))
            for entry in skipped:
                heapq.heappush(queue, entry)

    def _by_load(self) -> list[tuple[float, int, _Process]]:
        queue = [(process.load, process.order, process) for process in self.processes.values()]
        heapq.heapify(queue)
        return queue

    def result(self) -> dict[str, TaskSets]:
        return {one: TaskSets(_sets(self.active[one]), _sets(self.standby[one])) for one in self.members}


def _sets(tasks: Iterable[Task]) -> Tasks:
    found: dict[str, set[int]] = {}
    for task in tasks:
        found.setdefault(task.subtopology, set()).add(task.partition)
    return {name: frozenset(partitions) for name, partitions in found.items()}
