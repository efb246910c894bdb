"""Requests to a store are repeated while that helps, and not longer."""

from __future__ import annotations

import random

import pytest
from store_suite import KEY, ZERO, keys, read

from millstream.errors import OutcomeUnknown, Unavailable
from millstream.model.quantities import FilePosition
from millstream.objects.errors import Conflict, Denied, NotFound, Throttled
from millstream.objects.pace import BUDGET_MAX, RETRY_COUNT_COST, Rate, RetryBudget
from millstream.objects.retrying import Retrying
from millstream.objects.store import ABSENT, ObjectKey
from sim.engine.objects import (
    CONFLICT,
    ERROR,
    LOST_ANSWER,
    NONE,
    THROTTLED,
    TRUNCATED,
    Faults,
    FaultyStore,
    MemoryStore,
)


class Bench:
    """A faulty store under retries, with a clock that moves only by waiting."""

    def __init__(self, seed: int = 0, chances: Faults | None = None) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []
        self.memory = MemoryStore()
        self.faulty = FaultyStore(self.memory, random.Random(seed), chances or Faults())
        self.store = Retrying(
            self.faulty, 60.0, clock=lambda: self.now_s, pause=self._pause, rng=random.Random(seed + 1)
        )

    def _pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds

    def script(self, *faults: str) -> None:
        self.faulty.script.extend(faults)


def test_a_read_is_repeated_after_errors_and_truncation():
    bench = Bench()
    bench.memory.put(KEY, [b"data"])
    bench.script(ERROR, TRUNCATED, THROTTLED)
    assert bench.store.get(KEY, ZERO, FilePosition(4)) == b"data"
    assert bench.faulty.calls == 4


def test_waits_are_random_below_a_bound_that_doubles():
    bench = Bench(seed=3)
    bench.script(*[ERROR] * 8)
    bench.store.put(KEY, [b"data"])
    assert len(bench.waits) == 8
    assert all(0 <= wait <= 0.1 * 2**number for number, wait in enumerate(bench.waits, start=1))
    assert bench.waits != sorted(bench.waits)


def test_it_gives_up_after_its_patience_with_the_last_error():
    bench = Bench()
    bench.faulty.chances = Faults(error=1.0)
    with pytest.raises(Unavailable, match="connection failed"):
        bench.store.head(KEY)
    assert 40 <= bench.now_s <= 60
    with pytest.raises(OutcomeUnknown):
        bench.store.put(KEY, [b"data"])


def test_a_store_that_is_down_is_asked_once_a_call_when_the_budget_is_spent():
    bench = Bench()
    bench.faulty.chances = Faults(error=1.0)
    calls = 0
    while True:
        before = bench.faulty.calls
        with pytest.raises(Unavailable):
            bench.store.head(KEY)
        calls += 1
        if bench.faulty.calls == before + 1:
            break
    assert bench.faulty.calls - calls == BUDGET_MAX // RETRY_COUNT_COST
    bench.faulty.chances = Faults()
    for _ in range(RETRY_COUNT_COST):
        bench.store.head(KEY)
    bench.script(ERROR)
    bench.store.head(KEY)  # the successes paid for this retry


def test_errors_that_a_retry_cannot_mend_are_not_repeated():
    bench = Bench()
    with pytest.raises(NotFound):
        bench.store.get(KEY, ZERO, FilePosition(1))
    bench.memory.put(KEY, [b"x"])
    with pytest.raises(Conflict):
        bench.store.put(KEY, [b"y"], ABSENT)

    class Closed(MemoryStore):
        def head(self, key):
            raise Denied("no")

    with pytest.raises(Denied):
        Retrying(Closed(), pause=lambda _: pytest.fail("waited")).head(KEY)
    assert bench.waits == []


def test_a_conditional_put_whose_answer_was_lost_is_a_success():
    bench = Bench()
    bench.script(LOST_ANSWER)
    version = bench.store.put(KEY, [b"da", memoryview(b"ta")], ABSENT)
    assert read(bench.memory, KEY) == b"data"
    bench.script(LOST_ANSWER, ERROR)
    bench.store.put(KEY, [b"next"], version)
    assert read(bench.memory, KEY) == b"next"


def test_another_writer_is_not_mistaken_for_a_lost_answer():
    bench = Bench()
    bench.script(ERROR)

    def other_writer(seconds: float) -> None:
        bench.memory.put(KEY, [b"datA"])

    bench.store = Retrying(bench.faulty, clock=lambda: 0.0, pause=other_writer, rng=random.Random(1))
    with pytest.raises(Conflict):
        bench.store.put(KEY, [b"data"], ABSENT)
    assert read(bench.memory, KEY) == b"datA"


