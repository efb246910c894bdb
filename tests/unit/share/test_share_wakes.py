"""A fetch that waits for records of a share partition is woken by each change that makes some available: in named
cases, and in any order of fetches, acknowledgements, ends of sessions and locks, writes, log starts and limits.
"""

import random

import pytest
from share_world import World, image

from millstream.core.share.partition import Acknowledgement, Limits
from millstream.model.error_code import ErrorCode
from millstream.share.served import ServedPartition

ACCEPT, RELEASE, REJECT = 1, 2, 3
LOCK_US = 1_000
HOLDER, WAITER, OTHER = 1, 2, 3


@pytest.fixture
def world(monkeypatch):
    """A member holds all that its window of four records has, and another one waits."""
    world = World(monkeypatch, batch=2)
    world.limits = Limits(lock_us=LOCK_US, deliveries_max=2, locks_max=4)
    fetched(world, HOLDER)
    answer_all(world)
    assert held(fetched(world, HOLDER)) == [(0, 1)]
    assert held(fetched(world, HOLDER)) == [(2, 3)]
    for token in (OTHER, WAITER):
        fetched(world, token)
        answer_all(world)
        assert held(fetched(world, token)) == []
    world.woken.clear()
    return world


def fetched(world, token, **more):
    (taken,) = world.fetch(token, f"m{token}", **more)
    if taken.data is not None:
        taken.data.release()
    return taken


def held(taken):
    return [(one.first, one.last) for one in taken.acquired]


def answer_all(world):
    while True:
        world.reactor.run_until(world.reactor.now)
        if not world.asks:
            return
        world.answer(image=image())


def said(world, token, first, last, kind):
    answers = []
    world.one.acknowledge(f"m{token}", [Acknowledgement(first, last, [kind])], answers.append)
    return answers


def pass_time(world, us=LOCK_US):
    """The clock moves, and no timer has run yet."""
    world.reactor.now += us


def late_timers(world):
    world.reactor.run_until(world.reactor.now)


