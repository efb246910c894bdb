"""What the tests of simulated brokers share."""

import os

import pytest

from millstream.telemetry.log import log as operator_log


@pytest.fixture
def quiet(monkeypatch):
    """Hundreds of elections are not worth a line each."""
    sink = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(operator_log._process, "fd", sink)
    yield
    os.close(sink)
