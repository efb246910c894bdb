"""Brokers whose files are gone or damaged get everything again from the others, without a person."""

import re
import shutil
import time

import pytest
from cluster_faults import batches
from cluster_support import partitions
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from repairs_support import QUIET, in_sync, metric

from millstream.testing import cluster
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

SETTINGS = {"checkpoint.ms": 300, "log.cleaner.backoff.ms": 200}
SMALL = {"internal.segment.bytes": "20000"}
COMPACTED = {
    **SMALL,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "500",
    "segment.ms": "300",
}
RECORDS = 400


@pytest.fixture
def three(request):
    with cluster(3, settings=SETTINGS | getattr(request, "param", {})) as made:
        yield made


def create(three, topic, config):
    client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
    client.create_topics([NewTopic(topic, 1, 3, config=config)])[topic].result(60)


def send(three, topic, numbers, keys=None):
    failed = []
    producer = Producer({"bootstrap.servers": three.bootstrap, "linger.ms": 0, "batch.num.messages": 20} | QUIET)
    for number in numbers:
        key = None if keys is None else b"%d" % (number % keys)
        value = b"%06d" % number + bytes(500)
        producer.produce(topic, value, key, 0, on_delivery=lambda error, _: failed.append(error) if error else None)
        if number % 20 == 0:
            producer.poll(0.01)
    assert producer.flush(60) == 0
    assert not failed


def read(three, topic, count):
    consumer = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "reader"} | QUIET)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    limit = time.monotonic() + 60
    while len(found) < count and time.monotonic() < limit:
        found += [int(m.value()[:6]) for m in consumer.consume(count, 0.5) if not m.error()]
    consumer.commit(offsets=[TopicPartition(topic, 0, count)], asynchronous=False)
    consumer.close()
    return found


def segments(broker, topic):
    """The segment files of a topic's first partition, in order."""
    (directory,) = [
        path.parent
        for path in (broker.data_dir / "topics").glob("*/topic")
        if path.read_text().strip().split("\n")[0] == topic
    ]
    return sorted((directory / "0").glob("*.log"))


def mark(broker):
    """How far the controller's log is noted as committed."""
    try:
        return int.from_bytes((broker.data_dir / "controller" / "committed").read_bytes()[-8:], "little")
    except FileNotFoundError:
        return 0


def replayed(broker):
    """Logs that the last start has rebuilt from the write-ahead log: no file of them was needed."""
    found = re.findall(r"recovered (\d+) logs from", broker.log_path.read_text())
    return int(found[-1]) if found else 0


def whole_again(broker):
    return broker.log_path.read_text().count("has everything again that was lost here")


def test_a_broker_that_has_lost_the_files_of_its_partitions_gets_them_again(three):
    create(three, "plain", SMALL)
    create(three, "keyed", COMPACTED)
    send(three, "plain", range(RECORDS))
    send(three, "keyed", range(RECORDS), keys=10)
    assert read(three, "plain", RECORDS) == list(range(RECORDS))
    until(lambda: all(in_sync(three, topic) for topic in ("plain", "keyed")), "all are in sync")
    compacted = [three.brokers[node] for node in (1, 3)]
    until(
        lambda: all(any(path.name.count(".") > 1 for path in segments(each, "keyed")) for each in compacted),
        "it is compacted",
    )
    until(
        lambda: mark(three.brokers[2]) == metric(three.brokers[2], "millstream_cluster_metadata_revision"),
        "it is noted",
    )
    three.kill(2)
    gone = [path for path in (three.brokers[2].data_dir / "topics").glob("*/*") if path.is_dir()]
    assert len(gone) >= 3, "the offsets of groups, too"
    for path in gone:
        shutil.rmtree(path)
    send(three, "plain", range(RECORDS, 2 * RECORDS))
    three.restart(2)
    two = three.brokers[2]
    lost = len(gone) - replayed(two)
    assert lost >= 3
    until(lambda: whole_again(two) >= lost, f"{lost} of {len(gone)} replicas are whole again")
    until(lambda: not metric(two, "millstream_replica_lost"), "no replica is lost")
    assert metric(two, "millstream_replica_installs_total") >= 1, "the compacted one is received as files"
    until(lambda: all(in_sync(three, topic) for topic in ("plain", "keyed")), "all are in sync again")
    three.kill(1)
    send(three, "plain", range(2 * RECORDS, 3 * RECORDS))
    assert read(three, "plain", 3 * RECORDS) == list(range(3 * RECORDS))
    three.restart(1)
    until(lambda: in_sync(three, "plain"), "all are in sync at the end")
    for broker in three.brokers.values():
        assert broker.stop() == 0
    assert len({tuple(batches(broker.data_dir, 0)) for broker in three.brokers.values()}) == 1


