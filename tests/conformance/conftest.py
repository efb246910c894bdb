"""Which broker the client matrix runs against: ours, or with ``--peer kafka`` a real Apache Kafka.

A test that fails on both is a broken test; one that fails on ours alone is our failure.
"""

import contextlib
import itertools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from group_next import NEXT_SETTINGS, NextMember
from group_wire import Member, wait_for_coordinator

numbers = itertools.count()
PEER_SETTINGS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "400"}


def pytest_addoption(parser):
    with contextlib.suppress(ValueError):  # tests/process has it as well
        parser.addoption("--peer", choices=["kafka"], help="run against this broker instead of ours")
    with contextlib.suppress(ValueError):
        parser.addoption("--brokers", type=int, default=1, help="run against a cluster of ours with so many brokers")


class ReplicatedBroker:
    """A cluster in which every topic has a replica on each broker, with the face of a single one: ``kill`` ends one
    broker, the next one each time, and ``restart`` starts it again.
    """

    def __init__(self, stack, count, topics, settings):
        from millstream.testing import cluster
        from millstream.testing.process import create_topics

        replicated = {"default.replication.factor": count, "min.insync.replicas": 2}
        ours = {"group.initial.rebalance.delay.ms": 0, **replicated, **settings}
        self._cluster = stack.enter_context(cluster(count, ours))
        self._victims = itertools.cycle(self._cluster.brokers)
        self._victim = None
        self.bootstrap = self._cluster.bootstrap
        create_topics(self.bootstrap.split(",")[0], topics)

    def kill(self):
        self._victim = next(self._victims)
        self._cluster.kill(self._victim)

    def restart(self):
        self._cluster.restart(self._victim)


@pytest.fixture
def start_broker(request):
    """``start_broker(topics={…}, settings={…})`` → a running broker with ``bootstrap``, ``kill()`` and
    ``restart()``.
    """
    if request.config.getoption("--peer", default=None) == "kafka":
        from bench.peers.kafka import kafka

        with contextlib.ExitStack() as stack:
            yield lambda topics, settings=None: stack.enter_context(
                kafka(topics=topics, properties={**PEER_SETTINGS, **(settings or {})})
            )
    elif (count := request.config.getoption("--brokers", default=1)) > 1:
        with contextlib.ExitStack() as stack:
            yield lambda topics, settings=None: ReplicatedBroker(stack, count, topics, settings or {})
    else:
        factory, started = request.getfixturevalue("broker_factory"), []

        def start(topics, settings=None):
            settings = {"group.initial.rebalance.delay.ms": 0, **(settings or {})}
            started.append(factory(topics=topics, settings=settings))
            return started[-1]

        yield start
        for broker in started:
            print(f"--- what the broker on {broker.bootstrap} said\n{broker.log_tail()}")  # pytest shows it on failure


@pytest.fixture(scope="module")
def module_broker(request):
    """``module_broker(topics={…}, settings={…})`` → a running broker for all tests of a file."""
    with contextlib.ExitStack() as stack:
        if request.config.getoption("--peer", default=None) == "kafka":
            from bench.peers.kafka import kafka

            def start(topics, settings):
                named = {name: str(value) for name, value in settings.items()}
                return stack.enter_context(kafka(topics=topics, properties={**PEER_SETTINGS, **named}))
        elif (count := request.config.getoption("--brokers", default=1)) > 1:

            def start(topics, settings):
                return ReplicatedBroker(stack, count, topics, settings)
        else:
            from millstream.testing import broker

            def start(topics, settings):
                return stack.enter_context(broker(topics=topics, settings=settings))

        yield start


GROUP_SETTINGS = {
    "group.min.session.timeout.ms": 200,
    "group.max.session.timeout.ms": 120_000,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
}


@pytest.fixture(scope="module")
def group_bootstrap(module_broker):
    """A broker for groups, with the topics t (3 partitions) and u (1)."""
    broker = module_broker(topics={"t": 3, "u": 1}, settings=GROUP_SETTINGS)
    wait_for_coordinator(broker.bootstrap)
    return broker.bootstrap


@pytest.fixture
def people(group_bootstrap):
    """``people(instance, …)`` → a new member-to-be of this test's own group."""
    group, made = f"group-{next(numbers)}", []

    def make(instance=None, **options):
        made.append(Member(group_bootstrap, options.pop("group", group), instance, **options))
        return made[-1]

    yield make
    for member in made:
        member.close()


@pytest.fixture(scope="module")
def next_bootstrap(module_broker):
    """A broker for consumer groups (KIP-848), with the topics t (4 partitions) and u (2)."""
    broker = module_broker(topics={"t": 4, "u": 2}, settings=NEXT_SETTINGS)
    wait_for_coordinator(broker.bootstrap)
    return broker.bootstrap


@pytest.fixture
def someone(next_bootstrap):
    """``someone(name, …)`` → a new member-to-be of this test's own consumer group."""
    group, made = f"next-{next(numbers)}", []

    def make(name, **options):
        made.append(NextMember(next_bootstrap, options.pop("group", group), name, **options))
        return made[-1]

    yield make
    for member in made:
        member.line.close()
