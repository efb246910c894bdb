"""Storage under random histories and power failures: what recovery finds is explained by what was asked and promised.

Then the same with a bug planted in the storage, one at a time: a model that cannot find those proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from storage_bugs import PLANTED
from storage_history import History

from millstream.errors import MillstreamError
from millstream.telemetry.log import log as operator_log

OPERATIONS = 120
SEEDS = range(60)
PLANTED_SEEDS = 120
"""Every planted bug shows within so many histories; most within ten."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Thousands of repairs are not worth a line each."""
    sink = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(operator_log._process, "fd", sink)
    yield
    os.close(sink)


@pytest.mark.parametrize("decade", range(0, len(SEEDS), 10))
def test_recovery_keeps_what_was_promised(decade: int) -> None:
    crashes = 0
    for seed in SEEDS[decade : decade + 10]:
        history = History(seed)
        history.play(OPERATIONS)
        crashes += history.crashes
    assert crashes >= 30


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_model_finds_a_planted_bug(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            History(seed).play(OPERATIONS)
        except (AssertionError, MillstreamError):
            return
    pytest.fail(f"{plant.__doc__} Nobody noticed in {PLANTED_SEEDS} histories.")