def test_a_broker_that_finds_damage_in_its_segments_gets_them_again(three):
    create(three, "plain", SMALL)
    send(three, "plain", range(RECORDS))
    until(lambda: in_sync(three, "plain"), "all are in sync")
    until(lambda: len(segments(three.brokers[3], "plain")) > 5, "segments are written")
    assert three.brokers[3].stop() == 0, "in order, so that the write-ahead log does not mend what is damaged"
    for path in segments(three.brokers[3], "plain")[:3]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    send(three, "plain", range(RECORDS, 2 * RECORDS))
    three.restart(3)
    until(lambda: whole_again(three.brokers[3]) >= 1, "the damage is found and made up for")
    until(lambda: in_sync(three, "plain"), "all are in sync again")
    assert read(three, "plain", 2 * RECORDS) == list(range(2 * RECORDS))
    for broker in three.brokers.values():
        assert broker.stop() == 0
    assert len({tuple(batches(broker.data_dir, 0)) for broker in three.brokers.values()}) == 1
    assert not list((three.brokers[3].data_dir / "topics").glob("*/*.damaged"))


@pytest.mark.parametrize("three", [{"auto.leader.rebalance.enable": False}], indirect=True)
def test_a_leader_that_finds_damage_hands_over_and_is_filled_by_its_follower(three):
    create(three, "plain", SMALL)
    send(three, "plain", range(RECORDS))
    until(lambda: in_sync(three, "plain"), "all are in sync")
    for broker in three.brokers.values():
        assert broker.stop() == 0  # with a checkpoint, and what is read after the start is read from the files
    three.start()
    client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)

    def place():
        return client.list_topics("plain", timeout=60).topics["plain"].partitions[0]

    until(lambda: in_sync(three, "plain"), "all are in sync")
    damaged = until(lambda: max(place().leader, 0), "a leader is known")
    broker = three.brokers[damaged]
    for path in segments(broker, "plain")[:3]:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0xFF]))

    def handed_over():
        assert read(three, "plain", RECORDS) == list(range(RECORDS)), "clients read everything, whoever leads"
        return "is damaged here: another replica takes the lead" in broker.log_path.read_text()

    until(handed_over, "the leader hands over")
    until(lambda: whole_again(broker) >= 1, "it has everything again")
    until(lambda: in_sync(three, "plain"), "all are in sync again")
    assert place().leader != damaged
    assert read(three, "plain", RECORDS) == list(range(RECORDS))
    for each in three.brokers.values():
        assert each.stop() == 0
    assert len({tuple(batches(each.data_dir, 0)) for each in three.brokers.values()}) == 1


@pytest.mark.parametrize("three", [{"auto.leader.rebalance.enable": False}], indirect=True)
def test_a_broker_with_an_older_copy_of_its_directory_is_filled_and_counts_for_nothing_until_then(three, tmp_path):
    create(three, "plain", SMALL)
    send(three, "plain", range(RECORDS))
    until(lambda: in_sync(three, "plain"), "all are in sync")
    led = next(iter(partitions(three.brokers[1], "plain"))).leader
    follower, other = (node for node in three.brokers if node != led)
    directory = three.brokers[follower].data_dir
    three.kill(follower)
    shutil.copytree(directory, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
    three.restart(follower)
    send(three, "plain", range(RECORDS, 2 * RECORDS))
    until(lambda: in_sync(three, "plain"), "all are in sync again")
    three.kill(follower)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "copy", directory)
    three.restart(follower)
    until(lambda: "has lost what it had on its disk" in three.brokers[led].log_path.read_text(), "the leader says so")
    until(lambda: in_sync(three, "plain"), "it is filled by the leader of before")
    assert next(iter(partitions(three.brokers[led], "plain"))).leader == led
    three.kill(other)
    three.kill(led)
    three.restart(other)
    assert read(three, "plain", 2 * RECORDS) == list(range(2 * RECORDS)), "two that were filled have all of it"
    three.restart(led)
    until(lambda: in_sync(three, "plain"), "all are in sync at the end")
    for broker in three.brokers.values():
        assert broker.stop() == 0
    assert len({tuple(batches(broker.data_dir, 0)) for broker in three.brokers.values()}) == 1
