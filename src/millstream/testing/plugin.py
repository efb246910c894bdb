"""Pytest fixtures: ``broker`` and ``broker_factory``.

``broker`` is started once per session, on the first test that asks for it; tests that share it use topic names of
their own. ``broker_factory(**options)`` takes what ``millstream.testing.broker`` takes and stops what it started when
the test ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.testing.process import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One real broker, shared by the session."""
    from millstream.testing.process import Broker  # not before a test asks: a plugin is imported in every session

    with Broker() as running:
        yield running


@pytest.fixture
def broker_factory() -> Iterator[Callable[..., Broker]]:
    """Starts brokers for one test."""
    from millstream.testing.process import Broker

    started: list[Broker] = []

    def start(**options: object) -> Broker:
        running = Broker(**options)  # type: ignore[arg-type]
        started.append(running)
        return running.start()

    yield start
    for running in started:
        running.close()
