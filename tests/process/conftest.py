"""Brokers for the process tests: ours, or with ``--peer kafka`` a real Apache Kafka for those that a peer can stand."""

import contextlib
import resource
import sys
from pathlib import Path

import pytest

from waits import PATIENCE_S

sys.path.insert(0, str(Path(__file__).parents[2]))


def pytest_addoption(parser):
    with contextlib.suppress(ValueError):  # the client matrix declares it too
        parser.addoption("--peer", choices=["kafka"], help="run against this broker instead of ours")


@pytest.fixture
def start_broker(request):
    """``start_broker(topics={…}, **options)``; the options are those of ``millstream.testing.broker``."""
    if request.config.getoption("--peer", default=None) == "kafka":
        from bench.peers.kafka import kafka

        with contextlib.ExitStack() as stack:
            yield lambda topics=None, **options: stack.enter_context(kafka(topics=topics))
    else:
        factory, started = request.getfixturevalue("broker_factory"), []

        def start(**options):
            started.append(factory(**options))
            return started[-1]

        yield start
        for broker in started:
            print(f"--- what the broker on {broker.bootstrap} said\n{broker.log_tail()}")  # pytest shows it on failure


@pytest.fixture(scope="session", autouse=True)
def patient_consoles():
    """Pages of a console in the test's process wait for a busy broker."""
    if "millstream.console.access" in sys.modules:  # of the tests that are run; to import it takes long
        from millstream.console.access import Access

        Access.__init__.__kwdefaults__["timeout_s"] = PATIENCE_S
    yield


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def connections():
    """Connections of a test, closed when it ends."""
    with contextlib.ExitStack() as stack:
        yield stack
