"""Streams groups on three brokers: the next coordinator continues where the one that was killed stopped."""

import pytest

from millstream.testing import cluster
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_line import Line
from streams_app import GROUP, SETTINGS, App, running
from waits import until

pytestmark = pytest.mark.process


def coordinator(bootstraps):
    """A line to the coordinator of the group, as any of these brokers finds it."""

    def look():
        for bootstrap in bootstraps:
            try:
                with Line(bootstrap) as line:
                    (found,) = line.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])).coordinators
                if not found.error_code and f"{found.host}:{found.port}" in bootstraps:
                    return Line(f"{found.host}:{found.port}")
            except OSError:
                continue  # it was killed, or it does not know yet that another one was
        return None

    return until(look, "the group has a coordinator")


def test_members_keep_their_tasks_when_their_coordinator_is_killed():
    with cluster(3, {**SETTINGS, "default.replication.factor": "3"}) as made:
        addresses = {node: broker.bootstrap for node, broker in made.brokers.items()}
        one, two = App("one"), App("two", "q")
        with coordinator(addresses.values()) as line:
            (words,) = line.ask(CreateTopicsRequest([CreatableTopic("words", 3, 3)], 60_000)).topics
            assert not words.error_code
            running(line, one, two)
            (made_by_broker,) = line.ask(MetadataRequest([MetadataRequestTopic(name="counter-counts")], False)).topics
            assert {len(partition.replica_nodes) for partition in made_by_broker.partitions} == {3}
            host, port = line.sock.getpeername()
        before = one.tasks(), two.tasks(), one.epoch, two.epoch
        (former,) = [node for node, address in addresses.items() if address == f"{host}:{port}"]
        made.kill(former)
        del addresses[former]

        def continued():
            with coordinator(addresses.values()) as line:
                codes = [app.beat(line).error_code for app in (one, two)]
            assert set(codes) <= {0, 14, 15, 16}, codes
            return codes == [0, 0]

        until(continued, "the next coordinator knows the members")
        assert (one.tasks(), two.tasks(), one.epoch, two.epoch) == before
