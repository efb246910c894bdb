"""A share partition over its log: what it serves of an old state, of an old session, and without a coordinator."""

from types import SimpleNamespace

import pytest

from millstream.coordinator.share_states import READ, WRITE
from millstream.core.share.partition import Acknowledgement, Limits, Request
from millstream.core.share.stored import Image
from millstream.model.error_code import ErrorCode
from millstream.partition.read.batches import FetchResult
from millstream.share import served
from millstream.share.meters import ShareMeters
from millstream.share.served import AGAIN_US, PATIENCE_US, ServedPartition, Span, Taken
from millstream.telemetry.metrics import StatsSlab

ACCEPT = 1


class Reactor:
    def __init__(self):
        self.now = 1_000_000
        self.timers = []

    def now_us(self):
        return self.now

    def wall_ms(self):
        return 5

    def end_of_turn(self, callback):
        self.call_later(0, callback)

    def call_later(self, delay_us, callback):
        return self.call_at(self.now + delay_us, callback)

    def call_at(self, at_us, callback):
        timer = SimpleNamespace(at=at_us, run=callback)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        self.timers.append(timer)
        return timer

    def run_until(self, now):
        while due := [one for one in self.timers if one.at <= now]:
            first = min(due, key=lambda one: one.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.run()
        self.now = now


class Data:
    """Bytes of a log, which have to be released."""

    def __init__(self, lent):
        self.lent = lent
        lent.append(self)

    def share(self, position, length):
        _ = position, length
        return Data(self.lent)

    def release(self):
        self.lent.remove(self)


class World:
    """The shard and the coordinator around one share partition, whose log has the offsets 0 to 9."""

    def __init__(self, monkeypatch):
        self.reactor = Reactor()
        self.meters = ShareMeters(StatsSlab(0))
        self.asks, self.woken, self.forgotten, self.lent = [], [], [], []
        self.states = SimpleNamespace(ask_all=lambda asks, done: self.asks.append((asks[0], done)))
        self.cold = []
        self.is_cold = False
        group = SimpleNamespace(is_serving=True)
        log = SimpleNamespace(start_offset=0)
        readers = SimpleNamespace(readers=set())
        self.partition = SimpleNamespace(
            leader_epoch=3, log=log, log_start_offset=0, high_watermark=10, group=group, waiters=readers
        )
        monkeypatch.setattr(served, "read_here", self._read_here)
        monkeypatch.setattr(served, "read_older", lambda *args: self.cold.append(args[2]))
        monkeypatch.setattr(served, "_spans", lambda _: [Span(0, 9, 0, 100, -1, False, False)])
        self.one = ServedPartition(("g", b"t" * 16, 0), self.partition, self)

    def result(self):
        return FetchResult(0, 10, 10, 0, Data(self.lent))

    def _read_here(self, partition, request, watch):
        _ = partition, watch
        if request.offset >= 10:
            return FetchResult(0, 10, 10, 0)
        return None if self.is_cold else self.result()

    def wake(self, waiter):
        self.woken.append(waiter)

    def forget(self, one):
        self.forgotten.append(one)

    def limits_of(self, group_id):
        _ = group_id
        return Limits()

    def reads_committed(self, group_id):
        _ = group_id
        return False

    def reset_of(self, group_id):
        _ = group_id
        return -2

    def fetch(self, token, member="m", **more):
        taken = []
        self.one.fetch(Request(member, token, 500), 1000, (0, token), taken.append, **more)
        return taken

    def answer(self, error=ErrorCode.NONE, image=None):
        """Answer the oldest question; returns it."""
        ask, done = self.asks.pop(0)
        done([(int(error), image)])
        return ask

    def load(self, token=1):
        assert self.fetch(token) == [Taken(ErrorCode.NONE)]
        ask = self.answer(image=image())
        assert (ask.kind, ask.leader_epoch) == (READ, 3)
        return self.fetch(token)


def image(created_ms=7, state_epoch=1, start=0):
    return Image(0, state_epoch, 3, start, 0, [], created_ms, 7)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def spans(taken):
    return [(one.first, one.last, one.count) for each in taken for one in each.acquired]


def test_a_new_session_takes_nothing_of_a_state_that_was_made_again(world):
    world.load()
    world.one.end_session(1)
    assert world.fetch(2, "n") == [Taken(ErrorCode.NONE)]
    ask = world.answer(image=image(created_ms=8))
    assert (ask.kind, ask.leader_epoch) == (READ, -1)
    assert world.one.closed and world.forgotten == [world.one] and (0, 2) in world.woken


def test_a_new_session_waits_until_its_state_is_proved(world):
    world.load()
    world.one.end_session(1)
    assert spans(world.fetch(2, "n")) == []
    world.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert spans(world.fetch(2, "n")) == [] and not world.asks
    world.reactor.run_until(world.reactor.now + AGAIN_US)
    assert world.answer().kind == WRITE, "what was given back"
    world.answer(image=image())
    assert spans(world.fetch(2, "n")) == [(0, 9, 2)]


def test_a_session_that_came_while_the_stored_state_was_read_waits_for_another_look(world):
    world.fetch(1)
    world.fetch(2, "n")
    world.answer(image=image())
    assert spans(world.fetch(2, "n")) == []
    assert spans(world.fetch(1)) == [(0, 9, 1)]
    world.answer(image=image())
    assert not world.asks


def test_a_deleted_state_is_learnt_by_the_next_fetch(world):
    world.load()
    world.fetch(2, "n")
    world.answer(ErrorCode.INVALID_REQUEST)
    assert world.one.closed
    world.one = ServedPartition(world.one.key, world.partition, world)
    world.forgotten.clear()
    world.fetch(2, "n")
    world.answer(ErrorCode.INVALID_REQUEST)
    assert not world.forgotten
    assert world.fetch(2, "n") == [Taken(ErrorCode.UNKNOWN_SERVER_ERROR)]
    assert world.forgotten == [world.one]


def test_a_cold_read_gives_nothing_to_a_session_that_has_ended_or_was_replaced(world):
    world.is_cold = True
    first = world.load()
    second = world.fetch(2, "n")
    world.answer(image=image())
    second = world.fetch(2, "n")
    world.one.end_session(1)
    world.one.replace_session("n", 5)
    for done in world.cold:
        done(world.result())
    assert first == [Taken(ErrorCode.NONE)] and second == [Taken(ErrorCode.NONE)]
    assert not world.lent, "what was read is released"
    assert world.one.core.next_offset() == 0, "and nothing is held"


def acknowledge(world):
    answers = []
    world.one.acknowledge("m", [Acknowledgement(0, 9, [ACCEPT])], answers.append)
    world.reactor.run_until(world.reactor.now)
    return answers


def test_an_acknowledgement_outlives_a_coordinator_that_is_away(world):
    world.load()
    answers = acknowledge(world)
    first = world.answer(ErrorCode.NOT_COORDINATOR)
    assert (first.kind, first.leader_epoch, first.created_ms) == (WRITE, 3, 7)
    assert answers == []
    world.reactor.run_until(world.reactor.now + AGAIN_US)
    assert world.answer() == first, "the same report"
    assert answers == [ErrorCode.NONE]


def test_an_acknowledgement_fails_when_no_coordinator_comes(world):
    world.load()
    answers = acknowledge(world)
    world.reactor.run_until(world.reactor.now + PATIENCE_US)
    world.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH])
def test_a_fenced_write_ends_it(world, error):
    world.load()
    answers = acknowledge(world)
    world.answer(error)
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER] and world.forgotten == [world.one]


def test_one_that_lost_its_last_session_while_it_loaded_goes(world):
    world.fetch(1)
    world.one.end_session(1)
    world.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    world.reactor.run_until(world.reactor.now + AGAIN_US)
    assert world.forgotten == [world.one] and not world.asks


def test_files_are_read_for_a_fetch_that_may_wait_alone(world):
    world.is_cold = True
    assert world.load() == []
    assert len(world.cold) == 1
    assert world.fetch(1, may_wait=False) == [Taken(ErrorCode.NONE)]
    assert len(world.cold) == 1
    world.is_cold = False
    assert spans(world.fetch(1, may_wait=False)) == [(0, 9, 1)]
