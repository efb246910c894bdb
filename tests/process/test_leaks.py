"""Fragments: freed ones are overwritten, and none may be missing when a shard has stopped."""

import socket

import pytest
from bench import raw
from confluent_kafka import Consumer, Producer, TopicPartition

pytestmark = pytest.mark.process


@pytest.fixture
def poisoned(broker_factory):
    return broker_factory(
        topics={"t": 4}, shards=2, memory="64MiB", settings={"internal.arena.poison": "true", "num.partitions": 2}
    )


def errors(broker):
    return [line for line in broker.log_path.read_text().splitlines() if " ERROR " in line]


def test_no_fragment_is_lost_and_no_poison_is_read(poisoned):
    """Whole and chained frames, both shards, cached and cold reads, clients that vanish in the middle of both."""
    broker = poisoned
    values = [bytes([i % 251]) * size for i, size in enumerate([10, 1_000, 60_000, 200_000, 700_000] * 12)]
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 900_000, "linger.ms": 1, "log_level": 0}
    )
    for i, value in enumerate(values):
        producer.produce("t", value, str(i), partition=i % 4)
        producer.poll(0)
    assert producer.flush(60) == 0
    for index in range(4):  # answers that nobody takes, requests that never end
        request, _ = raw.fetch("t", index, 1 << 20)
        host, port = broker.bootstrap.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(request * 20 + raw.produce("t", index, raw.batch([b"x" * 300_000]))[:150_000])
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "leaks", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition("t", index, 0) for index in range(4)])
    seen = {}
    while len(seen) < len(values):
        messages = consumer.consume(len(values) - len(seen), 30)
        assert messages, f"{len(values) - len(seen)} records did not come"
        for message in messages:
            assert message.error() is None
            seen[int(message.key())] = message.value()
    assert seen == dict(enumerate(values))
    consumer.close()
    assert broker.stop() == 0
    assert errors(broker) == []
