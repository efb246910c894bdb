"""Take-overs from the object store: nothing acknowledged is lost, whoever dies, is paused or comes back.

A finding names its seed: ``python -m sim.take_over --first-seed N --histories 1`` plays it again.
"""

import random
from collections import Counter

import pytest

from sim.engine.histories import hunt
from sim.take_over.planted import PLANTED
from sim.take_over.world import play


def test_fresh_seeds_find_nothing():
    chance = random.SystemRandom()
    for _ in range(3):
        finding = play(chance.randrange(1_000, 1 << 31), Counter())
        assert finding is None, finding


def test_histories_reach_what_they_are_for_and_repeat():
    seen = Counter()
    for seed in range(3):
        finding = play(seed, seen)
        assert finding is None, finding
    for event in ("taken over", "restored", "acknowledged", "healed"):
        assert seen[event], event
    first, again = Counter(), Counter()
    play(1, first)
    play(1, again)
    assert first == again


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=() if bug.histories <= 20 else pytest.mark.slow) for bug in PLANTED],
    ids=lambda bug: bug.name,
)
def test_a_planted_bug_is_found_within_its_budget(bug):
    assert hunt(bug, play).finding is not None
