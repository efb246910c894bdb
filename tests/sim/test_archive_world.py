"""A tiered topic over a store that fails: archive, cache, deletion and recovery hold every promise, and planted bugs
are found.

A finding names its seed: ``python -m sim archive --seed N`` plays it with the brokers' log lines.
"""

import random

import pytest

from sim.archive.history import play
from sim.archive.planted import PLANTED, hunt
from sim.engine.histories import Counts

pytestmark = pytest.mark.usefixtures("quiet")

FOUND = (
    # A part of the manifest was committed after the start of the log had moved, which stopped every replica.
    4,
    6,
)
FRESH = 2


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_something_finds_nothing_now(seed):
    finding = play(seed, Counts())
    assert finding is None, finding


def test_fresh_seeds_find_nothing(fresh_seed):
    chance = random.Random(fresh_seed)
    for _ in range(FRESH):
        finding = play(chance.randrange(1_000, 1 << 31), Counts())
        assert finding is None, finding


FOUND_AT = {
    "a folded archive is forgotten": 30,
    "a part counts as spilled unwritten": 3,
    "a replaced part goes with its segments": 14,
    "an archived segment counts before its commit": 7,
    "nobody checks a block of the store": 8,
}
"""Where the hunt starts: these seeds find what those before them do not. From there it has its whole budget."""


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_its_budget(bug):
    assert hunt(bug, FOUND_AT.get(bug.name, 0)).finding is not None


def test_a_seed_replays_the_same_history_and_reaches_what_it_is_for():
    ends = []
    for _ in range(2):
        counts = Counts()
        assert play(3, counts) is None
        ends.append((counts.trace, counts.simulated_us, counts.steps, counts.seen, counts.faults))
    assert ends[0] == ends[1]
    for event in ("segment committed", "store checked alone", "read from the archive at a heal"):
        assert ends[0][3][event], event
