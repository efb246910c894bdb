"""MirrorMaker 2, from Kafka's jars, between two brokers: what ``connect-mirror-maker.sh`` runs.

The source is the suite's broker, the target another broker of the same kind. MirrorMaker copies a topic with its
settings, translates the committed offsets of a group, and compares access control lists. Every record has to arrive
once and in order, the group has to go on in the target where it was in the source, and MirrorMaker may log no ERROR.
"""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from bench.peers import kafka as peer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    NewTopic,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from conformance.checks import Bench, Check, CheckFailed
from conformance.java_apps import Connect, application_command, started, write_properties
from millstream.testing import broker

MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
TOPIC, GROUP = "mirrored", "readers-of-mirrored"
COPY = f"here.{TOPIC}"
COUNT = 2_000
READ = 700
LIMIT_S = 120.0
ERROR = re.compile(r"\[.*\] ERROR ")
"""Beginning of a line of Java's log: thread, level, class."""


def a_topic_and_a_group_are_mirrored_without_an_error(bench: Bench) -> None:
    _fill(bench.bootstrap)
    _read(bench.bootstrap, READ)
    said = bench.folder / "mirror-maker.log"
    with _target(bench) as target:
        properties = write_properties(bench.folder / "mirror.properties", _properties(bench.bootstrap, target))
        command = application_command(bench, MIRROR_MAKER, properties, heap="512m")
        with started(bench, command, said) as process:
            deadline = time.monotonic() + LIMIT_S * bench.patience
            _wait("the topic appears", lambda: COPY in _topics(target), process, said, deadline)
            _wait("all records are copied", lambda: _end(target, COPY) == COUNT, process, said, deadline)
            _wait("the group's offset is translated", lambda: _committed(target) > 0, process, said, deadline)
        values = _values(target)
        committed = _committed(target)
        retention = _setting(target, "retention.ms")
    assert values == [b"%d" % number for number in range(COUNT)], "the copy differs from the topic"
    assert 0 < committed <= READ, f"the group is at {committed} in the target, and at {READ} in the source"
    assert retention == "7200000", f"retention.ms is {retention} in the target"
    errors = [line for line in said.read_text(encoding="utf-8", errors="replace").splitlines() if ERROR.match(line)]
    assert not errors, f"MirrorMaker logged {len(errors)} errors: {errors[0]}"


@contextlib.contextmanager
def _target(bench: Bench) -> Generator[str]:
    """The address of an empty broker of the same kind as the suite's."""
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(peer.kafka() if bench.is_peer else broker(settings={"shards": "1"}))
        yield other.bootstrap


def _properties(source: str, target: str) -> dict[str, str]:
    single = ("replication.factor", "checkpoints.topic.replication.factor", "heartbeats.topic.replication.factor")
    single += ("offset-syncs.topic.replication.factor", "offset.storage.replication.factor")
    single += ("status.storage.replication.factor", "config.storage.replication.factor")
    return {
        "clusters": "here, there",
        "here.bootstrap.servers": source,
        "there.bootstrap.servers": target,
        "here->there.enabled": "true",
        "here->there.topics": TOPIC,
        "here->there.groups": GROUP,
        "there->here.enabled": "false",
        "sync.topic.acls.enabled": "true",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "2",
        "offset.lag.max": "10",
        "consumer.auto.offset.reset": "earliest",
        **dict.fromkeys(single, "1"),
    }


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(TOPIC, 1, 1, config={"retention.ms": "7200000"})])
    created[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(60) == 0, "the records to mirror were not written"


def _read(bootstrap: str, count: int) -> None:
    """Commits as a consumer that has read ``count`` records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, count)], asynchronous=False)
    consumer.close()


def _wait(what: str, holds: Callable[[], bool], process: "subprocess.Popen[bytes]", said: Path, until: float) -> None:
    while not holds():
        last = said.read_text(encoding="utf-8", errors="replace")[-300:]
        if process.poll() is not None:
            raise CheckFailed(f"MirrorMaker ended with {process.returncode} before {what}: {last}")
        if time.monotonic() > until:
            raise CheckFailed(f"MirrorMaker was given up on before {what}: {last}")
        time.sleep(0.5)


def _topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


def _end(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
    finally:
        consumer.close()


def _committed(bootstrap: str) -> int:
    """The group's committed offset in the copy; negative if it has none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(GROUP, [TopicPartition(COPY, 0)])]
    found = admin.list_consumer_group_offsets(asked)[GROUP].result(10).topic_partitions
    return found[0].offset if found else -1


def _setting(bootstrap: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, COPY)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(10)
    return str(found[name].value)


def _values(bootstrap: str) -> list[bytes]:
    """Every value of the copy, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False})
    consumer.assign([TopicPartition(COPY, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    try:
        while len(found) < COUNT and time.monotonic() < deadline:
            found += [message.value() or b"" for message in consumer.consume(1_000, 0.5) if message.error() is None]
    finally:
        consumer.close()
    return found


class MirrorMaker(Connect):
    """The suite; it has one check."""

    name = "mirror-maker"
    about = "MirrorMaker 2 from one broker to another"

    def checks(self) -> Sequence[Check]:
        return (a_topic_and_a_group_are_mirrored_without_an_error,)
