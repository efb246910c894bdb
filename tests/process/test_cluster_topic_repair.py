"""``topic repair`` on three brokers, of files that a start cannot read: of the only replica, which is cut back, and of
a replica that was the leader, which the new leader fills.
"""

import json
import urllib.request

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from repairs_support import QUIET, records_in

from millstream.testing import cluster
from millstream.testing.stem import run_command
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]

RECORDS = 200
SETTINGS = {"checkpoint.ms": 200, "auto.leader.rebalance.enable": False}
TOPICS = {
    "alone": (1, {"internal.segment.bytes": "20000"}),
    "events": (3, {"topic.kind": "events", "min.insync.replicas": "2"}),
}


def send(three, topic):
    good = []
    producer = Producer(
        {"bootstrap.servers": three.bootstrap, "message.timeout.ms": 60_000, "batch.num.messages": 10} | QUIET
    )
    for number in range(RECORDS):
        producer.produce(
            topic, b'"%06d%s"' % (number, b"x" * 500), None, 0, lambda error, _: good.append(error is None)
        )
    producer.flush(120)
    return sum(good)


def place(three, topic):
    part = (
        AdminClient({"bootstrap.servers": three.bootstrap} | QUIET).list_topics(timeout=60).topics[topic].partitions[0]
    )
    return part.leader, sorted(part.isrs)


def directories(broker, topic):
    """Of the partition's files."""
    labels = (broker.data_dir / "topics").glob("*/topic")
    homes = [label.parent for label in labels if label.read_text().split("\n")[0].strip() == topic]
    return [path for home in homes for path in home.iterdir() if path.is_dir()]


def repair(broker, topic, *words):
    return run_command("topic", "repair", f"{topic}:0", *words, "--bootstrap", broker.bootstrap)


def failed(broker):
    with urllib.request.urlopen(f"{broker.http}/healthz", timeout=60) as answer:
        return json.load(answer)["failed_partitions"]


def test_a_repair_cuts_the_only_replica_back_and_fills_one_that_was_the_leader():
    with cluster(3, settings=SETTINGS, networks=False) as three:
        client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
        new = [NewTopic(name, 1, replicas, config=config) for name, (replicas, config) in TOPICS.items()]
        for future in client.create_topics(new).values():
            future.result(60)
        for topic in TOPICS:
            assert send(three, topic) == RECORDS

        owner, _ = place(three, "alone")
        broker = three.brokers[owner]
        (directory,) = directories(broker, "alone")
        until(lambda: len(list(directory.glob("*.log"))) > 5, "segments are written")
        assert broker.stop() == 0  # in order, so that the write-ahead log does not mend what is damaged
        path = max(path for path in directory.glob("*.log") if path.stat().st_size)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        three.restart(owner)
        until(lambda: failed(broker), lambda: broker.log_path.read_text()[-3000:])
        refused = repair(broker, "alone", "--unclean", "--from", str(owner))
        assert refused.returncode and "one replica alone" in refused.stderr, refused
        plan = repair(broker, "alone")
        assert plan.returncode == 0 and "cut it back to its last sound batch" in plan.stderr, plan
        done = repair(broker, "alone", "--execute")
        assert done.returncode == 0 and "is served again" in done.stderr, done
        lost = int(done.stderr.split(" records are lost")[0].rsplit(None, 1)[-1])
        assert 0 < lost < RECORDS
        assert records_in(three.bootstrap, "alone") == RECORDS - lost
        assert send(three, "alone") == RECORDS

        until(lambda: len(place(three, "events")[1]) == 3, "all are in sync")
        leader, _ = place(three, "events")
        three.kill(leader)
        (directory,) = directories(three.brokers[leader], "events")
        (directory / "epochs").write_bytes(b"no such file")
        three.restart(leader)
        until(lambda: failed(three.brokers[leader]), "the former leader does not serve it")
        plan = repair(three.brokers[leader], "events")
        assert plan.returncode == 0 and "filled by the partition's leader" in plan.stderr, plan
        done = repair(three.brokers[leader], "events", "--execute")
        assert done.returncode == 0 and "is served again" in done.stderr, done
        until(lambda: len(place(three, "events")[1]) == 3, "it is filled")
        assert send(three, "events") == RECORDS
        assert not any(map(failed, three.brokers.values()))
