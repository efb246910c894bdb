"""Transactions under fail-over of the coordinator, zombies, and requests that come late, lost or twice."""

import pytest

from millstream.core import producer_state
from millstream.core.txn import coordinator, image
from sim.transactions import judge, run
from sim.transactions.planted import PLANTED, hunt


def test_every_promise_of_transactions_holds():
    outcomes = [run(seed).attempts for seed in range(40)]
    attempts = [attempt for one in outcomes for attempt in one]
    assert sum(attempt.committed is True for attempt in attempts) > 500
    assert sum(attempt.committed is False for attempt in attempts) > 200
    assert sum(attempt.committed is None for attempt in attempts) > 50, "no producer was fenced or left in doubt"


def test_a_run_is_a_function_of_its_seed():
    assert run(5).attempts == run(5).attempts


@pytest.mark.parametrize("last", [2, 5])
def test_every_promise_of_transactions_holds_while_epochs_run_out(last, monkeypatch):
    for module in (image, coordinator, producer_state, judge):
        monkeypatch.setattr(module, "EPOCH_MAX", last)
        monkeypatch.setattr(module, "EXHAUSTED", last - 1, raising=False)
    attempts = [attempt for seed in range(100, 112) for attempt in run(seed).attempts]
    assert sum(attempt.committed is True for attempt in attempts) > 50


@pytest.mark.slow
def test_every_promise_of_transactions_holds_for_many_seeds():
    for seed in range(1_000, 2_500):
        run(seed)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug):
    found = hunt(bug).finding
    assert found is not None
    assert found.what.startswith(bug.breaks)
