"""A broker that the others do not reach loses its leadership, and nothing that was acknowledged; without root, too.

Once with the networks that a cluster has by itself, and once with proxies, as where nobody may make networks.
"""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client.connection import Connection
from millstream.testing import cluster
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

QUIET = {"log_level": 0}


def about(broker):
    """What this broker says of the topic: a client of librdkafka may ask another one that it names."""
    host, _, port = broker.bootstrap.rpartition(":")
    with Connection(host, int(port), timeout_s=60) as connection:
        return connection.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse, 9)


def leader(broker):
    """Node id of the leader as a broker names it."""
    return about(broker).topics[0].partitions[0].leader_id


def led_by(nodes, three):
    """Whether each of these brokers says that one of them leads the partition, and one is the controller."""
    found = [about(three.brokers[node]) for node in nodes]
    return all(one.controller_id in nodes and one.topics[0].partitions[0].leader_id in nodes for one in found)


def send(bootstrap, numbers):
    """Until all is acknowledged. A producer id is not asked for: librdkafka asks any one broker for it again and again,
    and the one that is cut off has none to give.
    """
    failed = []
    options = {"acks": "all", "max.in.flight": 1, "linger.ms": 0, "message.timeout.ms": 110_000}
    producer = Producer({"bootstrap.servers": bootstrap} | options | QUIET)
    for number in numbers:
        producer.produce("t", b"%d" % number, partition=0, on_delivery=lambda e, _: failed.append(e) if e else None)
    assert producer.flush(120) == 0
    assert not failed


def cut_off_leader(three):
    """Cut the broker that leads off from the others, and let them elect another one; its node. Again, if it has heard
    of another one: that led before the cut, or what named it was on its way.
    """

    def cut():
        old = leader(three.brokers[1])
        if old in three.brokers:
            others = {1, 2, 3} - {old}
            three.partition({old}, others)
            until(lambda: led_by(others, three), "the others elect a leader")
            if leader(three.brokers[old]) not in others:
                return old
            three.heal()
        return None

    return until(cut, "the broker that leads is cut off")


@pytest.mark.parametrize("options", [{}, {"networks": "proxies"}], ids=["default", "proxies"])
def test_a_leader_that_is_cut_off_is_followed_by_another_and_takes_what_it_missed(options):
    with cluster(3, **options) as three:
        admin = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(60)
        send(three.bootstrap, range(100))
        old = cut_off_leader(three)
        others = {1, 2, 3} - {old}
        one = three.brokers[min(others)]
        send(",".join(three.brokers[node].bootstrap for node in others), range(100, 200))
        assert leader(three.brokers[old]) not in others, "the broker that is cut off has heard of it"
        three.heal()
        until(lambda: leader(three.brokers[old]) == leader(one), "all know the leader again")
        for node in others:  # the one that was cut off has to have everything for a majority now
            rest = {1, 2, 3} - {node}
            three.partition({node}, rest)
            until(lambda rest=rest: led_by(rest, three), "the others elect a leader")
            send(",".join(three.brokers[other].bootstrap for other in rest), [1000 + node])
            three.heal()
        consumer = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "g"} | QUIET)
        consumer.assign([TopicPartition("t", 0, 0)])
        found = []
        limit = time.monotonic() + 120
        while len(set(found)) < 202 and time.monotonic() < limit:
            found += [int(message.value()) for message in consumer.consume(500, 1) if not message.error()]
        consumer.close()
        found = list(dict.fromkeys(found))  # a record whose answer was lost is there twice
        assert found[:200] == list(range(200))
        assert found[200:] == [1000 + node for node in others]
        for broker in three.brokers.values():
            assert broker.stop() == 0
