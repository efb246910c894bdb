"""A replica that is sent its leader's files is killed at every step: it comes up with the old log or the new one."""

from contextlib import suppress
from pathlib import Path

import pytest
from adopt_kill_hook import STEPS
from cluster_faults import batches
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import BrokerFailed, cluster
from waits import PATIENCE_S, until

QUIET = {"log_level": 0}
TOPIC = "installed"
SETTINGS = {
    "checkpoint.ms": 300,
    "log.retention.check.interval.ms": 300,
    "auto.leader.rebalance.enable": False,
    "internal.disk.factory": "adopt_kill_hook:disk",
}
RECORDS = 150

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1400)]


def send(bootstrap, start):
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 5} | QUIET)
    for number in range(start, start + RECORDS):
        value = b"%06d" % number + bytes(500)
        producer.produce(TOPIC, value, None, 0, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0.001)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed


def names(broker):
    """Everything beside the partition, and its segments."""
    (topic,) = {path.parent for path in (broker.data_dir / "topics").glob("*/topic") if TOPIC in path.read_text()}
    beside = [path.name for path in topic.iterdir() if path.name not in ("0", "topic")]
    return beside, sorted(int(path.name[:20]) for path in (topic / "0").glob("*.log"))


def in_sync(client):
    with suppress(Exception):
        return len(client.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].isrs) == 3
    return False


def leave_behind(three, client, end):
    """Broker 2 is down: write, and delete everything that it has."""
    send(three.bootstrap, end)
    start = end + RECORDS - 60
    client.delete_records([TopicPartition(TOPIC, 0, start)])[TopicPartition(TOPIC, 0)].result(PATIENCE_S)
    for node in (1, 3):
        until(lambda node=node: names(three.brokers[node])[1][0] > end, "what it has is gone")


def test_a_broker_that_is_killed_at_any_step_of_an_install_has_the_old_log_or_the_new_one(tmp_path, monkeypatch):
    at, aside = tmp_path / "step", tmp_path / "aside"
    monkeypatch.setenv("MILLSTREAM_KILL_AT", str(at))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with cluster(3, settings=SETTINGS) as three:
        client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
        new = NewTopic(TOPIC, 1, replica_assignment=[[1, 3, 2]], config={"internal.segment.bytes": "10000"})
        client.create_topics([new])[TOPIC].result(60)
        send(three.bootstrap, 0)
        until(lambda: in_sync(client), "all are in sync")
        two = three.brokers[2]
        for number, name in enumerate(STEPS, 1):
            three.kill(2)
            leave_behind(three, client, number * RECORDS)
            aside.write_text(name)
            aside.replace(at)
            with suppress(BrokerFailed):  # it is killed before it serves
                three.restart(2)
            until(lambda: not at.exists(), name)
            three.kill(2)  # collects the process
            beside, segments = names(two)
            assert segments or any(".staged" in one for one in beside), f"{name}: neither log is there"
            three.restart(2)
            until(lambda: in_sync(client), f"{name}: all are in sync again")
            until(lambda: not names(two)[0], f"{name}: nothing is left beside the log")
            log = two.log_path.read_text()
            assert " ERROR " not in log and "put aside" not in log, name
        for broker in three.brokers.values():
            assert broker.stop() == 0
        start = len(STEPS) * RECORDS + RECORDS - 60
        kept = [[one for one in batches(each.data_dir, 0) if one[1] >= start] for each in three.brokers.values()]
        assert kept[0] and kept[0] == kept[1] == kept[2]
        assert kept[0][-1][1] == (len(STEPS) + 1) * RECORDS - 1
