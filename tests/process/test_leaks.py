"""Fragments: freed ones are overwritten, and none may be missing when a shard has stopped."""

import socket

import pytest
from bench import raw
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

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


def test_batches_that_are_opened_lose_no_fragment_and_read_no_poison(poisoned):
    """Of every size and codec, compressed anew and back, on both shards; with some under way when the broker stops."""
    broker = poisoned
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topics = {name: NewTopic(name, 2, config={"compression.type": name}) for name in ("zstd", "gzip", "uncompressed")}
    for made in admin.create_topics(list(topics.values())).values():
        made.result(60)
    values = [bytes([i % 251]) * size for i, size in enumerate([10, 1_000, 60_000, 200_000, 700_000] * 4)]
    for codec in ("none", "lz4", "zstd"):
        settings = {"message.max.bytes": 900_000, "linger.ms": 1, "compression.codec": codec, "log_level": 0}
        producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        for name in topics:
            for i, value in enumerate(values):
                producer.produce(name, value, f"{codec}-{i}", partition=i % 2)
                producer.poll(0)
        assert producer.flush(60) == 0
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "leaks", "enable.auto.commit": False, "log_level": 0}
    )
    for name in topics:
        consumer.assign([TopicPartition(name, index, 0) for index in (0, 1)])
        seen = {}
        while len(seen) < 3 * len(values):
            messages = consumer.consume(3 * len(values) - len(seen), 30)
            assert messages, f"{name}: {3 * len(values) - len(seen)} records did not come"
            for message in messages:
                assert message.error() is None
                seen[message.key().decode()] = message.value()
        assert seen == {f"{codec}-{i}": value for codec in ("none", "lz4", "zstd") for i, value in enumerate(values)}
    consumer.close()
    for value in values * 3:  # nobody waits for these
        producer.produce("gzip", value, partition=0)
    producer.poll(0.05)
    assert broker.stop() == 0
    assert errors(broker) == []
