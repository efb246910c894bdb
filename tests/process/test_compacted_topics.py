"""Compacted topics on a real broker with a stock client: what a consumer sees, and what a kill leaves."""

import contextlib
import time
import urllib.request

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millstream.testing.process import Broker
from waits import until

pytestmark = pytest.mark.process

EAGER = {"log.cleaner.backoff.ms": 30}
"""A cleaner that looks again at once."""

SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "60",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "60",
    "file.delete.delay.ms": "100",
}
"""A topic of which everything is compacted almost at once."""


def create(broker, name, **config):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {**SOON, **{key.replace("_", "."): value for key, value in config.items()}}
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(60)


def produce(broker, topic, pairs, **options):
    """Write keys and values; every one acknowledged."""
    failed = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1, **options})
    for key, value in pairs:
        producer.produce(topic, value, key, on_delivery=lambda error, _: error and failed.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def consume(broker, topic):
    """Everything from offset 0 to the end, as (offset, key, value)."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
            "check.crcs": True,
        }
    )
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while True:
            message = consumer.poll(120)
            assert message is not None, "the consumer got nothing in 10 s"
            if message.error() is None:
                found.append((message.offset(), message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(message.error())


def metric(broker, name):
    """The sum of a metric over all shards."""
    with urllib.request.urlopen(f"{broker.http}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"millstream_{name}"))


def files(broker, pattern):
    return sorted(path.name for path in (broker.data_dir / "topics").rglob(pattern))


@pytest.mark.parametrize("codec", ["none", pytest.param("zstd", marks=pytest.mark.slow)])
def test_a_consumer_from_the_start_sees_exactly_the_last_values(broker_factory, codec):
    broker = broker_factory(shards=1, settings=EAGER)
    create(broker, "t")
    end = 0
    for turn in range(4):
        pairs = [(b"key %d" % key, b"%d" % turn * 50) for key in range(100)]
        produce(broker, "t", pairs, **{"compression.type": codec})
        end += len(pairs)
    gone = [(b"key %d" % key, None) for key in range(0, 100, 2)]
    produce(broker, "t", gone, **{"compression.type": codec})
    end += len(gone)
    wanted = {b"key %d" % key: b"3" * 50 for key in range(1, 100, 2)}

    def only_last_values():
        found = consume(broker, "t")
        values = {key: value for _, key, value in found}
        assert wanted.items() <= values.items(), "a last value is gone"
        assert not any(values.get(key) for key, _ in gone), "a deleted key is back"
        return len(found) == len(values) and found

    found = until(only_last_values, "each key once")
    assert [offset for offset, key, _ in found if key in wanted] == list(range(301, 400, 2))

    # Tombstones go with a later pass, which something has to be the reason for.
    for turn in range(1000):
        produce(broker, "t", [(b"clock", b"%d" % turn)])
        values = {key: value for _, key, value in consume(broker, "t")}
        if values.keys() == {*wanted, b"clock"}:
            break
    assert values == {**wanted, b"clock": b"%d" % turn}
    assert broker.stop() == 0
    broker.restart()
    assert {key: value for _, key, value in consume(broker, "t")} == values


def test_records_without_a_key_are_refused_and_the_rest_goes_on(broker_factory):
    broker = broker_factory(settings=EAGER, shards=2)
    create(broker, "t")
    create(broker, "free", cleanup_policy="delete")
    failed = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for topic in ("t", "free"):
        producer.produce(topic, b"no key", on_delivery=lambda error, message: failed.append((message.topic(), error)))
        producer.flush(60)
    assert [(topic, error and error.code()) for topic, error in failed] == [
        ("t", KafkaError.INVALID_RECORD),
        ("free", None),
    ]
    produce(broker, "t", [(b"", b"an empty key is one")])
    assert consume(broker, "t") == [(0, b"", b"an empty key is one")]


def test_a_kill_in_the_middle_of_a_compaction_loses_nothing(broker_factory, tmp_path):
    data = tmp_path / "data"
    wanted = {b"%d" % key: b"%d" % key * 2000 for key in range(100)}
    # Hundreds of kilobytes at a crawl: the cleaner is at it when the broker is killed.
    slow = {**EAGER, "log.cleaner.io.max.bytes.per.second": 100_000}
    with Broker(settings=slow, data_dir=data, shards=1) as broker:
        create(broker, "t")
        for turn in range(2):
            produce(broker, "t", [(key, value if turn else b"old" + value) for key, value in wanted.items()])
        until(lambda: files(broker, "*.log.cleaned"), "a compaction under way")
        broker.kill()
    assert files(broker, "*.log.cleaned")
    with Broker(settings=EAGER, data_dir=data, shards=1) as broker:
        assert not files(broker, "*.cleaned")
        found = consume(broker, "t")
        assert {key: value for _, key, value in found} == wanted
        until(lambda: len(consume(broker, "t")) == len(wanted), "each key once")
        assert {key: value for _, key, value in consume(broker, "t")} == wanted
        assert [offset for offset, _, _ in consume(broker, "t")] == list(range(100, 200))
        broker.kill()
        broker.restart()
        assert {key: value for _, key, value in consume(broker, "t")} == wanted


def test_old_files_are_removed_after_the_delay(broker_factory):
    broker = broker_factory(shards=1, settings=EAGER)
    create(broker, "t")
    produce(broker, "t", [(b"k", b"%d" % n) for n in range(200)])

    def one_record_in_one_file():
        if len(consume(broker, "t")) != 1:
            return None
        logs = [name for name in files(broker, "*.log") if name.startswith("0")]
        return len(logs) == 1 and logs

    (name,) = until(one_record_in_one_file, "one record in one file")
    assert name.count(".") == 2, "a generation in its name"
    produce(broker, "t", [(b"k", b"last")])
    assert consume(broker, "t")[-1] == (200, b"k", b"last")


@pytest.mark.slow
def test_an_idempotent_producer_is_recognised_after_compaction_and_a_kill(broker_factory):
    broker = broker_factory(shards=1, settings=EAGER)
    create(broker, "t")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def write(value):
        failed = []
        producer.produce("t", value, b"k", on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(60) == 0
        assert not failed

    for n in range(20):
        write(b"%d" % n)
    produce(broker, "t", [(b"k", b"somebody else's")])
    until(lambda: len(consume(broker, "t")) == 1, "one record")
    broker.kill()
    for snapshot in (broker.data_dir / "topics").rglob("*.producers"):
        snapshot.unlink()
    broker.restart()
    write(b"the same producer again")
    assert consume(broker, "t")[-1][1:] == (b"k", b"the same producer again")


def test_group_offsets_survive_compaction_and_a_kill(broker_factory):
    broker = broker_factory(topics={"t": 4}, shards=1, settings={**EAGER, "offsets.topic.num.partitions": 1})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    with contextlib.closing(consumer):
        for offset in range(1, 60):
            consumer.commit(offsets=[TopicPartition("t", n, offset * 10 + n) for n in range(4)], asynchronous=False)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        internal = ConfigResource(ResourceType.TOPIC, "__consumer_offsets")
        described = admin.describe_configs([internal])[internal].result(60)
        assert described["cleanup.policy"].value == "compact"
        assert described["segment.bytes"].value == str(100 << 20)
        changed = [
            ConfigEntry(name, SOON[name], incremental_operation=AlterConfigOpType.SET)
            for name in ("segment.ms", "min.cleanable.dirty.ratio", "delete.retention.ms")
        ]
        resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets", incremental_configs=changed)
        admin.incremental_alter_configs([resource])[resource].result(60)
        consumer.commit(offsets=[TopicPartition("t", 3, 7777)], asynchronous=False)
        until(lambda: metric(broker, "log_cleaner_removed_records_total") > 200, "old commits are gone")
    broker.kill()
    broker.restart()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = ConsumerGroupTopicPartitions("g")
    offsets = admin.list_consumer_group_offsets([asked])["g"].result(60).topic_partitions
    assert {(one.partition, one.offset) for one in offsets} == {(0, 590), (1, 591), (2, 592), (3, 7777)}


def test_what_is_trimmed_and_deleted_stays_gone(broker_factory):
    """compact,delete: retention deletes what is old, compaction keeps the last of the rest."""
    broker = broker_factory(shards=1, settings={**EAGER, "log.retention.check.interval.ms": 50})
    create(broker, "t", cleanup_policy="compact,delete", retention_ms="3600000")
    hour_ago = int(time.time() * 1000) - 2 * 3_600_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(50):
        producer.produce("t", b"%d" % n, b"old %d" % n, timestamp=hour_ago)
    assert producer.flush(60) == 0
    time_of_roll = until(lambda: metric(broker, "segments_rolled_total"), "the old segment is sealed")
    assert time_of_roll
    produce(broker, "t", [(b"k", b"%d" % n) for n in range(50)])
    until(lambda: [key for _, key, _ in consume(broker, "t")] == [b"k"], "only what is new, once")
    broker.kill()
    broker.restart()
    assert [key for _, key, _ in consume(broker, "t")] == [b"k"]


@pytest.mark.slow
def test_deleting_a_topic_and_stopping_end_its_compaction(broker_factory):
    broker = broker_factory(shards=1, settings={**EAGER, "log.cleaner.io.max.bytes.per.second": 200_000})
    create(broker, "t")
    produce(broker, "t", [(b"%d" % (n % 50), b"v" * 1000) for n in range(500)])
    until(lambda: files(broker, "*.log.cleaned"), "a compaction under way")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["t"])["t"].result(60)
    until(lambda: not list((broker.data_dir / "topics").iterdir()), "the topic's directory is gone")

    create(broker, "u")
    produce(broker, "u", [(b"%d" % (n % 50), b"v" * 1000) for n in range(500)])
    until(lambda: files(broker, "*.log.cleaned"), "another compaction under way")
    assert broker.stop() == 0
    assert not files(broker, "*.cleaned"), "an orderly stop leaves nothing unfinished"
