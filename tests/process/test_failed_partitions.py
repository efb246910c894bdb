"""A fault in a verb of one partition, in a real broker: the others serve on, every door names it, the next start and
``topic repair`` bring it back with what was acknowledged.
"""

import json
import re
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from fault_points import POINTS
from repairs_support import records_in

from millstream.testing.stem import run_command
from waits import until

pytestmark = pytest.mark.process

RECORDS = 40
FAILED = re.compile(r"millstream_partitions\{.*state=\"failed\".*\} ")


@pytest.fixture
def point(tmp_path):
    return tmp_path / "point"


@pytest.fixture
def broker(broker_factory, point):
    return broker_factory(
        topics={"fails": 1, "other": 1},
        shards=1,
        settings={"internal.shard.hook": "fault_points:hook", "checkpoint.ms": 200},
        env={"MILLSTREAM_FAULT_POINT": str(point), "PYTHONPATH": str(Path(__file__).parent)},
    )


def send(broker, topic, count=1):
    """Send records; the errors that they get."""
    errors = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "retries": 0, "message.timeout.ms": 60_000, "acks": -1})
    for number in range(count):
        producer.produce(topic, b"%d" % number + bytes(3000), partition=0, on_delivery=lambda e, _: errors.append(e))
    producer.flush(120)
    return [error.code() for error in errors if error is not None]


def trigger(broker, point):
    """Make the verb run."""
    if point == "read":
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "c"})
        consumer.assign([TopicPartition("fails", 0, 0)])
        until(lambda: consumer.poll(0.2) is not None or failed(broker), "nothing was read")
        consumer.close()
    elif point == "change of its configuration":
        client = AdminClient({"bootstrap.servers": broker.bootstrap})
        entry = ConfigEntry("retention.ms", "100000000", incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ConfigResource.Type.TOPIC, "fails", incremental_configs=[entry])
        for future in client.incremental_alter_configs([change]).values():
            future.result(60)
    else:
        send(broker, "fails")


def failed(broker):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if FAILED.match(line)]
    return int(line.rpartition(" ")[2])


def cli(broker, *words):
    return run_command(*words, "--bootstrap", broker.bootstrap)


PLANTED = ["append", "read", "commit", "checkpoint", "write behind", "change of its configuration"]


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_a_verb_ends_one_partition_which_comes_back_whole(broker, point, name):
    assert name in POINTS
    assert send(broker, "fails", RECORDS) == []
    point.write_text(f"{name}|fails")
    trigger(broker, name)
    until(lambda: failed(broker) == 1)
    assert send(broker, "other", RECORDS) == []
    assert records_in(broker.bootstrap, "other") == RECORDS
    assert KafkaError.KAFKA_STORAGE_ERROR in send(broker, "fails")
    with urllib.request.urlopen(f"{broker.http}/healthz", timeout=60) as answer:
        assert (answer.status, json.load(answer)["failed_partitions"]) == (200, ["fails:0"])
    with urllib.request.urlopen(f"{broker.http}/v1/cluster", timeout=60) as answer:
        status = json.load(answer)
    assert not status["healthy"] and "fails:0" in status["problems"][-1]
    point.unlink()
    if name in ("append", "commit"):
        plan = cli(broker, "topic", "repair", "fails:0")
        assert plan.returncode == 0 and "nothing was changed" in plan.stderr, plan
        assert failed(broker) == 1
        done = cli(broker, "topic", "repair", "fails:0", "--execute")
        assert done.returncode == 0 and "is served again" in done.stderr, done
    elif name == "checkpoint":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    assert failed(broker) == 0
    assert records_in(broker.bootstrap, "fails") >= RECORDS
    assert send(broker, "fails") == []
    assert cli(broker, "topic", "repair", "fails:0").returncode != 0, "there is nothing to repair"


def test_a_directory_that_another_program_removed_ends_one_partition(broker):
    for topic in ("fails", "other"):
        assert send(broker, topic, RECORDS) == []
    (index,) = until(lambda: [path for path in (broker.data_dir / "topics").rglob("*.index") if is_of(path, "fails")])
    index.parent.rename(broker.data_dir / "taken")
    until(lambda: send(broker, "fails") is not None and failed(broker) == 1)
    assert KafkaError.KAFKA_STORAGE_ERROR in send(broker, "fails")
    assert send(broker, "other", RECORDS) == []
    broker.restart()
    assert records_in(broker.bootstrap, "other") == 2 * RECORDS
    assert send(broker, "other") == []


def is_of(path, topic):
    """Whether a file is in a partition of a topic."""
    return (path.parent.parent / "topic").read_text().strip() == topic
