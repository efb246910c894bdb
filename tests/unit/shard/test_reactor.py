"""The reactor runs sockets, timers and ends of turns in order, and stops at an unexpected exception."""

import contextlib
import gc
import os
import socket
import time

import pytest

from millstream.shard.process import EXIT_SOFTWARE
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import ENTERED_CELL, StatsSlab


@pytest.fixture
def reactor():
    reactor = Reactor(0, StatsSlab(0, "shard"))
    reactor.call_later(120_000_000, lambda: reactor.stop(99, "the test took too long"))
    yield reactor
    reactor.close()


def readable_pair():
    here, there = socket.socketpair()
    there.send(b"x")
    return here, there


def busy(milliseconds):
    end = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < end:
        pass


def test_the_turn_ends_once_after_all_sockets_that_were_ready_in_it(reactor):
    """Group commit hangs on this: appends of all sockets readable in one poll become one write."""
    pairs = [readable_pair() for _ in range(8)]
    seen = []

    def commit():
        seen.append("commit")

    def read(number):
        pairs[number][0].recv(1)
        if "read" not in seen[len(seen) - seen[::-1].index("commit") if "commit" in seen else 0 :]:
            reactor.end_of_turn(commit)
        seen.append("read")

    for number, (here, _) in enumerate(pairs):
        reactor.add_reader(here.fileno(), lambda number=number: read(number))

    def again():
        for _, there in pairs:
            there.send(b"y")
        reactor.call_later(5000, lambda: reactor.stop(0))

    reactor.call_later(5000, again)
    assert reactor.run() == 0
    assert seen == (["read"] * 8 + ["commit"]) * 2
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_what_was_called_soon_runs_before_the_turn_ends_and_in_order(reactor):
    seen = []

    def first():
        reactor.end_of_turn(lambda: seen.append("end"))
        reactor.call_soon(next_turn)
        seen.append("first")

    def next_turn():
        seen.append("next turn")
        reactor.call_later(3000, lambda: reactor.stop(0))

    reactor.call_soon(first)
    reactor.call_soon(seen.append, "second")
    assert reactor.run() == 0
    assert seen == ["first", "second", "end", "next turn"]


def test_an_end_of_turn_that_asks_for_another_gets_it_in_the_same_turn(reactor):
    """The bell follows what the commit said, without a wait in between."""
    seen = []

    def commit():
        seen.append("commit")
        reactor.call_soon(next_turn)
        reactor.end_of_turn(lambda: seen.append("bell"))

    def next_turn():
        seen.append("next turn")
        reactor.call_later(3000, lambda: reactor.stop(0))

    reactor.end_of_turn(commit)
    assert reactor.run() == 0
    assert seen == ["commit", "bell", "next turn"]


def test_an_end_of_turn_that_never_rests_does_not_starve_sockets(reactor):
    here, there = readable_pair()
    rounds = []

    def restless():
        rounds.append(1)
        reactor.end_of_turn(restless)

    reactor.end_of_turn(restless)
    reactor.add_reader(here.fileno(), lambda: reactor.stop(0))
    assert reactor.run() == 0
    assert rounds
    here.close()
    there.close()


def test_timers_fire_in_the_order_of_their_deadlines_and_never_early(reactor):
    fired = []
    base = reactor.now_us()
    for delay in (3000, 1000, 2000, 1000, 500):
        reactor.call_at(base + delay, lambda delay=delay: fired.append((delay, reactor.now_us() - base)))
    reactor.call_at(base + 4000, lambda: reactor.stop(0))
    reactor.run()
    assert [delay for delay, _ in fired] == [500, 1000, 1000, 2000, 3000]
    assert all(at >= delay for delay, at in fired)


def gaps_of_ticks(reactor):
    """How long fifty timers of 200 µs, one after another, took each; sorted."""
    gaps = []

    def tick(since):
        gaps.append(reactor.now_us() - since)
        if len(gaps) < 50:
            now = reactor.now_us()
            reactor.call_at(now + 200, lambda: tick(now))
        else:
            reactor.stop(0)

    start = reactor.now_us()
    reactor.call_at(start + 200, lambda: tick(start))
    reactor.run()
    return sorted(gaps)