def test_a_conflict_without_an_unclear_attempt_is_not_compared():
    bench = Bench()
    bench.memory.put(KEY, [b"data"])
    with pytest.raises(Conflict):
        bench.store.put(KEY, [b"data"], ABSENT)
    bench.script(CONFLICT)
    with pytest.raises(Conflict, match="another writer was faster"):
        bench.store.put(ObjectKey("other"), [b"data"], ABSENT)


def test_a_listing_continues_behind_the_last_key():
    bench = Bench(seed=5)
    names = [f"f/{number:03}" for number in range(50)]
    for name in names:
        bench.memory.put(ObjectKey(name), [b"."])
    bench.script(TRUNCATED, ERROR, TRUNCATED, NONE)
    assert keys(bench.store, "f/") == names


def test_removal_is_repeated():
    bench = Bench()
    names = [ObjectKey(f"f/{number}") for number in range(10)]
    for name in names:
        bench.memory.put(name, [b"."])
    bench.script(LOST_ANSWER, ERROR)
    bench.store.delete(names)
    assert bench.memory.objects == {}


def test_a_stream_is_tried_once():
    bench = Bench()
    bench.script(ERROR)
    with pytest.raises(OutcomeUnknown):
        bench.store.put_stream(KEY, iter([b"data"]))
    assert bench.faulty.calls == 1
    bench.script(THROTTLED)
    with pytest.raises(Throttled):
        bench.store.put_stream(KEY, iter([b"data"]))
    bench.store.put_stream(KEY, iter([b"data"]))
    assert bench.waits, "the throttled stream limits the next one"


@pytest.mark.parametrize("seed", range(20))
def test_compare_and_set_loses_no_update_through_any_faults(seed):
    """Increments by compare-and-set; each value carries its writer's turn, so that no two puts have the same bytes."""
    chances = Faults(error=0.1, lost_answer=0.15, throttled=0.05, truncated=0.1, conflict=0.1, slow=0.2)
    bench = Bench(seed, chances)
    bench.memory.put(KEY, [b"0:start"])
    done = turn = 0
    while done < 30:
        turn += 1
        info = bench.store.head(KEY)
        assert info is not None
        count = int(bytes(bench.store.get(KEY, ZERO, FilePosition(info.size_bytes))).split(b":")[0])
        assert count == done, f"seed {seed}"
        try:
            bench.store.put(KEY, [f"{count + 1}:{turn}".encode()], info.version)
        except Conflict:
            # With one writer, only an injected conflict is left: the put had no effect, or its unclear attempt did.
            done = int(read(bench.memory, KEY).split(b":")[0])
            continue
        done += 1
    assert read(bench.memory, KEY).startswith(b"30:"), f"seed {seed}"
    assert sum(bench.faulty.faults.values()) > 20, f"seed {seed}"


def test_the_budget_stays_within_its_bounds():
    budget = RetryBudget()
    budget.succeeded()
    assert budget.tokens == BUDGET_MAX
    taken = 0
    while budget.take():
        taken += 1
    assert taken == BUDGET_MAX // RETRY_COUNT_COST
    assert budget.tokens >= 0


def drive(rate: Rate, capacity: float, seconds: float, start_s: float) -> tuple[float, int, int]:
    """Send as allowed to a store that throttles above ``capacity`` a second. Returns time, served, refused."""
    now_s, served, refused = start_s, 0, 0
    window, count = int(start_s), 0
    while now_s < start_s + seconds:
        now_s += max(rate.wait_s(now_s), 0.0005)
        if int(now_s) != window:
            window, count = int(now_s), 0
        count += 1
        if count > capacity:
            refused += 1
            rate.throttled(now_s)
        else:
            served += 1
    return now_s, served, refused


def test_the_rate_finds_what_the_store_takes():
    rate = Rate()
    now_s, _, _ = drive(rate, 200, 5, 0.0)
    _, served, refused = drive(rate, 200, 50, now_s)
    assert served > 0.75 * 200 * 50
    assert refused < 0.05 * served


def test_the_rate_is_unlimited_before_the_first_throttling_and_after_a_calm_minute():
    rate = Rate()
    assert [rate.wait_s(0.0) for _ in range(1000)] == [0.0] * 1000
    rate.throttled(0.5)
    assert rate.limit is not None
    assert rate.wait_s(0.6) >= 0
    assert sum(rate.wait_s(0.6) for _ in range(1000)) > 1
    assert rate.wait_s(61.0) == 0.0
    assert rate.limit is None


def test_many_refusals_of_one_overload_cut_the_rate_once():
    rate = Rate()
    for number in range(1000):
        rate.wait_s(number / 1000)
    rate.throttled(1.0)
    first = rate.limit
    for _ in range(50):
        rate.throttled(1.2)
    assert rate.limit == first
    rate.throttled(2.5)
    assert rate.limit is not None
    assert first is not None
    assert rate.limit < first
