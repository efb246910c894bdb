"""Storage under random histories and power failures: what recovery finds is always explained by what was asked and promised."""

import pytest
from storage_history import History, Violation

SEEDS = range(24)
OPERATIONS = 120


@pytest.mark.parametrize("seed", SEEDS)
def test_recovery_keeps_what_was_promised(seed: int) -> None:
    history = History(seed)
    history.play(OPERATIONS)
    assert history.crashes >= 3
