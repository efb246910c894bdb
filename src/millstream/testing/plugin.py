"""Pytest fixtures: ``broker`` and ``broker_factory``.

``broker`` starts once per session, in the first test that uses it; tests that share it use their own topic names.
``broker_factory(**options)`` takes the arguments of ``millstream.testing.broker`` and stops its brokers when the test
ends.
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
    from millstream.testing.process import Broker  # not before it is needed: a plugin is imported in every session

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
