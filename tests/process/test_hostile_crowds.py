"""Crowds that each ask for much and read nothing: valid requests, all of them, beside clients that must not notice.

One request here is about a thousand partitions and costs the shard milliseconds; four hundred connections send several
each. The shard handles them in turn, and those that ask for little do not wait for all of them.
"""

import socket

import pytest
from bench import raw
from hostile_support import BUDGET_BYTES, clients_go_on, connect, nobody_notices, sound, within_budget

from millstream.testing import Broker
from millstream.wire.frames import request_frame
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.messages.metadata import MetadataRequest

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES = [f"crowded-{number:02d}-{'x' * 180}" for number in range(20)]
MANY = range(50)
CROWD = 400


@pytest.fixture(scope="module")
def running():
    settings = {"group.initial.rebalance.delay.ms": 0}
    topics = {"steady": 2, "beside": 1, **dict.fromkeys(NAMES, len(MANY))}
    with Broker(topics=topics, settings=settings, shards=2, memory=str(BUDGET_BYTES)) as started:
        clients_go_on(started, "before")
        yield started


def asking(kind):
    """A valid request about a thousand partitions, and its version."""
    if kind == "every topic":
        return MetadataRequest(topics=None), 9
    if kind == "every log":
        return DescribeLogDirsRequest(topics=None), 4
    if kind == "properties":
        resources = [DescribeConfigsResource(2, name, None) for name in NAMES]
        return DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True), 4
    if kind == "offsets":
        partitions = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in MANY]
        return ListOffsetsRequest(topics=[ListOffsetsTopic(name, partitions) for name in NAMES]), 7
    topics = [
        FetchTopic(topic=name, partitions=[FetchPartition(partition=number) for number in MANY]) for name in NAMES
    ]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, session_epoch=-1, topics=topics), 12


@pytest.mark.parametrize("kind", ["every topic", "every log", "properties", "offsets", "records"])
def test_a_crowd_that_asks_for_much_and_reads_nothing_does_not_hold_up_the_others(
    running, kind, many_descriptors, connections
):
    request, version = asking(kind)
    flood = bytes(request_frame(request, version, 7, "flood"))
    with raw.Caller(running.bootstrap) as caller:
        assert len(caller.call(flood)) > 10_000
    with sound(running), nobody_notices(running, "beside"):
        for _ in range(CROWD):
            connection = connections.enter_context(connect(running, blocking=True))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            connection.send(flood * max(2, 100_000 // len(flood)))
        for _ in range(2):
            within_budget(running)
            clients_go_on(running, f"beside-{kind}".replace(" ", "-"))
        connections.close()


@pytest.mark.parametrize("count", [1, 40])
def test_one_request_for_the_properties_of_thousands_does_not_hold_up_the_others(running, count):
    resources = [DescribeConfigsResource(2, NAMES[number % len(NAMES)], None) for number in range(1000)]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    flood = bytes(request_frame(request, 4, 7, "flood"))
    with sound(running), nobody_notices(running, "beside"), raw.Caller(running.bootstrap) as caller:
        assert len(caller.call(flood)) > 4 << 20
        for _ in range(count - 1):
            with connect(running, blocking=True) as gone:
                gone.send(flood)
        clients_go_on(running, f"beside-{count}-requests")
