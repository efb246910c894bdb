"""A consumer with ``client.rack`` reads from the replica of its rack, and from the leader when that replica is gone."""

import time
import urllib.request

import pytest
from cluster_support import Unordered, all_in_sync, create, partitions, send
from confluent_kafka import Consumer, TopicPartition

from millstream.testing.clusters import Cluster
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture
def three(tmp_path):
    made = Cluster(3, tmp_path, {"replica.selector.class": RACK_AWARE}, shards=2, memory="128MiB", racks=True)
    made.start()
    yield made
    made.close()


def fetched(broker):
    """Bytes of records that a broker has given to consumers."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("millstream_kafka_fetch_bytes_total"))


def take(consumer, count):
    found, limit = [], time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < limit:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            found.append(message.value())
    return found


@pytest.mark.slow
def test_a_consumer_reads_in_its_rack_and_from_the_leader_when_that_replica_dies(three):
    one = three.brokers[1]
    create(one, "t", 2, 3)
    first = send(three.bootstrap, "t", 2, 200, "a")
    until(lambda: all_in_sync(three, "t"))
    leaders = {part.leader for part in partitions(one, "t")}
    near = next(node for node in three.brokers if node not in leaders)
    before = {node: fetched(broker) for node, broker in three.brokers.items()}
    config = {
        "bootstrap.servers": three.bootstrap,
        "group.id": "g",
        "client.rack": f"rack-{near}",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 2000,
    }
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(2)])
        assert take(consumer, 200) == Unordered(first)
        grown = {node: fetched(broker) - before[node] for node, broker in three.brokers.items()}
        assert grown[near] > 0 and all(grown[node] == 0 for node in leaders), grown

        second = send(three.bootstrap, "t", 2, 200, "b")
        assert take(consumer, 200) == Unordered(second), "what comes later is read there, too"

        three.kill(near)
        third = send(",".join(three.brokers[node].bootstrap for node in leaders), "t", 2, 200, "c")
        assert take(consumer, 200) == Unordered(third)
    finally:
        consumer.close()
