"""Streams groups under everything at once, from one seed each (``streams_group_world``), and planted bugs it finds."""

from collections import Counter
from collections.abc import Callable

import pytest
from streams_group_world import World

from millstream.core.group.assigned import change as changes
from millstream.core.group.streams import heartbeat, reconcile, sticky, target, topics
from millstream.core.group.streams_state import group as groups
from millstream.core.group.streams_state import tasks

STEPS = 300


def play(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        world.act()
    world.rest()
    world.check_at_rest()
    return world


@pytest.mark.parametrize("seed", range(16))
def test_streams_groups_hold_what_they_promise(seed: int) -> None:
    play(seed)


def test_the_worlds_see_what_they_are_made_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 112):
        seen += play(seed).seen
    what = ("assigned", "copied", "committed", "deleted", "crashes", "missing_source_topics", "missing_internal_topics")
    assert all(seen[one] for one in (*what, "incorrectly_partitioned_topics", "assignment_delayed")), seen


_took = sticky._Process.took


def _took_without_a_note(self, member_id, task):
    now = _took(self, member_id, task)
    self.tasks.discard(task)
    return now


Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Plant] = {
    "an active task is given before another member gave it back": lambda patch: patch.setattr(
        groups.StreamsGroup, "is_active_elsewhere", lambda self, task, member: False
    ),
    "a process gets a second copy of a task": lambda patch: patch.setattr(
        groups.StreamsGroup, "has_copy_beside", lambda self, task, member: False
    ),
    "a standby task beside the active one": lambda patch: patch.setattr(
        groups.StreamsGroup, "is_active_beside", lambda self, task, member: False
    ),
    "tasks to give back are not waited for": lambda patch: patch.setattr(
        tasks.HeldTasks, "overlaps", lambda self, owned: False
    ),
    "a change that failed is kept": lambda patch: patch.setattr(changes.GroupChange, "undo", lambda self: None),
    "tasks of a member that left stay held": lambda patch: patch.setattr(
        groups.Holders, "remove", lambda self, member: None
    ),
    "the epoch before is refused": lambda patch: patch.setattr(tasks.HeldTasks, "contains", lambda self, owned: False),
    "new topics start no assignment": lambda patch: patch.setattr(topics, "metadata_hash", lambda names, by_name: 0),
    "another number of standby tasks starts no assignment": lambda patch: patch.setattr(
        topics, "assignment_configs", lambda step, group_id: []
    ),
    "standby tasks are left out": lambda patch: patch.setattr(sticky._Assigning, "give_standby", lambda self: None),
    "standby tasks go to a process that has the task": lambda patch: patch.setattr(
        sticky._Process, "took", _took_without_a_note
    ),
    "one member gets everything": lambda patch: patch.setattr(
        sticky._Assigning, "_by_load", lambda self: [(0.0, 0, next(iter(self.processes.values())))] * 2
    ),
    "the first assignment is never made": lambda patch: patch.setattr(target, "is_delayed", lambda streams: True),
    "a member that waits for tasks is not looked at again": lambda patch: patch.setattr(
        heartbeat, "_is_quiet", lambda step, streams, beat: beat.request.member_id in streams.members
    ),
    "reconciled without the tasks of others": lambda patch: patch.setattr(
        reconcile, "_free", lambda wanted, kept, is_taken: ({}, False)
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for seed in range(24):
        try:
            play(seed)
        except Exception:  # noqa: BLE001 - whatever shows that something is wrong
            return
    pytest.fail("no seed found it")