def test_timers_are_finer_than_a_millisecond():
    """A busy machine wakes nobody that soon; it is not so busy all the time."""
    for _ in range(5):
        gaps = gaps_of_ticks(Reactor(0, StatsSlab(0, "shard")))
        assert gaps[0] >= 200
        if gaps[len(gaps) // 4] < 900:
            return
    pytest.fail(f"timers of 200 µs took {gaps} µs")


def test_a_cancelled_timer_does_not_fire_even_from_a_timer_of_the_same_moment(reactor):
    fired = []
    at = reactor.now_us() + 1000
    reactor.call_at(at, lambda: second.cancel())
    second = reactor.call_at(at, lambda: fired.append("second"))
    reactor.call_at(at + 1000, lambda: reactor.stop(0))
    reactor.run()
    assert fired == []
    assert not second.pending


def test_ten_thousand_cancelled_timers_are_forgotten(reactor):
    timers = [reactor.call_later(10_000_000, lambda: None) for _ in range(10_000)]
    for timer in timers:
        timer.cancel()
    assert len(reactor._timers) == 1
    assert len(reactor._timers._entries) < 200


def test_a_timer_set_for_the_past_fires_on_the_next_turn_and_lets_sockets_in(reactor):
    here, there = readable_pair()
    count = []

    def again():
        count.append(1)
        reactor.call_at(0, again)

    reactor.call_at(0, again)
    reactor.add_reader(here.fileno(), lambda: reactor.stop(0))
    assert reactor.run() == 0
    here.close()
    there.close()


def test_a_callback_over_half_a_millisecond_is_a_stall(reactor):
    waiting = {"soon", "later", "end", "read"}

    def work(name, milliseconds):
        busy(milliseconds)
        waiting.discard(name)
        if not waiting:
            reactor.call_soon(reactor.stop, 0)

    reactor.call_soon(work, "soon", 2)
    reactor.call_later(100, lambda: work("later", 3))
    reactor.end_of_turn(lambda: work("end", 1))
    here, there = readable_pair()

    def read():
        here.recv(1)
        reactor.remove_reader(here.fileno())
        work("read", 1)

    reactor.add_reader(here.fileno(), read)
    reactor.run()
    stats = reactor.stats
    assert stats.counter("reactor_stalls").value >= 4
    histogram = stats.histogram("reactor_callback")
    assert histogram.count >= 5
    assert histogram.sum >= 7000
    assert stats.cells[ENTERED_CELL] == 0
    here.close()
    there.close()


def test_a_callback_that_clients_notice_is_counted_apart(reactor):
    reactor.call_soon(busy, 2)
    reactor.call_soon(busy, 51)
    reactor.call_later(60_000, lambda: reactor.stop(0))
    reactor.run()
    assert reactor.stats.counter("reactor_stalls").value >= 2
    assert 1 <= reactor.stats.counter("reactor_long_stalls").value < reactor.stats.histogram("reactor_callback").count


def test_every_callback_is_counted(reactor):
    due = 3 + 4 + 2 + 1

    def called():
        nonlocal due
        due -= 1
        if not due:
            reactor.stop(0)

    pairs = [readable_pair() for _ in range(3)]
    for here, _ in pairs:
        reactor.add_reader(here.fileno(), lambda here=here: called() if here.recv(1) else None)
    for _ in range(4):
        reactor.call_soon(called)
    for delay in (1, 2):
        reactor.call_later(delay, called)
    reactor.end_of_turn(called)
    reactor.run()
    assert reactor.stats.histogram("reactor_callback").count == 3 + 4 + 2 + 1
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_the_stamp_is_set_while_a_callback_runs(reactor):
    seen = []

    def look():
        seen.append(reactor.stats.cells[ENTERED_CELL])
        reactor.stop(0)

    before = time.perf_counter_ns()
    reactor.call_later(100, look)
    reactor.run()
    assert before < seen[0] <= time.perf_counter_ns()


@pytest.mark.parametrize("entry", ["soon", "end", "timer", "socket"])
def test_an_unexpected_exception_stops_the_shard_with_its_traceback(reactor, entry, capfd):
    def broken():
        raise LookupError("what now")

    ran_after = []
    here, there = readable_pair()
    if entry == "soon":
        reactor.call_soon(broken)
        reactor.call_soon(ran_after.append, 1)
    elif entry == "end":
        reactor.end_of_turn(broken)
        reactor.end_of_turn(lambda: ran_after.append(1))
    elif entry == "timer":
        at = reactor.now_us()
        reactor.call_at(at, broken)
        reactor.call_at(at, lambda: ran_after.append(1))
    else:
        reactor.add_reader(here.fileno(), broken)
    assert reactor.run() == EXIT_SOFTWARE
    assert ran_after == []
    err = capfd.readouterr().err
    assert "LookupError: what now" in err
    assert "broken" in reactor.stop_reason
    here.close()
    there.close()


def test_the_first_stop_decides(reactor, capfd):
    def stop_twice():
        reactor.stop(74, "the disk failed")
        reactor.stop(0, "too late")

    reactor.call_soon(stop_twice)
    assert reactor.run() == 74
    assert reactor.stop_reason == "the disk failed"
    assert "ERROR stopping: the disk failed" in capfd.readouterr().err


def test_a_stop_before_run_is_honoured(reactor):
    reactor.stop(3)
    assert reactor.run() == 3


def test_collections_are_measured_by_generation(reactor):
    def collect():
        gc.collect()
        reactor.stop(0)

    reactor.call_soon(collect)
    reactor.run()
    assert reactor.stats.histogram("gc_pause", generation="2").count >= 1
    assert not [callback for callback in gc.callbacks if getattr(callback, "__module__", "").startswith("millstream")]


def test_an_idle_reactor_uses_no_cpu(reactor):
    used = []

    def begin():
        reactor.call_later(300_000, lambda: (used.append(time.thread_time() - start), reactor.stop(0)))
        start = time.thread_time()

    reactor.call_later(1000, begin)
    reactor.run()
    assert used[0] < 0.01


def test_a_reader_that_was_removed_is_not_called(reactor):
    here, there = readable_pair()
    calls = []

    def read():
        calls.append(1)
        reactor.remove_reader(here.fileno())
        reactor.call_later(5000, lambda: reactor.stop(0))

    reactor.add_reader(here.fileno(), read)
    reactor.add_writer(there.fileno(), lambda: reactor.remove_writer(there.fileno()))
    assert reactor.run() == 0
    assert calls == [1]
    here.close()
    there.close()


def test_background_work_is_sliced_and_finishes(reactor):
    steps = []

    def work():
        for step in range(20):
            busy(0.1)
            steps.append(step)
            yield

    reactor.background("other", work(), 1.0, lambda: reactor.stop(0))
    reactor.run()
    assert steps == list(range(20))
    assert reactor.stats.histogram("reactor_callback").count >= 4, (
        "2 ms of work in slices of 200 µs and what a step overshoots"
    )
    assert reactor.stats.counter("background_time", work="other").value >= 2000


def test_background_work_keeps_to_its_share_while_the_shard_is_busy(reactor):
    here, there = readable_pair()  # never read: the shard always has something to do

    def work():
        for _ in range(600):
            busy(0.1)
            yield

    started = reactor.now_us()
    reactor.add_reader(here.fileno(), lambda: None)
    reactor.background("compaction", work(), 0.1, lambda: reactor.stop(0))
    reactor.run()  # until the work is done: it is not starved
    share = reactor.stats.counter("background_time", work="compaction").value / (reactor.now_us() - started)
    assert share < 0.2
    here.close()
    there.close()


def test_background_work_gets_an_idle_core_whole(reactor):
    def work():
        for _ in range(500):
            busy(0.1)
            yield

    started = reactor.now_us()
    reactor.background("compaction", work(), 0.005, lambda: reactor.stop(0))
    reactor.run()
    assert reactor.now_us() - started < 5_000_000, "50 ms of work, which its share alone would stretch to ten seconds"


def test_cancelled_background_work_is_closed_and_not_reported_done(reactor):
    closed, done = [], []

    def work():
        try:
            while True:
                yield
        finally:
            closed.append(1)

    task = reactor.background("other", work(), 1.0, lambda: done.append(1))
    reactor.call_later(2000, task.cancel)
    reactor.call_later(4000, lambda: reactor.stop(0))
    reactor.run()
    assert (closed, done) == ([1], [])


def test_an_exception_in_background_work_stops_the_shard(reactor, capfd):
    def work():
        yield
        raise ZeroDivisionError

    reactor.background("other", work(), 1.0)
    assert reactor.run() == EXIT_SOFTWARE
    assert "ZeroDivisionError" in capfd.readouterr().err


def descriptors():
    """What is open in this process, by number."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that the list itself was read from
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def test_a_reactor_leaves_no_descriptor_behind():
    Reactor(0, StatsSlab(0, "shard")).close()  # libuv's pipe for signals comes with a process's first loop, and stays
    before = descriptors().items()
    reactor = Reactor(0, StatsSlab(0, "shard"))
    own = set()

    def look():
        own.update(descriptors().items() - before)
        reactor.stop()

    reactor.call_soon(look)
    reactor.run()
    assert {"anon_inode:[timerfd]", "anon_inode:[eventpoll]"} <= {what for _, what in own}
    assert not own & descriptors().items()
