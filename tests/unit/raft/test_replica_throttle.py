"""Replicas that catch up are filled at the rate that an operator sets; what is new is never put off."""

from math import inf

import pytest

from millstream.raft.installs import Installs
from millstream.raft.throttle import Throttle
from millstream.telemetry.metrics import StatsSlab

SLOW, OTHER = 7, 8
RATE = 1_000_000


@pytest.fixture
def put_off():
    return []


@pytest.fixture
def throttle(put_off):
    made = Throttle(lambda: put_off.append(1))
    made.limit(RATE, RATE)
    made.name({SLOW}, {SLOW})
    return made


def sent_in(throttle, seconds, part, group=SLOW):
    """Bytes that a leader sends if it tries every 10 ms."""
    total = 0
    for now_ms in range(10, seconds * 1000 + 1, 10):
        if throttle.may_send(group, now_ms * 1000):
            throttle.sent(group, part)
            total += part
    return total


@pytest.mark.parametrize("part", [1_000, 100_000, 3_000_000])
def test_a_leader_sends_as_much_as_the_rate_gives_and_one_part_more(throttle, put_off, part):
    assert 10 * RATE - part <= sent_in(throttle, 10, part) <= 10 * RATE + part or part * 1000 < 10 * RATE
    assert bool(put_off) == (part > 10_000), "what is within the rate is not put off"


def test_an_idle_second_is_the_most_that_is_saved(throttle):
    assert throttle.may_send(SLOW, 3_600_000_000)
    throttle.sent(SLOW, RATE)
    assert not throttle.may_send(SLOW, 3_600_000_000)
    assert throttle.may_send(SLOW, 3_600_000_001)


def test_what_is_not_named_and_what_has_no_limit_is_not_throttled(throttle, put_off):
    assert sent_in(throttle, 1, RATE, OTHER) == 100 * RATE
    assert throttle.wait_us(OTHER, 0, RATE) == 0
    throttle.limit(inf, inf)
    assert sent_in(throttle, 1, RATE) == 100 * RATE
    assert throttle.wait_us(SLOW, 0, RATE) == 0
    assert not put_off


def test_a_replica_waits_for_the_next_part_of_a_file_as_the_rate_says(throttle):
    assert throttle.wait_us(SLOW, 0, RATE) == 1_000_000
    assert throttle.wait_us(SLOW, 0, RATE) == 2_000_000, "another one shares the rate"
    assert throttle.wait_us(SLOW, 5_000_000, RATE // 2) == 500_000


def test_a_rate_of_nothing_stops_until_it_is_raised(throttle):
    throttle.limit(0, 0)
    assert sent_in(throttle, 5, 1) == 0
    assert throttle.wait_us(SLOW, 0, 1) > 1_000_000
    throttle.limit(RATE, RATE)
    assert throttle.may_send(SLOW, 6_000_000)


def test_installs_keep_to_the_lower_of_both_limits():
    installs = Installs(StatsSlab(0, "shard"), 2 * RATE)
    assert installs.wait_us(SLOW, 0, RATE) == 500_000
    installs.throttle.limit(inf, RATE / 10)
    installs.throttle.name((), {SLOW})
    assert installs.wait_us(SLOW, 10_000_000, RATE) == 10_000_000
    assert installs.wait_us(OTHER, 20_000_000, RATE) == 500_000
