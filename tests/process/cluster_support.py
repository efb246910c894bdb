"""What tests of three brokers share: topics, metadata, records sent and read, and what is in sync."""

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

QUIET = {"log_level": 0}


def admin(*brokers):
    return AdminClient({"bootstrap.servers": ",".join(broker.bootstrap for broker in brokers)} | QUIET)


def create(broker, topic, partitions, factor=1, config=None):
    client = admin(broker)
    for done in client.create_topics([NewTopic(topic, partitions, factor, config=config or {})]).values():
        done.result(60)


def metadata(broker):
    return admin(broker).list_topics(timeout=60)


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
    producer.flush(60)
    return acked


def read(bootstrap, topic, partitions, count):
    """The first ``count`` values of all partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"read-{topic}"} | QUIET)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found = []
    limit = time.monotonic() + 60
    while len(found) < count and time.monotonic() < limit:
        for message in consumer.consume(count, 0.5):
            assert not message.error(), message.error()
            found.append(message.value())
    consumer.close()
    return found


class Unordered:
    """Equal to a list with the same values, each as often, in any order."""

    def __init__(self, values):
        self.values = sorted(values)

    def __eq__(self, other):
        return self.values == sorted(other)

    def __repr__(self):
        return f"{len(self.values)} values"


def controller_of(three):
    """The broker whose log said last that it is the controller."""
    said = {}
    for node, broker in three.brokers.items():
        lines = [line for line in broker.log_path.read_text().splitlines() if "this broker is the controller" in line]
        if lines:
            said[node] = lines[-1]
    return max(said, key=said.__getitem__)


def partitions(broker, topic):
    """The partitions of a topic; none as long as the broker has not heard of the topic."""
    found = metadata(broker).topics.get(topic)
    return found.partitions.values() if found is not None else []


def all_in_sync(three, topic):
    """Every broker shows the same leaders (a new partition may have none yet), and every replica in sync."""
    shown = [
        [(part.leader, tuple(part.replicas), sorted(part.isrs)) for part in partitions(broker, topic)]
        for broker in three.brokers.values()
    ]
    agreed = all(each == shown[0] for each in shown) and bool(shown[0])
    return agreed and all(leader > 0 and isr == sorted(replicas) for leader, replicas, isr in shown[0])
