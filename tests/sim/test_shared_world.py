"""Shared storage over a store that fails: nothing acknowledged is lost, zombies change nothing, planted bugs are found.

A finding names its seed: ``python -m sim.shared --first-seed N --histories 1`` plays it again.
"""

import random
from collections import Counter

import pytest

from sim.engine.histories import hunt
from sim.shared.planted import PLANTED
from sim.shared.world import play


def test_fresh_seeds_find_nothing():
    chance = random.SystemRandom()
    for _ in range(20):
        finding = play(chance.randrange(1_000, 1 << 31), Counter())
        assert finding is None, finding


def test_histories_reach_what_they_are_for():
    seen = Counter()
    for seed in range(20):
        finding = play(seed, seen)
        assert finding is None, finding
    for event in ("commit", "take over", "zombie", "refused", "moved", "compacted", "removed", "read"):
        assert seen[event], event


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_its_budget(bug):
    assert hunt(bug, play).finding is not None


def test_a_seed_replays_the_same_history():
    ends = []
    for _ in range(2):
        seen = Counter()
        assert play(3, seen) is None
        ends.append(seen)
    assert ends[0] == ends[1]
