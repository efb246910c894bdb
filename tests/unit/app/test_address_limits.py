"""Limits of connections by address: never more than the limit, rates by Kafka's formula, bounded memory."""

import random
from collections import Counter

from millstream.app.address_limits import ASK_US, DELAYED_MAX, RATES_MAX, AddressLimits, ConnectionLimits
from millstream.errors import Unavailable


class Clock:
    """A reactor whose time a test sets."""

    def __init__(self):
        self.at_us = 0
        self.timers = []

    def now_us(self):
        return self.at_us

    def call_later(self, delay_us, callback):
        self.timers.append((self.at_us + delay_us, callback))

    def pass_us(self, us):
        self.at_us += us
        due = [timer for timer in self.timers if timer[0] <= self.at_us]
        self.timers = [timer for timer in self.timers if timer[0] > self.at_us]
        for _, callback in due:
            callback()


class Shard:
    """Answers when a test says so."""

    def __init__(self):
        self.open = Counter()
        self.asked = []

    def ask(self, name, arguments, heard, timeout_us):
        self.asked.append(heard)

    def answer(self, value=None):
        for heard in self.asked[:]:
            self.asked.remove(heard)
            heard(dict(self.open) if value is None else value)


def test_an_address_never_has_more_than_its_limit_and_gets_it_again_after_closing():
    rng = random.Random(7)
    clock, shards = Clock(), [Shard(), Shard()]
    limits = AddressLimits(clock, ConnectionLimits(100, 5, {"b": 2}), shards, lambda: 0)
    refused_in_a_row = 0
    for _ in range(20_000):
        address = rng.choice("ab")
        if not limits.refusal(address):
            limits.accepted(address)
            rng.choice(shards).open[address] += 1
            refused_in_a_row = 0
        else:
            refused_in_a_row += 1
        opened = shards[0].open + shards[1].open
        assert opened["a"] <= 5 and opened["b"] <= 2
        if rng.random() < 0.4:
            shard = rng.choice(shards)
            for each in [each for each in shard.open if shard.open[each]]:
                shard.open[each] -= 1
        if rng.random() < 0.3:
            rng.choice(shards).answer(Unavailable("stuck") if rng.random() < 0.1 else None)
        clock.pass_us(rng.randrange(ASK_US))
        assert refused_in_a_row < 200
    assert "max.connections.per.ip" in AddressLimits(clock, ConnectionLimits(9, 0), [], lambda: 0).refusal("a")


def test_no_question_is_asked_while_connections_are_on_their_way():
    shard = Shard()
    limits = AddressLimits(Clock(), ConnectionLimits(100, 1), [shard], lambda: 3)
    limits.accepted("a")
    assert limits.refusal("a")
    assert not shard.asked


def test_rates_of_addresses_and_of_all():
    clock = Clock()
    limits = AddressLimits(clock, ConnectionLimits(100, rates={"": 2.0, "b": 5.0}, creation_rate=10), [], lambda: 0)
    assert [limits.throttle_us("a") > 0 for _ in range(25)] == [False] * 20 + [True] * 5
    assert [limits.throttle_us("b") > 0 for _ in range(55)] == [False] * 50 + [True] * 5
    clock.pass_us(20_000_000)
    assert limits.throttle_us("a") == 0
    assert [limits.pause_us() > 0 for _ in range(105)] == [False] * 100 + [True] * 5
    limits.limits = ConnectionLimits(100)
    assert limits.throttle_us("a") == limits.pause_us() == 0


def test_memory_is_bounded():
    clock, shard = Clock(), Shard()
    limits = AddressLimits(clock, ConnectionLimits(10, rates={"": 1e9}), [shard], lambda: 0)
    for n in range(RATES_MAX + 500):
        limits.throttle_us(f"a{n}")
        limits.accepted(f"a{n}")
    assert len(limits._rates) == RATES_MAX + 1
    shard.answer({"a7": 1})
    assert len(limits._open) < 500
    closed = []
    for n in range(DELAYED_MAX + 5):
        limits.close_later(lambda n=n: closed.append(n), 1_000_000)
    assert closed == list(range(DELAYED_MAX, DELAYED_MAX + 5))
    clock.pass_us(1_000_000)
    assert len(closed) == DELAYED_MAX + 5
