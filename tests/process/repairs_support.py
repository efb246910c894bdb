"""What tests of repaired replicas share: a metric of a broker, and whether a topic is in sync."""

import urllib.request

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

QUIET = {"log_level": 0}


def metric(broker, name):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def in_sync(three, topic):
    """Every broker shows three replicas in sync."""
    for broker in three.brokers.values():
        topics = AdminClient({"bootstrap.servers": broker.bootstrap} | QUIET).list_topics(timeout=60).topics
        if topic not in topics or any(len(part.isrs) < 3 for part in topics[topic].partitions.values()):
            return False
    return True


def records_in(bootstrap, topic):
    """How many records partition 0 of the topic gives to a consumer that reads it from its beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "c", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while (message := consumer.poll(120)) is not None:
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        found += 1
    consumer.close()
    return found
