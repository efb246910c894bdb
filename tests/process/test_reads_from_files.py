"""History in the page cache is read by the shard itself, as it was sent: one partition or several, committed or not."""

import hashlib

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.cli.exposition import read_exposition
from millstream.testing.process import Broker

pytestmark = pytest.mark.process

COUNT = 1000


def value(partition: int, number: int) -> bytes:
    return hashlib.sha512(b"%d %d" % (partition, number)).digest() * (1 + number % 40)


def produce(broker: Broker, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 7, "linger.ms": 1})
    for number in range(COUNT):
        for partition in range(partitions):
            producer.produce(topic, value(partition, number), partition=partition, on_delivery=_sent)
        producer.poll(0)
        if number % 250 == 249:
            producer.flush(60)
    assert producer.flush(60) == 0


def _sent(error: object, _: object) -> None:
    assert error is None


def consume(broker: Broker, topic: str, partitions: int, level: str, start: int) -> dict[int, list[tuple[int, bytes]]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": level,
            "fetch.message.max.bytes": 100_000,
            "check.crcs": True,
        }
    )
    found: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(partitions)}
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition in found])
        while any(len(one) < COUNT - start for one in found.values()):
            message = consumer.poll(60)
            assert message is not None, {partition: len(one) for partition, one in found.items()}
            assert message.error() is None
            found[message.partition()].append((message.offset(), message.value()))
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("partitions", [1, 3])
def test_closed_segments_are_read_by_the_shard_byte_for_byte(partitions: int) -> None:
    with Broker(settings={"log.segment.bytes": 1 << 20}) as broker:
        topic = broker.new_topic(partitions)
        produce(broker, topic, partitions)
        broker.stop()  # the log cache is gone, the page cache is not
        broker.start()
        for level, start in (("read_uncommitted", 0), ("read_committed", 345)):
            assert consume(broker, topic, partitions, level, start) == {
                partition: [(number, value(partition, number)) for number in range(start, COUNT)]
                for partition in range(partitions)
            }
        metrics = read_exposition(f"{broker.about()['http']}/metrics", 10.0)
        assert metrics.value("millstream_page_reads_total") > 5 * partitions
