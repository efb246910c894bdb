"""A shard that stands still in one callback writes where it stands."""

import contextlib
import os
import select
import time

import pytest

from millstream.shard.process import spawn
from millstream.shard.reactor import Reactor
from millstream.shard.stall import DUMP_SIGNAL, DUMPS_MAX, QUIET_MS, StallWatch
from millstream.telemetry.metrics import ENTERED_CELL, StatsSlab

MS = 1_000_000


def a_callback_that_does_not_return(writable):
    os.write(writable, b"in")
    end = time.perf_counter() + 120
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize("where", ["python code", "a system call"])
def test_a_stalled_shard_writes_its_own_stack(capfd, where):
    slab = StatsSlab(1, "shard")
    readable, writable = os.pipe()
    stalled = a_callback_that_does_not_return

    def sleeps(writable):
        os.write(writable, b"in")
        time.sleep(120)

    def main():
        reactor = Reactor(1, slab)
        reactor.call_soon(stalled if where == "python code" else sleeps, writable)
        return reactor.run()

    child = spawn("shard 1", main)
    os.read(readable, 2)
    watch = StallWatch(limit_ms=20)
    watch.add(slab)
    while not watch.poll():
        assert child.wait(0.005) is None
    err = ""
    while "most recent call first" not in err or "reactor.py" not in err:
        assert child.wait(0.01) is None, "the dump must not end the process"
        err += capfd.readouterr().err
    assert (stalled.__name__ if where == "python code" else "sleeps") in err
    assert "shard 1 has been in one callback for" in err
    assert slab.counter("reactor_stall_dumps").value == 1
    child.kill()
    child.wait()
    os.close(readable)
    os.close(writable)


AGAIN_S = 0.02
"""A signal that arrives while a stack is written is not answered."""


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.ci])])
def test_stacks_of_a_busy_process_end_nothing(count):
    """``faulthandler`` ended such a process after 5,000 stacks on average."""
    readable, writable = os.pipe()
    stacks, stderr = os.pipe()

    def doubled(count):
        yield from (2 * number for number in range(count))

    def busy(depth):
        if depth:
            return busy(depth - 1)
        with contextlib.suppress(KeyError):
            raise KeyError(sum(doubled(5)))
        return (lambda: depth)()

    def main():
        os.dup2(stderr, 2)
        os.write(writable, b"in")
        while True:
            busy(8)

    child = spawn("shard 1", main)
    os.read(readable, 2)
    for _ in range(count):
        said = b""
        while b"in <module>\n" not in said:
            if not said:
                os.kill(child.pid, DUMP_SIGNAL)
            ready, _, _ = select.select([stacks, child.pidfd], [], [], AGAIN_S)
            assert child.pidfd not in ready, f"it has ended: {child.poll()}"
            said += os.read(stacks, 1 << 16) if ready else b""
    child.kill()
    child.wait()
    for descriptor in (readable, writable, stacks, stderr):
        os.close(descriptor)


@pytest.fixture
def watched(monkeypatch):
    signalled = []
    monkeypatch.setattr("millstream.shard.stall.os.kill", lambda pid, signum: signalled.append(pid))
    clock = [1_000_000 * MS]
    watch = StallWatch(limit_ms=100, now_ns=lambda: clock[0])
    slab = StatsSlab(0, "shard")
    slab.cells[0] = 4711
    watch.add(slab)
    return watch, slab, clock, signalled


def test_a_callback_within_the_limit_is_left_alone(watched):
    watch, slab, clock, signalled = watched
    slab.cells[ENTERED_CELL] = clock[0] - 99 * MS
    assert watch.poll() == 0
    slab.cells[ENTERED_CELL] = 0
    clock[0] += 10_000 * MS
    assert watch.poll() == 0, "a shard that waits is not stalled"
    assert signalled == []


def test_one_stall_is_dumped_once_and_many_only_after_a_while(watched):
    watch, slab, clock, signalled = watched
    slab.cells[ENTERED_CELL] = clock[0] - 101 * MS
    assert [watch.poll() for _ in range(3)] == [1, 0, 0]
    for _ in range(DUMPS_MAX - 1):
        clock[0] += 500 * MS
        slab.cells[ENTERED_CELL] = clock[0] - 200 * MS
        assert watch.poll() == 1
    clock[0] += 500 * MS
    slab.cells[ENTERED_CELL] = clock[0] - 200 * MS
    assert watch.poll() == 0, "within the quiet time"
    clock[0] += QUIET_MS * MS
    assert watch.poll() == 1
    assert signalled == [4711] * (DUMPS_MAX + 1)
    assert slab.counter("reactor_stall_dumps").value == DUMPS_MAX + 1


@pytest.mark.parametrize("start_ms", [0, 1, 50, 99])
def test_a_callback_longer_than_the_limit_is_met_wherever_it_starts_between_two_looks(watched, start_ms):
    watch, slab, clock, signalled = watched
    watch.poll()
    entered = clock[0] + start_ms * MS
    while not signalled:
        clock[0] = watch.next_us * 1000
        assert clock[0] < entered + 101 * MS, "it has returned"
        slab.cells[ENTERED_CELL] = entered if clock[0] >= entered else 0
        watch.poll()


def test_an_idle_shard_is_looked_at_once_in_each_limit(watched):
    watch, slab, clock, _ = watched
    slab.cells[ENTERED_CELL] = 0
    for _ in range(5):
        watch.poll()
        assert 99 * MS < watch.next_us * 1000 - clock[0] < 101 * MS
        clock[0] = watch.next_us * 1000


def test_a_poll_costs_next_to_nothing(watched):
    watch = watched[0]
    for shard in range(63):
        watch.add(StatsSlab(shard, "shard"))
    begun = time.thread_time()
    for _ in range(200):
        watch.poll()
    assert (time.thread_time() - begun) / 200 < 0.001
