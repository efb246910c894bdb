"""The storage world: a crash at every operation of the disk, disks that fail, fill and rot; kept seeds and fresh ones.

For hours of it: ``python -m sim storage --minutes 60``. A seed that it prints is added to `KEPT`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from storage_bugs import CRASH, EVENT_FAULT, EVENTS, FAULT, RAFT, ROT

from millstream.telemetry.log import log as operator_log
from sim.engine.histories import Counts
from sim.storage.campaign import play

OPERATIONS = 60
FRESH_OPERATIONS = 30
"""Of a fresh history: half of the time, and more than a hundred crash points."""

KEPT = [
    pytest.param("crash", 130, marks=[pytest.mark.slow, pytest.mark.ci]),  # ten seconds of CPU
    ("fault", 1),
    ("fault", 4),
    ("fault", 17),
    ("fault", 129),
    ("fault", 1074999450),
    ("fault", 2657408756),
    ("rot", 4),
    ("rot", 10),
    ("rot", 157),
    ("raft", 3),
    ("events", 8),
    ("events", 998946396260),
    ("event-fault", 25),
    ("event-fault", 48),
    ("event-fault", 142777377869),
    ("event-rot", 7000),
    ("event-rot", 7001),
    ("event-rot", 7021),
]
"""Histories that found something once."""

BUDGETS = {"crash": 12, "fault": 60, "rot": 12, "raft": 12, "events": 12, "event-fault": 1}
"""Every planted bug shows within so many histories."""

FIRST = {
    "the_second_copy_is_never_written_again": 150,
    "truncation_forgets_the_producers": 46,
    "cut_before_it_is_durable": 11,
    "a_removed_chunk_is_forgotten_before_its_names_are_gone": 142777377869,
}
"""Where they begin, if not at 0. The first takes a log that changed its shard, and damage to one file of the shard it
left; the second a cut in front of a snapshot, and a crash once the log has grown past it again; the third a crash
between a cut and its sync; the fourth a checkpoint that syncs the last chunk while it is removed.
"""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Thousands of repairs are not worth a line each."""
    sink = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(operator_log._process, "fd", sink)
    yield
    os.close(sink)


@pytest.mark.parametrize(("way", "seed"), KEPT)
def test_what_was_found_once_stays_mended(way: str, seed: int) -> None:
    assert play(way, seed, OPERATIONS, Counts()) is None


@pytest.mark.parametrize("way", ["crash", "fault", "raft", "events", "event-fault"])
def test_a_fresh_history_keeps_what_was_promised(way: str, fresh_seed: int) -> None:
    seed, counts = random.Random(f"{way}/{fresh_seed}").randrange(1 << 20, 1 << 40), Counts()
    assert play(way, seed, FRESH_OPERATIONS, counts) is None
    if way == "crash":
        points, recoveries = counts.seen["crash point"], counts.seen["recovery"]
        assert points >= 100, f"seed {seed}"
        assert points <= recoveries <= 2 * points, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    ("way", "plant"),
    [
        pytest.param(way, plant, id=plant.__name__)
        for way, plants in (
            ("crash", CRASH),
            ("fault", FAULT),
            ("rot", ROT),
            ("raft", RAFT),
            ("events", EVENTS),
            ("event-fault", EVENT_FAULT),
        )
        for plant in plants
    ],
)
def test_the_world_finds_a_planted_bug(way: str, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    first, budget = FIRST.get(plant.__name__, 0), BUDGETS[way]
    for seed in range(first, first + budget):
        if play(way, seed, OPERATIONS, Counts()) is not None:
            return
    pytest.fail(f"{plant.__doc__} Nobody noticed in {budget} histories.")