CHANGES = {
    "a session ends": lambda world: world.one.end_session(HOLDER),
    "a lock ends": lambda world: (pass_time(world), late_timers(world)),
    "a lock ends, and another fetch sees it first": lambda world: (pass_time(world), fetched(world, OTHER)),
    "a lock ends, and an acknowledgement sees it first": lambda world: (
        pass_time(world),
        said(world, OTHER, 0, 1, ACCEPT),
    ),
    "records are given back": lambda world: (said(world, HOLDER, 0, 1, RELEASE), answer_all(world)),
    "records are accepted": lambda world: (said(world, HOLDER, 0, 1, ACCEPT), answer_all(world)),
    "the log starts behind what is held": lambda world: world.change_log(start=2),
    "the window grows, and an acknowledgement sees it": lambda world: (
        setattr(world, "limits", Limits(LOCK_US, 2, 6)),
        said(world, OTHER, 0, 1, ACCEPT),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_who_waits_is_woken_when(what, world):
    CHANGES[what](world)
    assert (0, WAITER) in world.woken
    assert held(fetched(world, WAITER))


@pytest.mark.parametrize("ends", ["lock", "session"])
def test_the_window_has_room_when_its_records_were_delivered_for_the_last_time(ends, world):
    world.limits = Limits(LOCK_US, 1, 4)
    if ends == "lock":
        pass_time(world)
        late_timers(world)
    else:
        world.one.end_session(HOLDER)
    assert (0, WAITER) in world.woken
    assert held(fetched(world, WAITER)) == [(4, 5)]


def test_a_lock_that_became_shorter_ends_in_time(world):
    world.limits = Limits(100 * LOCK_US, 5, 4)
    said(world, HOLDER, 0, 3, RELEASE)
    answer_all(world)
    assert held(fetched(world, HOLDER)) == [(0, 1)]
    world.limits = Limits(LOCK_US, 5, 4)
    assert held(fetched(world, HOLDER)) == [(2, 3)]
    assert held(fetched(world, WAITER)) == []
    world.woken.clear()
    pass_time(world)
    late_timers(world)
    assert (0, WAITER) in world.woken
    assert held(fetched(world, WAITER)) == [(2, 3)]


def test_a_start_behind_the_log_is_waited_for(monkeypatch):
    world = World(monkeypatch, batch=2)
    fetched(world, WAITER)
    world.answer(image=image(start=14))
    answer_all(world)
    assert held(fetched(world, WAITER)) == []
    world.woken.clear()
    world.change_log(end=16)
    assert (0, WAITER) in world.woken
    assert held(fetched(world, WAITER)) == [(14, 15)]


def test_a_fetch_goes_on_behind_many_batches_that_have_nothing_for_it(monkeypatch):
    world = World(monkeypatch, batch=1)
    fetched(world, WAITER)
    answer_all(world)
    world.woken.clear()
    world.aborted = [(7, 0)]
    assert held(fetched(world, WAITER)) == []
    assert (0, WAITER) in world.woken, "there is more to read"
    world.aborted = []
    assert held(fetched(world, WAITER)) == [(8, 8)]


class Crowd:
    """Members whose fetches wait, and what happens around them."""

    def __init__(self, world, chance):
        self.world = world
        self.chance = chance
        self.tokens = {0: 1, 1: 2, 2: 3}
        self.next_token = 4
        self.waiting = set()
        self.held = {}

    def fetch(self, member):
        token = self.tokens[member]
        self.waiting.discard(token)
        if self.world.one.closed:
            self.world.one = ServedPartition(self.world.one.key, self.world.partition, self.world)
        taken = []
        self.world.one.fetch(
            self.world.request(f"m{member}", token, self.chance.choice((1, 500))), 1000, (0, token), taken.append
        )
        (one,) = taken
        if one.data is not None:
            one.data.release()
        self.held.setdefault(member, []).extend(held(one))
        if not one.acquired:
            self.waiting.add(token)

    def wake(self):
        """A fetch that was woken looks again."""
        if self.world.woken:
            _, token = self.world.woken.pop(self.chance.randrange(len(self.world.woken)))
            member = next((one for one, at in self.tokens.items() if at == token), None)
            if member is not None and token in self.waiting:
                self.fetch(member)

    def acknowledge(self, member):
        if self.held.get(member):
            first, last = self.held[member].pop(self.chance.randrange(len(self.held[member])))
            kind = self.chance.choice((ACCEPT, RELEASE, REJECT))
            self.world.one.acknowledge(f"m{member}", [Acknowledgement(first, last, [kind])], lambda _: None)

    def leave(self, member):
        self.waiting.discard(self.tokens[member])
        self.world.one.end_session(self.tokens[member])
        self.held.pop(member, None)
        self.tokens[member] = self.next_token
        self.next_token += 1

    def answer(self):
        if self.world.asks:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE if self.chance.random() < 0.1 else ErrorCode.NONE
            start = 0 if self.world.one.core is None else self.world.one.core.start
            self.world.answer(error, image(start=start))

    def step(self):
        world, chance = self.world, self.chance
        member = chance.randrange(3)
        end, start = world.partition.high_watermark, world.partition.log.start_offset
        what = chance.choice(
            ("fetch", "wake", "wake", "acknowledge", "leave", "answer", "answer", "time", "log", "limit")
        )
        if what == "fetch" and self.tokens[member] not in self.waiting:
            self.fetch(member)
        elif what == "wake":
            self.wake()
        elif what == "acknowledge":
            self.acknowledge(member)
        elif what == "leave" and chance.random() < 0.3:
            self.leave(member)
        elif what == "answer":
            self.answer()
        elif what == "time":
            world.reactor.now += chance.randrange(2 * LOCK_US)
            if chance.random() < 0.7:
                world.reactor.run_until(world.reactor.now)
        elif what == "log" and chance.random() < 0.5:
            world.change_log(end=end + 2 * chance.randrange(2), start=min(end, start + 2 * chance.randrange(2)))
        elif what == "limit" and chance.random() < 0.3:
            world.limits = Limits(LOCK_US * chance.choice((1, 10)), chance.choice((1, 2, 5)), chance.choice((2, 4, 8)))

    def check(self):
        """No fetch waits unwoken although there is something for it."""
        world, one = self.world, self.world.one
        world.reactor.run_until(world.reactor.now)
        if one.closed or one.core is None:
            return
        offset = one.core.next_offset()
        there = offset is not None and offset < world.partition.high_watermark
        woken = {token for _, token in world.woken}
        for token in self.waiting - woken - one._members.unproved:
            assert not there, f"session {token} waits, and offset {offset} is available"


@pytest.mark.parametrize("seed", range(40))
def test_no_wake_is_lost_in_any_order(seed, monkeypatch):
    for more in range(10):
        world = World(monkeypatch, batch=2)
        world.limits = Limits(LOCK_US, 2, 4)
        crowd = Crowd(world, random.Random(10 * seed + more))
        for _ in range(150):
            crowd.step()
            crowd.check()
