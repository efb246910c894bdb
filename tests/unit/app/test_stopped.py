"""A process that was stopped is named when it begins, once, and when it is over."""

import errno

import pytest

from millstream.app.stopped import INTERVAL_MS, StopWatch
from millstream.telemetry.metrics import StatsSlab


@pytest.fixture
def world():
    class World:
        now_ns = 1
        state = "S"

    return World()


def test_a_stopped_process_is_told_once_with_who_waits_and_what_to_do(world, capfd):
    slab = StatsSlab(1, "writer")
    slab.started()
    asked = []
    watch = StopWatch(lambda: world.now_ns, lambda pid: asked.append(pid) or world.state)
    watch.add(slab)
    for state in "SSTTTtS":
        world.state = state
        watch.poll()
        watch.poll()  # too soon to look again
        world.now_ns += INTERVAL_MS * 1_000_000
    assert asked == [slab.pid] * 7
    begun, over = capfd.readouterr().err.splitlines()
    assert f"writer 1 (pid {slab.pid}) was stopped by a signal: producers of its shard wait" in begun
    assert f"kill -CONT {slab.pid}" in begun
    assert "writer 1 continues after it was stopped for 4000 ms" in over


def test_a_look_that_cannot_be_taken_says_nothing_and_the_next_one_does(world, capfd):
    slab = StatsSlab(1, "writer")
    slab.started()

    def state_of(pid):
        if world.state is None:
            raise OSError(errno.EMFILE, "Too many open files")
        return world.state

    watch = StopWatch(lambda: world.now_ns, state_of)
    watch.add(slab)
    told = []
    for state in (None, "T", None, "S"):
        world.state = state
        watch.poll()
        world.now_ns += INTERVAL_MS * 1_000_000
        told.append(len(capfd.readouterr().err.splitlines()))
    assert told == [0, 1, 0, 1]


def test_a_process_that_has_not_started_is_left_alone(world):
    watch = StopWatch(lambda: world.now_ns, lambda pid: pytest.fail("nobody to look at"))
    watch.add(StatsSlab(0, "cleaner"))
    watch.poll()
