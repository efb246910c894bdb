"""Shared topics of production brokers over a store that fails: uploads, joins, sweeps and recovery hold every promise,
and planted bugs are found.

A finding names its seed: ``python -m sim shared --seed N`` plays it with log lines.
"""

import pytest

from sim.engine.histories import Counts
from sim.shared.history import play
from sim.shared.planted import PLANTED, hunt

pytestmark = pytest.mark.usefixtures("quiet")

FOUND = (
    # An upload was stored before the one that it follows: a recovery from the store would have lost what was before.
    15,
    # What an earlier leadership had on its way was committed while the same was read again: uploads stood still.
    70,
)
SMALL = 3
RARE = ("an object is written over another one", "objects go under their readers")
"""They take dozens of histories."""


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_something_finds_nothing_now(seed):
    finding = play(seed, Counts())
    assert finding is None, finding


def test_small_seeds_find_nothing():
    counts = Counts()
    for seed in range(SMALL):
        finding = play(seed, counts)
        assert finding is None, finding
    for event in ("segment committed", "store checked alone"):
        assert counts.seen[event], event


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [pytest.param(one, marks=() if one.name in RARE else pytest.mark.ci, id=one.name) for one in PLANTED],
)
def test_a_planted_bug_is_found_within_its_budget(bug):
    assert hunt(bug).finding is not None


def test_a_seed_replays_the_same_history():
    ends = []
    for _ in range(2):
        counts = Counts()
        assert play(4, counts) is None
        ends.append((counts.trace, counts.simulated_us, counts.steps, counts.seen, counts.faults))
    assert ends[0] == ends[1]
