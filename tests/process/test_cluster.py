"""Three broker processes as one cluster under a stock client: the controller is replicated, topics live anywhere."""

import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.cluster import cluster

QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def three():
    with cluster(3) as made:
        yield made


def admin(*brokers):
    return AdminClient({"bootstrap.servers": ",".join(broker.bootstrap for broker in brokers)} | QUIET)


def create(broker, topic, partitions, factor=1):
    client = admin(broker)
    for done in client.create_topics([NewTopic(topic, partitions, factor)]).values():
        done.result(30)


def metadata(broker):
    return admin(broker).list_topics(timeout=20)


def wait_for(condition, timeout_s=30):
    limit = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.05)
    return found


def send(bootstrap, topic, partitions, count, name):
    """Produce ``count`` records with acks=all; returns the values that were acknowledged."""
    acked = []
    producer = Producer({"bootstrap.servers": bootstrap} | QUIET)
    for number in range(count):
        producer.produce(
            topic,
            f"{name}-{number}",
            partition=number % partitions,
            on_delivery=lambda error, message: acked.append(message.value()) if error is None else None,
        )
    producer.flush(30)
    return acked


def read(bootstrap, topic, partitions, count):
    """The first ``count`` values of all partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"read-{topic}"} | QUIET)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found = []
    limit = time.monotonic() + 30
    while len(found) < count and time.monotonic() < limit:
        for message in consumer.consume(count, 0.5):
            assert not message.error(), message.error()
            found.append(message.value())
    consumer.close()
    return found


def controller_of(three):
    """The broker whose log said last that it is the controller."""
    said = {}
    for node, broker in three.brokers.items():
        lines = [line for line in broker.log_path.read_text().splitlines() if "this broker is the controller" in line]
        if lines:
            said[node] = lines[-1]
    return max(said, key=said.__getitem__)


def test_every_broker_knows_all_of_them_and_creates_topics_anywhere(three):
    for node, broker in three.brokers.items():
        wait_for(lambda broker=broker: len(metadata(broker).brokers) == 3)
        create(broker, f"made-by-{node}", 3)
    for broker in three.brokers.values():
        wait_for(lambda broker=broker: all(f"made-by-{node}" in metadata(broker).topics for node in three.brokers))
        found = metadata(broker)
        assert {f"{each.host}:{each.port}" for each in found.brokers.values()} == set(three.bootstrap.split(","))
        for node in three.brokers:
            leaders = {part.leader for part in found.topics[f"made-by-{node}"].partitions.values()}
            assert leaders == {1, 2, 3}, "the partitions of a topic are spread over the brokers"
    assert len({metadata(broker).cluster_id for broker in three.brokers.values()}) == 1


def test_clients_are_sent_to_the_broker_that_has_the_partition(three):
    create(three.brokers[2], "spread", 6)
    acked = send(three.brokers[3].bootstrap, "spread", 6, 300, "a")
    assert len(acked) == 300
    assert sorted(read(three.brokers[1].bootstrap, "spread", 6, 300)) == sorted(acked)


def test_a_group_is_coordinated_by_the_broker_that_has_its_partition(three):
    create(three.brokers[1], "grouped", 3)
    acked = send(three.bootstrap, "grouped", 3, 90, "g")
    consumer = Consumer(
        {"bootstrap.servers": three.bootstrap, "group.id": "together", "auto.offset.reset": "earliest"} | QUIET
    )
    consumer.subscribe(["grouped"])
    found = []
    wait_for(lambda: found.extend(m.value() for m in consumer.consume(90, 0.5) if not m.error()) or len(found) >= 90)
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(found) == sorted(acked)


def test_more_replicas_than_this_version_keeps_are_refused(three):
    with pytest.raises(KafkaException, match="A replication factor of 3 is not supported by this version"):
        create(three.brokers[1], "too-many", 1, 3)


def test_the_cluster_goes_on_without_its_controller_and_takes_it_back(three):
    create(three.brokers[1], "before", 3)
    gone = controller_of(three)
    others = [broker for node, broker in three.brokers.items() if node != gone]
    acked = send(three.bootstrap, "before", 3, 90, "k")
    three.kill(gone)
    create(others[0], "during", 2)
    wait_for(lambda: gone not in metadata(others[1]).brokers)
    three.restart(gone)
    back = three.brokers[gone]
    assert {"before", "during"} <= metadata(back).topics.keys()
    wait_for(lambda: all(gone in metadata(broker).brokers for broker in others))
    assert sorted(read(three.bootstrap, "before", 3, 90)) == sorted(acked)
    acked += send(three.bootstrap, "before", 3, 90, "l")
    assert sorted(read(three.bootstrap, "before", 3, 180)) == sorted(acked)
    assert len(acked) == 180


def test_a_cluster_whose_brokers_all_died_at_once_has_everything(three):
    create(three.brokers[1], "kept", 3)
    acked = send(three.bootstrap, "kept", 3, 90, "m")
    for node in three.brokers:
        three.kill(node)
    three.start()
    assert "kept" in metadata(three.brokers[2]).topics
    assert sorted(read(three.bootstrap, "kept", 3, 90)) == sorted(acked)
    create(three.brokers[3], "afterwards", 1)
