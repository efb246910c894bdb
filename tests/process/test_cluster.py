"""Three broker processes as one cluster under a stock client: the controller and partitions are replicated."""

import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from cluster_support import (
    QUIET,
    Unordered,
    admin,
    all_in_sync,
    controller_of,
    create,
    metadata,
    partitions,
    read,
    send,
)
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicPartition

from millstream.client.connection import Connection
from millstream.testing import BrokerFailed, Cluster, cluster
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from waits import moment, until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def three():
    with cluster(3) as made:
        yield made


def refusal(bootstrap, topic, acks):
    """Error code of one record that is not sent again; None if it is acknowledged."""
    codes = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "retries": 0} | QUIET)
    producer.produce(topic, b"once", partition=0, on_delivery=lambda error, _: codes.append(error and error.code()))
    producer.flush(60)
    return codes[0]


def elect(brokers, which):
    """Let the preferred replicas lead; returns the error of each partition, None for none."""
    client = admin(*brokers.brokers.values())
    return client.elect_leaders(ElectionType.PREFERRED, which).result(60)


def test_every_broker_knows_all_of_them_and_creates_topics_anywhere(three):
    for node, broker in three.brokers.items():
        until(lambda broker=broker: len(metadata(broker).brokers) == 3)
        create(broker, f"made-by-{node}", 3)
    for broker in three.brokers.values():
        until(lambda broker=broker: all(f"made-by-{node}" in metadata(broker).topics for node in three.brokers))
        found = metadata(broker)
        assert {f"{each.host}:{each.port}" for each in found.brokers.values()} == set(three.bootstrap.split(","))
        for node in three.brokers:
            leaders = {part.leader for part in found.topics[f"made-by-{node}"].partitions.values()}
            assert leaders == {1, 2, 3}, "the partitions of a topic are spread over the brokers"
    assert len({metadata(broker).cluster_id for broker in three.brokers.values()}) == 1


def manifest_of(broker, topic):
    """The segments that a broker has of a topic; None while it does not know the topic."""
    try:
        with urllib.request.urlopen(f"{broker.http}/v1/topics/{topic}/segments", timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return None


def test_a_manifest_says_on_whose_disk_its_files_are(three):
    create(three.brokers[1], "manifested", 3, factor=3)
    found = {}
    for broker in three.brokers.values():
        manifest = until(lambda broker=broker: manifest_of(broker, "manifested"))
        with open(f"{manifest['data_dir']}/identity.json", encoding="utf-8") as file:
            found[manifest["incarnation"]] = json.load(file)["incarnation"]
    assert len(found) == 3, "no two directories have the same"
    assert all(named == stored for named, stored in found.items())


def test_clients_are_sent_to_the_broker_that_has_the_partition(three):
    create(three.brokers[2], "spread", 6)
    acked = send(three.brokers[3].bootstrap, "spread", 6, 300, "a")
    assert len(acked) == 300
    assert sorted(read(three.brokers[1].bootstrap, "spread", 6, 300)) == sorted(acked)


def test_a_group_is_coordinated_by_the_broker_that_has_its_partition(three):
    create(three.brokers[1], "grouped", 3)
    acked = send(three.bootstrap, "grouped", 3, 90, "g")
    consumer = Consumer(
        {"bootstrap.servers": three.bootstrap, "group.id": "together", "auto.offset.reset": "earliest"} | QUIET
    )
    consumer.subscribe(["grouped"])
    found = []
    until(lambda: found.extend(m.value() for m in consumer.consume(90, 0.5) if not m.error()) or len(found) >= 90)
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(found) == sorted(acked)


def test_more_replicas_than_brokers_are_refused(three):
    with pytest.raises(KafkaException, match=r"INVALID_REPLICATION_FACTOR.*only 3 broker") as refused:
        create(three.brokers[1], "too-many", 1, 4)
    assert refused.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_every_broker_shows_leader_and_replicas_of_a_partition_with_three(three):
    create(three.brokers[3], "three-fold", 3, 3)
    until(lambda: all_in_sync(three, "three-fold"))
    shown = list(partitions(three.brokers[2], "three-fold"))
    assert [part.leader for part in shown] == [part.replicas[0] for part in shown], "the preferred replica leads"
    assert {part.leader for part in shown} == {1, 2, 3}
    offsets = partitions(three.brokers[1], "__consumer_offsets")
    assert all(sorted(part.replicas) == [1, 2, 3] for part in offsets)


def test_the_first_leader_of_a_partition_with_three_has_leader_epoch_zero(three):
    """In the stored batches, and in the answers by which clients learn it."""
    create(three.brokers[2], "epochs", 3, 3)
    assert len(send(three.bootstrap, "epochs", 3, 3, "epoch")) == 3
    places = [TopicPartition("epochs", index, 0) for index in range(3)]
    consumer = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "epochs"} | QUIET)
    consumer.assign(places)
    found = {}

    def all_are_read():
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found[message.partition()] = message.leader_epoch()
        return len(found) == 3

    until(all_are_read, lambda: f"read so far: {found}")
    consumer.close()
    assert found == dict.fromkeys(range(3), 0)
    host, port = three.brokers[1].bootstrap.split(":")
    with Connection(host, int(port), timeout_s=60) as connection:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="epochs")])
        shown = connection.call(request, MetadataResponse, 9).topics[0].partitions
    assert {one.partition_index: one.leader_epoch for one in shown} == dict.fromkeys(range(3), 0)


