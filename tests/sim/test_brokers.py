"""Brokers with the production shell, log and recovery hold every promise, whatever fails, and find planted bugs.

A finding names its seed: ``python -m sim brokers --seed N`` plays it with the brokers' log lines.
"""

import random
from functools import partial

import pytest
from msgspec.structs import replace

from millstream.core.controller import brokers, state
from millstream.core.controller.commands import FEATURE_LEVEL
from sim.brokers.history import play
from sim.brokers.planted import PLANTED, hunt
from sim.brokers.settings import (
    draw,
    draw_for_campaign,
    draw_with_disk_faults,
    draw_with_installs,
    draw_with_moves,
    draw_with_rots,
    draw_with_snapshots,
    draw_with_upgrades,
    draw_with_wipes,
)
from sim.engine.histories import Counts

pytestmark = pytest.mark.usefixtures("quiet")

LONG = partial(pytest.param, marks=[pytest.mark.slow, pytest.mark.ci])
"""A seed whose history takes ten seconds."""

FOUND = (
    8000300,  # a replica cut inside a range that had left the cache wrote that range's memory into its segment
)
FOUND_WITH_WIPES = (
    60000373,  # a vote in the write-ahead log made a replica count that had lost its files
    60000336,  # a replica that had lost its files got back its first batch, but not the entry before
    40000157,  # a replica that was whole again counted as lost after a crash, and then another one lost its files
)
FOUND_IN_CAMPAIGNS = (
    (711186, draw_with_disk_faults),  # the sync of a new directory failed; the next attempt took its name for durable
    (740912, draw),  # a former leader answered in the name of the next term before it resigned
    (921169, draw_with_installs),  # a new leader served before its own disk had the newest log start
    (921311, draw_with_moves),  # a broker that opened a topic of its log again met the failure of its disk
    (955000176, draw_with_rots),  # a damaged leader kept the lead, because a replica behind it lacked what was damaged
    (5000060, draw_with_rots),  # a damaged header that the producers' replay found kept a replica away
)
FOUND_WITH_MOVES = (
    104,  # a replica that came back to a broker lost its vote and its control entries at the next checkpoint
    117,  # the same
    200,  # a broker got a replica back before it knew that it had lost it, and removed what its leader counted on
    201,  # a replica that came back took records of its former self in the write-ahead log for its own
)
FOUND_WITH_SNAPSHOTS = (
    12,  # a topic of two replicas made while a broker was away counted as lost there; it receives no snapshot any more
    LONG(14),  # the same of a replica that had moved
    LONG(37),  # found nothing: five snapshots are received while topics are made
)
FOUND_WITH_UPGRADES = (
    29,  # a broker that died before it had noted what is committed took replicas made while it was away for lost
)
FRESH = 1


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_something_finds_nothing_now(seed):
    finding = play(seed, Counts())
    assert finding is None, finding


@pytest.mark.parametrize(("seed", "kind"), FOUND_IN_CAMPAIGNS)
def test_a_seed_that_found_something_in_a_campaign_finds_nothing_now(seed, kind):
    finding = play(seed, Counts(), kind(seed))
    assert finding is None, finding


@pytest.mark.parametrize("seed", FOUND_WITH_WIPES)
def test_a_seed_that_found_something_with_lost_files_finds_nothing_now(seed):
    finding = play(seed, Counts(), draw_with_wipes(seed))
    assert finding is None, finding


@pytest.mark.parametrize("seed", FOUND_WITH_MOVES)
def test_a_seed_that_found_something_with_moves_finds_nothing_now(seed):
    finding = play(seed, Counts(), draw_with_moves(seed))
    assert finding is None, finding


@pytest.mark.parametrize("seed", FOUND_WITH_SNAPSHOTS)
def test_a_seed_that_found_something_with_snapshots_of_the_controller_finds_nothing_now(seed):
    counts = Counts()
    finding = play(seed, counts, draw_with_snapshots(seed))
    assert finding is None, finding
    assert counts.seen["controller's snapshot received"] or seed == 12


@pytest.mark.parametrize("seed", FOUND_WITH_UPGRADES)
def test_a_seed_that_found_something_with_upgrades_finds_nothing_now(seed):
    counts = Counts()
    finding = play(seed, counts, draw_with_upgrades(seed))
    assert finding is None, finding
    assert counts.seen["controller's snapshot received"]


@pytest.mark.parametrize("upgrades", [3, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.ci])])
def test_brokers_are_upgraded_one_by_one_and_then_use_what_is_new(upgrades):
    counts = Counts()
    for seed in range(upgrades):
        finding = play(seed, counts, replace(draw_with_upgrades(seed), nodes=3, operations_per_s=10))
        assert finding is None, finding
    seen = counts.seen
    assert seen["return to the older release"] == upgrades
    assert seen["feature level risen after an upgrade"] >= upgrades
    assert seen["older release refuses the cluster"] + seen["older release refused by the cluster"]
    assert seen["move asked for"]
    assert seen["set of groups at rest"]
    # No later history is played with the code of an older release.
    assert {state.FEATURE_LEVEL, brokers.FEATURE_LEVEL} == {FEATURE_LEVEL}


def test_fresh_seeds_find_nothing(fresh_seed):
    chance = random.Random(fresh_seed)
    for _ in range(FRESH):
        seed = chance.randrange(1_000, 1 << 31)
        finding = play(seed, Counts(), draw_for_campaign(seed))
        assert finding is None, finding


def test_damage_of_one_replica_is_found_and_made_up_for():
    counts = Counts()
    for seed in range(3):
        finding = play(seed, counts, draw_with_rots(seed))
        assert finding is None, finding
    assert counts.faults["byte of a segment gone bad"]
    assert counts.seen["replica begun anew"]
    assert counts.seen["damage made up for"]


QUICK = 10


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("bug", [bug for bug in PLANTED if bug.budget <= QUICK], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_its_budget(bug):
    assert hunt(bug).finding is not None


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in PLANTED if bug.budget > QUICK], ids=lambda bug: bug.name)
def test_a_rare_planted_bug_is_found_within_its_budget(bug):
    assert hunt(bug).finding is not None


def test_a_seed_replays_the_same_history():
    ends = []
    for _ in range(2):
        counts = Counts()
        assert play(3, counts) is None
        ends.append((counts.trace, counts.simulated_us, counts.steps, counts.seen))
    assert ends[0] == ends[1]
    assert ends[0][3]["acknowledgement"]
