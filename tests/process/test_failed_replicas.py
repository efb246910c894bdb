"""A replica that fails in a cluster of three: another leads, nothing acknowledged is lost, and a repair brings it back.
If every replica fails the partition is offline, and no broker is.
"""

import json
import os
import re
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from repairs_support import records_in

from millstream.client.connection import Connection
from millstream.testing import cluster
from millstream.testing.stem import run_command
from millstream.wire.messages import describe_topic_partitions as pages
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUIET = {"log_level": 0}
SETTINGS = {"internal.shard.hook": "fault_points:hook", "checkpoint.ms": 200, "auto.leader.rebalance.enable": False}
FAILED = re.compile(r"millstream_partitions\{.*state=\"failed\".*\} ")
RECORDS = 40


@pytest.fixture
def point(tmp_path, monkeypatch):
    path = tmp_path / "point"
    monkeypatch.setenv("MILLSTREAM_FAULT_POINT", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    return path


def send(three, topic, count=RECORDS, patience_ms=120_000):
    """Send records as a stock client does, again and again; how many were acknowledged."""
    good = []
    producer = Producer(
        {"bootstrap.servers": three.bootstrap, "message.timeout.ms": patience_ms, "batch.num.messages": 5} | QUIET
    )
    for number in range(count):
        producer.produce(
            topic, b'"%06d%s"' % (number, b"x" * 500), None, 0, lambda error, _: good.append(error is None)
        )
    producer.flush(patience_ms / 1000 + 60)
    return sum(good)


def failed(broker):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if FAILED.match(line)]
    return int(line.rpartition(" ")[2])


def repair(broker, *words, topic="fails"):
    return run_command("topic", "repair", f"{topic}:0", *words, "--bootstrap", broker.bootstrap)


def place(client, topic="fails"):
    """(leader, replicas in sync) of the partition."""
    with suppress(Exception):
        found = client.list_topics(topic, timeout=60).topics[topic].partitions[0]
        return found.leader, sorted(found.isrs)
    return -1, []


def offline(three):
    """What each broker that is up lists as offline replicas of the partition."""
    found = []
    for broker in three.brokers.values():
        host, port = broker.bootstrap.rsplit(":", 1)
        connection = Connection(host, int(port), timeout_s=60)
        request = pages.DescribeTopicPartitionsRequest([pages.TopicRequest("fails")])
        (topic,) = connection.call(request, pages.DescribeTopicPartitionsResponse, 0).topics
        found.append(topic.partitions[0].offline_replicas)
        connection.close()
    return found


def small_files(broker, topic):
    """The files that say what Raft remembers, of the only partition of a topic."""
    labels = (broker.data_dir / "topics").glob("*/topic")
    return [path for label in labels if topic in label.read_text() for path in label.parent.glob("*/epochs")]


def damage(three, node, topic):
    """Broker ``node`` starts with files of a topic that tell nothing."""
    until(lambda: small_files(three.brokers[node], topic))
    three.kill(node)
    (path,) = small_files(three.brokers[node], topic)
    path.write_bytes(b"no such file")
    three.restart(node)


def test_replicas_that_fail_one_after_the_other_lose_nothing_that_was_acknowledged(point):
    with cluster(3, SETTINGS, networks=False) as three:
        client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
        configs = {"min.insync.replicas": "2"}
        topics = [NewTopic(name, 1, 3, config=configs) for name in ("fails", "other")]
        topics.append(NewTopic("events", 1, 3, config=configs | {"topic.kind": "events"}))
        for future in client.create_topics(topics).values():
            future.result(120)
        assert send(three, "fails") == RECORDS

        # The leader fails: another one leads, and the client notices nothing.
        until(lambda: len(place(client)[1]) == 3)
        leader, _ = place(client)
        point.write_text("append|fails|once")
        assert send(three, "fails") == RECORDS
        assert not point.exists()
        until(lambda: failed(three.brokers[leader]) == 1)
        assert place(client)[0] not in (leader, -1)
        until(lambda: leader not in place(client)[1])
        with urllib.request.urlopen(f"{three.brokers[leader].http}/healthz", timeout=60) as answer:
            assert json.load(answer)["failed_partitions"] == ["fails:0"]
        until(lambda: offline(three) == [[leader]] * 3, lambda: offline(three))
        plan = repair(three.brokers[leader])
        assert plan.returncode == 0 and "open it again" in plan.stderr, plan
        done = repair(three.brokers[leader], "--execute")
        assert done.returncode == 0 and "is served again" in done.stderr, done
        until(lambda: len(place(client)[1]) == 3)
        until(lambda: offline(three) == [[]] * 3, lambda: offline(three))

        # The files of a replica tell nothing: its leader fills it, of a topic by itself, of events after a repair.
        assert send(three, "events") == RECORDS
        for topic in ("fails", "events"):
            until(lambda topic=topic: len(place(client, topic)[1]) == 3)
            leader, _ = place(client, topic)
            other = next(node for node in three.brokers if node != leader)
            damage(three, other, topic)
            if topic == "events":
                until(lambda other=other: failed(three.brokers[other]) == 1)
                plan = repair(three.brokers[other], topic=topic)
                assert plan.returncode == 0 and "filled by the partition's leader" in plan.stderr, plan
                done = repair(three.brokers[other], "--execute", topic=topic)
                assert done.returncode == 0 and "is served again" in done.stderr, done
            until(lambda topic=topic: len(place(client, topic)[1]) == 3, topic)
            assert send(three, topic) == RECORDS

        # Each leader fails: the partition is offline, no broker is.
        point.write_text("append|fails")
        assert send(three, "fails", 1, 30_000) == 0
        until(lambda: sum(map(failed, three.brokers.values())) >= 2)
        assert send(three, "other") == RECORDS
        point.unlink()
        for broker in three.brokers.values():
            if failed(broker):
                done = repair(broker, "--execute")
                assert done.returncode == 0, done
        until(lambda: len(place(client)[1]) == 3)
        assert send(three, "fails") == RECORDS
        assert records_in(three.bootstrap, "fails") >= 4 * RECORDS
        assert records_in(three.bootstrap, "other") == RECORDS
        assert not any(map(failed, three.brokers.values()))