@pytest.mark.slow
@pytest.mark.ci
def test_a_new_topic_takes_acks_all_when_its_creation_is_answered(three):
    """Without a retry, wherever it is created and led, and with every replica demanded."""
    refused = {}
    for number, factor in enumerate([1, 2, 3] * 4):
        name = f"fresh-{number}"
        create(three.brokers[1 + number % 3], name, 1, factor, {"min.insync.replicas": str(factor)})
        refused[name] = refusal(three.bootstrap, name, acks="all")
    assert set(refused.values()) == {None}, refused


def test_nothing_is_lost_or_doubled_when_the_controller_dies_and_comes_back(three):
    create(three.brokers[1], "before", 3, 3)
    gone = controller_of(three)
    others = [broker for node, broker in three.brokers.items() if node != gone]
    acked = send(three.bootstrap, "before", 3, 90, "k")
    three.kill(gone)
    acked += send(three.bootstrap, "before", 3, 90, "l")
    create(others[0], "during", 2)
    until(lambda: all(gone not in part.isrs and part.leader != gone for part in partitions(others[1], "before")))
    three.restart(gone)
    until(lambda: {"before", "during"} <= metadata(three.brokers[gone]).topics.keys())
    until(lambda: all_in_sync(three, "before"))
    acked += send(three.bootstrap, "before", 3, 90, "m")
    assert read(three.bootstrap, "before", 3, 270) == Unordered(acked)
    assert len(acked) == 270


@pytest.mark.slow
@pytest.mark.ci
def test_nothing_is_lost_or_doubled_when_each_broker_dies_under_load(three):
    create(three.brokers[1], "load", 3, 3)
    acked, failed = [], []
    producer = Producer({"bootstrap.servers": three.bootstrap, "enable.idempotence": True, "linger.ms": 1} | QUIET)

    def delivered(error, message):
        (acked if error is None else failed).append(message.value())

    stop = threading.Event()

    def produce():
        number = 0
        while not stop.is_set():
            producer.produce("load", b"%d" % number, partition=number % 3, on_delivery=delivered)
            producer.poll(0)
            number += 1
            moment(0.002)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for node in three.brokers:
            before = len(acked)
            three.kill(node)
            until(lambda before=before: len(acked) > before + 300)
            three.restart(node)
            until(lambda: all_in_sync(three, "load"))
    finally:
        stop.set()
        thread.join()
    producer.flush(60)
    assert not failed
    found = read(three.bootstrap, "load", 3, len(acked))
    assert found == Unordered(acked)
    for index in range(3):
        mine = [int(value) for value in found if int(value) % 3 == index]
        assert mine == sorted(mine), "the order of a partition is that of its producer"


