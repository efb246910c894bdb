"""A share partition between unruly members: fail-over of its leader and of the coordinator, lost and late writes."""

import pytest

from sim.engine.histories import Counts
from sim.share.planted import PLANTED, hunt
from sim.share.world import play


def test_every_promise_of_share_partitions_holds():
    counts = Counts()
    for seed in range(40):
        play(seed, counts)
    assert not counts.findings
    assert counts.seen["acknowledged"] > 4_000
    assert counts.seen["records of state"] > 1_000


def test_a_run_is_a_function_of_its_seed():
    first, second = Counts(), Counts()
    play(5, first)
    play(5, second)
    assert first.seen == second.seen


@pytest.mark.slow
def test_every_promise_of_share_partitions_holds_for_many_seeds():
    counts = Counts()
    for seed in range(1_000, 3_000):
        play(seed, counts)
    assert not counts.findings


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug):
    found = hunt(bug).finding
    assert found is not None
    assert found.what.startswith(bug.breaks)
