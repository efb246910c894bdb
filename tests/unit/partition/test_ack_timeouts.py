"""Produce calls whose commit does not come: everyone is told in time, however many wait."""

from collections import deque
from types import SimpleNamespace

import pytest

from millstream.errors import OutcomeUnknown
from millstream.partition.append.timeouts import CALLS_A_SWEEP, PERIOD_US, AckTimeouts
from millstream.partition.hop.home import Home
from millstream.partition.table import PartitionTable


class Clock:
    """A reactor with nothing but timers."""

    def __init__(self):
        self.now = 0
        self.timers = []

    def now_us(self):
        return self.now

    def call_at(self, at_us, callback):
        self.timers.append((at_us, callback))

    def second(self):
        self.now += PERIOD_US
        due, self.timers = self.timers, []
        for at_us, callback in due:
            assert at_us == self.now
            callback()


class Call:
    def __init__(self):
        self.looks = []

    def expire(self, now_us):
        self.looks.append(now_us)


def looking(acks, away=()):
    table = PartitionTable()
    for group, waiting in enumerate(acks):
        table.by_group[group] = SimpleNamespace(waiters=SimpleNamespace(acks=waiting, own_acks=None))
    clock = Clock()
    timeouts = AckTimeouts(clock, table, SimpleNamespace(unanswered=lambda: away))
    timeouts.arm()
    return clock, timeouts


@pytest.mark.parametrize("count", [1, CALLS_A_SWEEP, CALLS_A_SWEEP + 1, 5 * CALLS_A_SWEEP])
def test_of_many_that_wait_each_is_looked_at_again_and_again(count):
    here, away = [Call() for _ in range(count)], [Call() for _ in range(count)]
    clock, _ = looking([deque((end, call, 0) for end, call in enumerate(here))], away)
    rounds = -(-count // CALLS_A_SWEEP)
    for _ in range(3 * rounds):
        clock.second()
    for call in (*here, *away):
        assert len(call.looks) == 3
    for second in range(1, 3 * rounds + 1):
        checked = sum(second * PERIOD_US in call.looks for call in here)
        assert 0 < checked <= CALLS_A_SWEEP


def test_nobody_is_passed_over_when_those_in_front_were_committed_meanwhile():
    calls = [Call() for _ in range(3 * CALLS_A_SWEEP)]
    acks = deque((end, call, 0) for end, call in enumerate(calls))
    clock, _ = looking([acks])
    clock.second()
    for _ in range(CALLS_A_SWEEP + 7):
        acks.popleft()
    for _ in range(4):
        clock.second()
    assert all(call.looks for _, call, _ in acks)


def test_it_rests_when_nobody_waits():
    acks, away = deque([(1, Call(), 0)]), [Call()]
    clock, timeouts = looking([acks, deque()], away)
    clock.second()
    acks.clear()
    clock.second()
    assert timeouts.armed
    away.clear()
    clock.second()
    assert not timeouts.armed
    assert not clock.timers


def test_what_another_shard_was_given_is_unanswered_until_it_answers():
    sent, turns, failed = [], [], []
    mailbox = SimpleNamespace(
        serve=lambda *_: None,
        call=lambda to, method, payload, on_reply, timeout_us, loans: sent.append(on_reply),
    )
    shard = SimpleNamespace(mailbox=mailbox, reactor=SimpleNamespace(end_of_turn=turns.append))
    home = Home(shard, PartitionTable(), None)
    home._lend_records = lambda records: []
    calls = [SimpleNamespace(failed=lambda slot, error: failed.append(slot)) for _ in range(3)]
    for to, call in zip((1, 2, 1), calls, strict=True):
        home.append(to, 7, b"", call, 0)
    assert home.unanswered() == []
    turns.pop()()
    assert len(home.unanswered()) == 3
    sent[0](OutcomeUnknown("it stopped"))
    assert home.unanswered() == [calls[1]]
    sent[1](OutcomeUnknown("it stopped"))
    assert home.unanswered() == []
    assert len(failed) == 3
