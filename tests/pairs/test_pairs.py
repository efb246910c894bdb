"""Kinds of topics × pairs of operations: a drawn sample, and pairs that have found something."""

from collections import Counter

import pytest

from sim.pairs.campaign import SAMPLE, Shard, sample
from sim.pairs.faults import FAULTS
from sim.pairs.history import Pair, every_pair, play
from sim.pairs.kinds import KINDS
from sim.pairs.operations import OF_CLUSTERS, OPERATIONS
from sim.pairs.planted import PLANTED, hunt

PARTS = 20
QUICK = 20
"""Histories of a hunt that takes some seconds."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_drawn_sample_of_pairs_holds(part: int, fresh_seed: int) -> None:
    seed, seen = fresh_seed, Counter[str]()
    found = [one for pair in sample(seed)[part::PARTS] if (one := play(pair, seed, seen)) is not None]
    assert not found, f"python -m sim pairs --seed {seed} --sample: {found}"
    assert seen["histories"] >= SAMPLE // PARTS


def test_a_sample_has_every_kind_and_every_operation_in_both_places() -> None:
    for number in range(20):
        drawn = sample(number)
        assert len(drawn) >= 200
        assert {pair.kind for pair in drawn} == set(KINDS)
        assert {pair.first for pair in drawn} == {pair.second for pair in drawn} == {*OPERATIONS, *FAULTS}
        clusters = [pair for pair in drawn if KINDS[pair.kind].replicas]
        assert {pair.first for pair in clusters} >= set(OF_CLUSTERS) <= {pair.second for pair in clusters}


def test_the_parts_of_a_run_are_every_pair_once() -> None:
    parts = [pair for number in range(3) for pair in Shard(number, 3, 7).pairs()]
    assert sorted(parts) == sorted(every_pair())


def test_a_history_repeats_from_its_seed() -> None:
    pair = Pair("tiered", "kill and start", "delete some records")
    counts = [Counter[str](), Counter[str]()]
    assert [play(pair, 3, seen) for seen in counts] == [None, None]
    assert counts[0] == counts[1]


KEPT = [
    (Pair("tiered", "produce, acks=1", "store away"), 0),  # log verify took trimmed local files for a loss
    (Pair("local", "time out a transaction", "exhaust epochs"), 8),  # an epoch overflowed
    (Pair("tiered", "produce a year ahead", "produce"), 0),  # local copies stayed
    (Pair("shared", "produce without time", "retention by time"), 1),  # uploaded records stayed
    (Pair("tiered", "leave a transaction open", "clock a day back"), 0),
    (Pair("events", "abort a transaction", "stop and start"), 1),  # a marker ended the broker
    (Pair("shared", "begin again in the bucket", "recover from the bucket"), 4),  # another topic of the name came back
    (Pair("shared", "delete some records", "recover from the bucket"), 2),  # what was deleted came back
    (Pair("shared", "delete all records", "recover from the bucket"), 1),  # offsets were given twice
    (Pair("compacted", "alter to delete", "alter to tiered"), 2),  # a gap at the start of an archive
    (Pair("local", "produce huge keys", "alter to append time"), 596657716),  # log verify: a topic without a name
    (Pair("compacted, three replicas", "alter to delete", "alter to tiered"), 1),  # the same, on every replica
    (Pair("events, three replicas", "abort a transaction", "stop and start one"), 1),  # a marker ended each broker
    (Pair("shared, log in store", "store away", "delete and create again"), 29),  # a new topic waits for the store
    (Pair("tiered events, three replicas", "move replicas", "recover from the bucket"), 29),  # what the disk lost
    (Pair("local, three replicas", "hand the leadership over", "delete all records"), 29),  # to who led before
    (Pair("events, three replicas", "fail the leader", "fail the leader"), 1),  # a repair of chunks ended the broker
    (Pair("shared, three replicas", "produce huge keys", "cut uncleanly"), 864671276),  # objects were joined and gone
    (Pair("events, three replicas", "delete and create again", "cut uncleanly"), 1049850177),  # an old log stayed
]


@pytest.mark.parametrize(("pair", "seed"), KEPT, ids=lambda value: value.first if isinstance(value, Pair) else "")
def test_a_pair_that_found_something_holds(pair: Pair, seed: int) -> None:
    assert play(pair, seed, Counter()) is None


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("bug", [one for one in PLANTED if one.budget <= QUICK], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug) -> None:
    assert hunt(bug).finding is not None


@pytest.mark.slow
@pytest.mark.parametrize("bug", [one for one in PLANTED if one.budget > QUICK], ids=lambda bug: bug.name)
def test_a_bug_that_needs_more_histories_is_found(bug) -> None:
    assert hunt(bug).finding is not None
