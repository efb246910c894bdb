"""MirrorMaker 2, from Kafka's jars, between two brokers: what ``connect-mirror-maker.sh`` runs.

The source is the suite's broker, the target another broker of the same kind. MirrorMaker copies a topic with its
settings, translates the committed offsets of a group, and compares access control lists. Every record has to arrive
once and in order, the group has to go on in the target where it was in the source, and MirrorMaker may log no ERROR.
The second check takes its properties from the page on moving, so that what the page says is what was tried.
"""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.peers import kafka as peer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    NewTopic,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from conformance.checks import Bench, Check, CheckFailed
from conformance.java_apps import JavaApps, application_command, started, write_properties
from millstream.testing import broker

MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
TOPIC, GROUP = "mirrored", "readers-of-mirrored"
MOVED = "moved"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "moving.md"
COUNT = 2_000
READ = 700
LIMIT_S = 120.0
ERROR = re.compile(r"\[.*\] ERROR ")
"""Beginning of a line of Java's log: thread, level, class."""


class Copied(NamedTuple):
    """A topic of the source, its copy in the target, and the group that reads it."""

    topic: str
    copy: str
    group: str


def a_topic_and_a_group_are_mirrored_without_an_error(bench: Bench) -> None:
    with _target(bench) as target:
        _mirror(bench, target, _properties(bench.bootstrap, target), Copied(TOPIC, f"here.{TOPIC}", GROUP))


def the_properties_of_the_page_on_moving_keep_names_and_positions(bench: Bench) -> None:
    found = re.search(r"```properties\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, "the page has no properties"
    lines = [line for line in found[1].splitlines() if line and not line.startswith("#")]
    properties = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    with _target(bench) as target:
        for cluster, address in (("kafka", bench.bootstrap), ("millstream", target)):
            assert f"{cluster}.bootstrap.servers" in properties, f"the page names no address of {cluster}"
            properties[f"{cluster}.bootstrap.servers"] = address
        _mirror(bench, target, properties, Copied(MOVED, MOVED, f"readers-of-{MOVED}"))


def _mirror(bench: Bench, target: str, wanted: dict[str, str], copied: Copied) -> None:
    """Copy a topic, and compare."""
    copy = copied.copy
    said = bench.folder / "mirror-maker.log"
    _fill(bench.bootstrap, copied.topic)
    _read(bench.bootstrap, copied, READ)
    properties = write_properties(bench.folder / "mirror.properties", wanted)
    command = application_command(bench, MIRROR_MAKER, properties, heap="512m")
    with started(bench, command, said) as process:
        deadline = time.monotonic() + LIMIT_S * bench.patience
        _wait("the topic appears", lambda: copy in _topics(target), process, said, deadline)
        _wait("all records are copied", lambda: _end(target, copy) == COUNT, process, said, deadline)
        _wait("the group's offset is translated", lambda: _committed(target, copied) > 0, process, said, deadline)
    values = _values(target, copy)
    committed = _committed(target, copied)
    retention = _setting(target, copy, "retention.ms")
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


def _fill(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "7200000"})])
    created[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0, "the records to mirror were not written"


def _read(bootstrap: str, copied: Copied, count: int) -> None:
    """Commits as a consumer that has read ``count`` records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": copied.group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(copied.topic, 0, count)], asynchronous=False)
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


def _committed(bootstrap: str, copied: Copied) -> int:
    """The group's committed offset in the copy; negative if it has none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(copied.group, [TopicPartition(copied.copy, 0)])]
    found = admin.list_consumer_group_offsets(asked)[copied.group].result(10).topic_partitions
    return found[0].offset if found else -1


def _setting(bootstrap: str, copy: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, copy)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(10)
    return str(found[name].value)


def _values(bootstrap: str, copy: str) -> list[bytes]:
    """Every value of the copy, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False})
    consumer.assign([TopicPartition(copy, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    try:
        while len(found) < COUNT and time.monotonic() < deadline:
            found += [message.value() or b"" for message in consumer.consume(1_000, 0.5) if message.error() is None]
    finally:
        consumer.close()
    return found


class MirrorMaker(JavaApps):
    """The suite."""

    name = "mirror-maker"
    about = "MirrorMaker 2 from one broker to another"

    def checks(self) -> Sequence[Check]:
        return (
            a_topic_and_a_group_are_mirrored_without_an_error,
            the_properties_of_the_page_on_moving_keep_names_and_positions,
        )