@pytest.mark.slow
@pytest.mark.ci
def test_a_stopped_broker_comes_back_with_what_it_had(three):
    create(three.brokers[1], "stopped", 3, 3)
    create(three.brokers[1], "strict", 1, 3, {"min.insync.replicas": "3"})
    until(lambda: all_in_sync(three, "strict"))
    assert len(send(three.bootstrap, "strict", 1, 10, "x")) == 10
    acked = send(three.bootstrap, "stopped", 3, 90, "s")
    until(lambda: all_in_sync(three, "stopped"))
    assert three.brokers[2].stop() == 0
    until(lambda: 2 not in metadata(three.brokers[1]).brokers)
    until(lambda: all(part.leader not in (2, -1) for part in partitions(three.brokers[3], "stopped")))
    acked += send(three.bootstrap, "stopped", 3, 90, "t")
    until(lambda: refusal(three.bootstrap, "strict", acks="all") == KafkaError.NOT_ENOUGH_REPLICAS)
    assert refusal(three.bootstrap, "strict", acks=1) is None, "min.insync.replicas is for acks=all"
    three.restart(2)
    until(lambda: all_in_sync(three, "stopped"))
    assert read(three.bootstrap, "stopped", 3, 180) == Unordered(acked)
    for topic in list(metadata(three.brokers[1]).topics):
        until(lambda topic=topic: all_in_sync(three, topic))
    elected = elect(three, None)
    assert {error for error in elected.values() if error is not None} == set()
    until(lambda: all(part.leader == part.replicas[0] for part in partitions(three.brokers[1], "stopped")))
    again = elect(three, [TopicPartition("stopped", 0)])
    assert [error.code() for error in again.values()] == [KafkaError.ELECTION_NOT_NEEDED]


@pytest.mark.slow
@pytest.mark.ci
def test_brokers_of_two_shards_replicate_between_all_of_them():
    with cluster(3, shards=2, memory="192MiB") as two:
        create(two.brokers[1], "t", 8, 3)
        acked = send(two.bootstrap, "t", 8, 400, "a")
        until(lambda: all_in_sync(two, "t"))
        two.kill(2)
        acked += send(two.bootstrap, "t", 8, 400, "b")
        two.restart(2)
        until(lambda: all_in_sync(two, "t"))
        elected = elect(two, None)
        assert all(error is None for error in elected.values())
        until(lambda: {part.leader for part in partitions(two.brokers[2], "t")} == {1, 2, 3})
        acked += send(two.bootstrap, "t", 8, 400, "c")
        assert read(two.bootstrap, "t", 8, 1200) == Unordered(acked)
        assert len(acked) == 1200


def test_a_cluster_whose_brokers_all_died_at_once_has_everything(three):
    create(three.brokers[1], "kept", 3)
    create(three.brokers[1], "kept-three-fold", 3, 3)
    acked = send(three.bootstrap, "kept", 3, 90, "m")
    acked_three_fold = send(three.bootstrap, "kept-three-fold", 3, 90, "m")
    for node in three.brokers:
        three.kill(node)
    three.start()
    assert "kept" in metadata(three.brokers[2]).topics
    assert sorted(read(three.bootstrap, "kept", 3, 90)) == sorted(acked)
    assert sorted(read(three.bootstrap, "kept-three-fold", 3, 90)) == sorted(acked_three_fold)
    create(three.brokers[3], "afterwards", 1)


def test_a_cluster_of_which_one_broker_does_not_come_up_says_so_and_leaves_none_running(tmp_path):
    made = Cluster(3, tmp_path, {}, shards=1, memory="128MiB")
    host, port = made.brokers[2].settings["peer.listen"].rsplit(":", 1)
    with closing(made), socket.create_server((host, int(port))):
        with pytest.raises(BrokerFailed, match="cannot listen on"):
            made.start()
        assert not any(broker.running for broker in made.brokers.values())
