"""One broker for each file of these tests: ours, or with ``--peer kafka`` a real Apache Kafka."""

import contextlib

import pytest
from edge_client import Client, is_peer

NO_RETENTION = {"log.retention.check.interval.ms": "86400000"}
"""Many records here have times of 1970: on a slow machine they would expire before they are read."""


@pytest.fixture(scope="module")
def broker(request):
    with contextlib.ExitStack() as stack:
        if is_peer(request.config):
            from bench.peers.kafka import kafka

            fast = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "400", **NO_RETENTION}
            yield stack.enter_context(kafka(properties=fast))
        else:
            from millstream.testing.process import Broker

            yield stack.enter_context(Broker(shards=2, memory="128MiB", settings=NO_RETENTION))


@pytest.fixture
def connect(broker):
    """``connect()`` makes a client that is closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def make():
            client = Client(broker)
            stack.callback(client.connection.close)
            return client

        yield make


@pytest.fixture
def client(connect):
    return connect()


@pytest.fixture
def other(connect):
    return connect()
