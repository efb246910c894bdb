"""Topics that are archived at once, in small segments, and a stock client for them."""

import contextlib
import json
import threading
import time
import urllib.request

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)

from millstream.testing.stem import run_command
from waits import PATIENCE_S

AT_ONCE = {"log.retention.check.interval.ms": 100, "checkpoint.ms": 500}
TIERED = {
    "storage.mode": "tiered",
    "internal.segment.bytes": "20000",
    "retention.ms": "-1",
    "retention.local.target.ms": "0",
    "file.delete.delay.ms": "100",
}
RECORDS = 300


def ask(broker, verb, question, key):
    """One administrative request, with its answer for one key."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    return getattr(client, verb)(question)[key].result(60)


def create(broker, name, partitions=1, **config):
    settings = {**TIERED, **{key.replace("_", "."): str(value) for key, value in config.items()}}
    ask(broker, "create_topics", [NewTopic(name, partitions, 1, config=settings)], name)


def value(number):
    return b"%06d " % number + bytes(range(33, 123)) * 8


def produce(broker, topic, numbers, partition=0):
    failed = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2})
    for number in numbers:
        producer.produce(
            topic,
            value(number),
            b"key %d" % number,
            partition,
            timestamp=1_700_000_000_000 + number,
            on_delivery=lambda error, _: error and failed.append(error),
        )
        if number % 10 == 9:
            producer.flush(60)
    assert producer.flush(60) == 0
    assert not failed


def consume(broker, topic, partition=0, start=0, patience_s=PATIENCE_S):
    """(offset, key, value, timestamp) of everything from an offset to the end."""
    options = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "nobody",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 5,
        "check.crcs": True,
        "max.partition.fetch.bytes": 30_000,
    }
    found, end = [], time.monotonic() + patience_s
    with contextlib.closing(Consumer(options)) as consumer:
        consumer.assign([TopicPartition(topic, partition, start)])
        while time.monotonic() < end:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                found.append((message.offset(), message.key(), message.value(), message.timestamp()[1]))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(message.error())
    raise AssertionError(f"only {len(found)} records in {patience_s} s")


def expected(numbers):
    return [(number, b"key %d" % number, value(number), 1_700_000_000_000 + number) for number in numbers]


def offset_of(broker, topic, spec, partition=0):
    where = TopicPartition(topic, partition)
    return ask(broker, "list_offsets", {where: spec}, where).offset


def local_bases(broker):
    topics = broker.data_dir / "topics"
    return sorted(int(path.name[:20]) for path in topics.rglob("*.log"))


def archived(broker):
    return sorted((broker.data_dir / "objects" / "topics").rglob("*.segment"))


def metric(broker, name):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def only_the_tail_is_local(broker):
    return len(local_bases(broker)) <= 1 and local_bases(broker) != [0]


def tier(broker, *arguments, code=0):
    """A command of ``millstream tier``; its JSON. It has to end with ``code``; None stands for any."""
    done = run_command("tier", *arguments, "--json", "--bootstrap", broker.bootstrap)
    assert code in {None, done.returncode}, done.stdout + done.stderr
    return json.loads(done.stdout)


def leader(broker):
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topics = client.list_topics(timeout=60).topics
    return topics["copies"].partitions[0].leader if "copies" in topics else -1


class InBackground(threading.Thread):
    """Something that goes on beside the test; `join` raises what it raised."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self._work, self._error, self.result = work, None, None
        self.start()

    def run(self):
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001  # raised again by the test
            self._error = error

    def check(self):
        """Raise what it raised so far."""
        if self._error is not None:
            raise self._error

    def join(self, timeout=None):
        super().join(timeout)
        self.check()
        assert not self.is_alive(), "it does not end"
        return self.result
