"""Take-overs from the object store: nothing acknowledged is lost, whoever dies, is paused or comes back.

A finding names its seed: ``python -m sim take_over --seed N`` plays it again.
"""

import random

import pytest

from sim.engine.histories import Counts
from sim.take_over.planted import PLANTED, hunt
from sim.take_over.world import play


def test_fresh_seeds_find_nothing(fresh_seed):
    chance = random.Random(fresh_seed)
    for _ in range(3):
        finding = play(chance.randrange(1_000, 1 << 31), Counts())
        assert finding is None, finding


def test_histories_reach_what_they_are_for_and_repeat():
    counts = Counts()
    for seed in range(3):
        finding = play(seed, counts)
        assert finding is None, finding
    for event in ("taken over", "restored", "acknowledged", "healed"):
        assert counts.seen[event], event
    first, again = Counts(), Counts()
    play(1, first)
    play(1, again)
    assert first.seen == again.seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=pytest.mark.ci if bug.budget <= 20 else ()) for bug in PLANTED],
    ids=lambda bug: bug.name,
)
def test_a_planted_bug_is_found_within_its_budget(bug):
    assert hunt(bug).finding is not None
