"""Work that rests between its pieces until somebody waits for it."""

import threading
import time

import pytest

from millstream.storage import throttle
from millstream.storage.throttle import Throttle


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, in a list to be changed."""
    now = [0]
    monkeypatch.setattr(throttle, "_clock_ns", lambda: now[0])
    return now


def test_without_a_job_nothing_rests(clock: list[int]) -> None:
    rests: list[float] = []
    one = Throttle(rests.append)
    clock[0] = 10**9
    one.pause()
    assert not rests
    assert not one.is_throttled


def test_a_rest_is_three_times_as_long_as_the_piece_before_it(clock: list[int]) -> None:
    rests: list[float] = []
    one = Throttle(rests.append)
    one.begin(1)
    assert one.is_throttled
    for worked_ns in (100_000, 300_000, 100_000, 2_000_000):
        clock[0] += worked_ns
        one.pause()
    assert rests == pytest.approx([0.0015, 0.006])


def test_a_piece_that_took_very_long_is_followed_by_a_short_rest(clock: list[int]) -> None:
    rests: list[float] = []
    one = Throttle(rests.append)
    one.begin(1)
    clock[0] += 10**9
    one.pause()
    assert rests == [0.05]


def test_a_job_that_ended_leaves_no_leisure_to_what_comes_after(clock: list[int]) -> None:
    rests: list[float] = []
    one = Throttle(rests.append)
    one.begin(1)
    one.end()
    clock[0] += 10**9
    one.pause()
    assert not rests


@pytest.mark.parametrize(("hurried", "is_throttled"), [(3, False), (4, False), (2, True)])
def test_a_hurry_may_come_before_its_job_begins_or_after_it_ended(hurried: int, is_throttled: bool) -> None:
    one = Throttle()
    one.hurry(hurried)
    one.begin(3)
    assert one.is_throttled == is_throttled


def test_a_hurry_that_comes_late_is_not_about_the_next_job() -> None:
    one = Throttle()
    one.begin(3)
    one.end()
    one.begin(4)
    one.hurry(3)
    assert one.is_throttled


def test_a_hurry_ends_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "_REST_S_MAX", 60.0)
    one = Throttle()
    one.begin(7)
    monkeypatch.setattr(throttle, "_clock_ns", lambda: time.perf_counter_ns() + 600 * 10**9)
    resting = threading.Thread(target=one.pause)
    resting.start()
    resting.join(0.05)
    assert resting.is_alive()
    one.hurry(7)
    resting.join(120)
    assert not resting.is_alive()
    assert not one.is_throttled
