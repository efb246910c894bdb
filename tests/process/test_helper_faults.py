"""An exception in any verb of a real helper process: the broker and the other partitions serve on, and once the cause
is over the partition has everything that was acknowledged.
"""

import os
import re
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from helper_faults.sitecustomize import POINTS
from repairs_support import metric, records_in
from tiering import AT_ONCE, TIERED

from millstream.errors import MillstreamError
from millstream.events import EventsClient
from millstream.testing import Broker
from millstream.testing.stem import run_command
from waits import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SETTINGS = AT_ONCE | {"checkpoint.ms": 200, "log.cleaner.backoff.ms": 30}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "60",
    "min.cleanable.dirty.ratio": "0.001",
    "file.delete.delay.ms": "100",
}
TOPICS = {"fails": {}, "keyed": COMPACTED, "packed": {"compression.type": "zstd"}, "tiered": TIERED, "other": {}}
RECORDS = 40
FAILED = re.compile(r"millstream_partitions\{.*state=\"failed\".*\} ")
QUIET = {"log_level": 0}

ENDS = {"write", "read", "find", "index", "remove", "feed", "data", "name"}
"""Verbs whose exception ends the partition; the others are tried again, or refuse one request."""


@pytest.fixture(scope="module")
def point(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "point"


@pytest.fixture
def broker(point):
    where = {"MILLSTREAM_HELPER_FAULT": str(point)}
    path = os.pathsep.join((str(Path(__file__).parent / "helper_faults"), os.environ.get("PYTHONPATH", "")))
    with Broker(settings=SETTINGS, shards=1, env=where | {"PYTHONPATH": path}) as one:
        client = AdminClient({"bootstrap.servers": one.bootstrap} | QUIET)
        topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        for future in client.create_topics(topics).values():
            future.result(60)
        with EventsClient(one.bootstrap, timeout_s=60) as events:
            events.create_topic("events", partitions_count=1)
        yield one
    point.unlink(missing_ok=True)


def send(broker, topic, count=RECORDS, *, within_s=PATIENCE_S):
    """Send records as a stock client does; how many were acknowledged."""
    good = []
    settings = {"bootstrap.servers": broker.bootstrap, "message.timeout.ms": within_s * 1000, "batch.num.messages": 5}
    producer = Producer(settings | QUIET)
    for number in range(count):
        producer.produce(topic, bytes(3000), b"%d" % number, 0, lambda error, _: good.append(error is None))
    producer.flush(PATIENCE_S)
    return sum(good)


def failed(broker):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if FAILED.match(line)]
    return int(line.rpartition(" ")[2])


def path_of(broker, topic):
    """A part of the paths of a topic's files."""

    def labels():
        found = (broker.data_dir / "topics").glob("*/topic")
        return [label.parent.name for label in found if topic in label.read_text()]

    until(labels, topic)
    return labels()[0]


def read_until_failed(broker, topic):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "c"} | QUIET)
    consumer.assign([TopicPartition(topic, 0, 0)])
    until(lambda: consumer.poll(0) is None and failed(broker) == 1, "read")
    consumer.close()


def find_until_failed(broker, topic):
    client = AdminClient({"bootstrap.servers": broker.bootstrap} | QUIET)
    client.list_offsets({TopicPartition(topic, 0): OffsetSpec.for_timestamp(1)}, request_timeout=120)
    until(lambda: failed(broker) == 1, "find")


def push(broker):
    with EventsClient(broker.bootstrap, timeout_s=60) as client, client.open_topic("events").producer() as producer:
        futures = [producer.push({"n": n}, bytes(3000)) for n in range(RECORDS)]
    assert [future.result(60) for future in futures] == list(range(RECORDS))


def pull(broker, name, timeout_s=5):
    """How many events a new consumer gets, with their data."""
    found = 0
    with EventsClient(broker.bootstrap, timeout_s=timeout_s) as client:
        try:
            with client.open_topic("events").consumer(name) as consumer:
                while found < RECORDS:
                    found += len(b"".join(consumer.pull(timeout_s).data)) == 3000
        except (MillstreamError, TimeoutError):
            pass
    return found


def is_said(broker, text):
    return text in broker.log_path.read_text(errors="replace")


@pytest.mark.parametrize("name", list(POINTS))
def test_an_exception_in_a_verb_of_a_helper_ends_one_partition_at_most(broker, point, name):
    topic = {"inspect": "packed", "upload": "tiered", "feed": "events", "data": "events"}.get(name, "fails")
    topic = "keyed" if name in ("keys", "rewrite", "name", "forget", "remove") else topic
    if topic == "events":
        push(broker)
    elif name != "inspect":
        assert send(broker, topic) == RECORDS
    if name in ("read", "find", "feed", "data"):
        broker.restart()  # nothing of it is in memory
    point.write_text(f"{name}|{'' if name == 'inspect' else path_of(broker, topic)}")
    if name == "read":
        read_until_failed(broker, topic)
    elif name == "find":
        find_until_failed(broker, topic)
    elif topic == "events":
        pull(broker, "during")
    elif name == "directory":
        client = AdminClient({"bootstrap.servers": broker.bootstrap} | QUIET)
        client.delete_topics([topic])[topic].result(60)
    elif name == "inspect":
        assert send(broker, topic, within_s=15) == 0
    else:
        send(broker, topic, within_s=15)
    if name in ENDS:
        until(lambda: failed(broker) == 1, name)
    elif name != "inspect":
        until(lambda: is_said(broker, f"planted in {name}"), name)
    assert send(broker, "other") == RECORDS
    assert records_in(broker.bootstrap, "other") == RECORDS
    assert broker.running
    point.unlink()
    if name in ENDS:
        done = run_command("topic", "repair", f"{topic}:0", "--execute", "--bootstrap", broker.bootstrap)
        assert done.returncode == 0 and "is served again" in done.stderr, done
    assert failed(broker) == 0
    if name == "directory":
        until(lambda: not list((broker.data_dir / "topics").glob("*/deleted*")), "what was deleted stays")
    elif topic == "events":
        assert pull(broker, "after", 60) == RECORDS
    elif topic != "keyed":
        assert send(broker, topic) == RECORDS
        assert records_in(broker.bootstrap, topic) >= RECORDS
    else:
        assert records_in(broker.bootstrap, topic) >= RECORDS, "the last record of each key"
    if name == "upload":
        until(lambda: metric(broker, "millstream_archive_uploaded_bytes_total") > 0, "nothing was uploaded")
