"""A broker that the others do not reach loses its leadership, and nothing that was acknowledged; without root, too.

Once with the networks that a cluster has by itself, and once with proxies, as where nobody may make networks.
"""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import cluster

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(300)]

QUIET = {"log_level": 0}


def leader(broker):
    """Node id of the leader as a broker names it."""
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap} | QUIET).list_topics("t", timeout=30)
    return metadata.topics["t"].partitions[0].leader


def send(bootstrap, numbers):
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0} | QUIET)
    for number in numbers:
        producer.produce("t", b"%d" % number, partition=0, on_delivery=lambda e, _: failed.append(e) if e else None)
    assert producer.flush(120) == 0
    assert not failed


def wait_for(condition, what):
    limit = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < limit, what
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("options", [{}, {"networks": "proxies"}], ids=["default", "proxies"])
def test_a_leader_that_is_cut_off_is_followed_by_another_and_takes_what_it_missed(options):
    with cluster(3, **options) as three:
        admin = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(60)
        send(three.bootstrap, range(100))
        old = wait_for(lambda: leader(three.brokers[1]), "the partition has a leader")
        others = {1, 2, 3} - {old}
        three.partition({old}, others)
        one = three.brokers[min(others)]
        wait_for(lambda: leader(one) in others, "the others elect a leader")
        send(",".join(three.brokers[node].bootstrap for node in others), range(100, 200))
        assert leader(three.brokers[old]) not in others, "the broker that is cut off has heard of it"
        three.heal()
        wait_for(lambda: leader(three.brokers[old]) == leader(one), "all know the leader again")
        for node in others:  # the one that was cut off has to have everything for a majority now
            three.partition({node}, {1, 2, 3} - {node})
            send(",".join(three.brokers[other].bootstrap for other in {1, 2, 3} - {node}), [node])
            three.heal()
        consumer = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "g"} | QUIET)
        consumer.assign([TopicPartition("t", 0, 0)])
        found = []
        limit = time.monotonic() + 120
        while len(found) < 202 and time.monotonic() < limit:
            found += [int(message.value()) for message in consumer.consume(500, 1) if not message.error()]
        consumer.close()
        assert found[:200] == list(range(200))
        assert found[200:] == list(others)
        for broker in three.brokers.values():
            assert broker.stop() == 0
