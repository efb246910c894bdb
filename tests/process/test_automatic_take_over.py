"""A broker with ``shared.wal=object`` dies: live brokers restore its shared partitions by themselves, and lead them."""

import shutil

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from growing_support import status as cluster_status
from object_wal_support import settings
from shared_cluster_support import in_order, leader, produce, uploaded
from take_over_support import fenced
from tiering import ask, consume, expected, metric, value
from wide_support import create_wide, load

from millstream.testing import cluster
from waits import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SOON = {"dead.broker.take.over.after.ms": 1000}
DONE = "that it had alone are led by live brokers"


def logs(made):
    """What all brokers have written."""
    return "".join(broker.log_path.read_text() for broker in made.brokers.values())


def in_store(made, *nodes):
    """The cluster knows that the store has what the brokers acknowledge."""
    said = logs(made)
    return all(f"broker {node}: the object store has all that it acknowledged" in said for node in nodes)


def led_by_others(made, topic, partitions, dead=2):
    one = next(broker for node, broker in made.brokers.items() if node != dead and broker.running)
    return all(leader(one, topic, at) not in (-1, dead) for at in partitions)


@pytest.mark.ci
def test_partitions_of_a_broker_that_dies_with_its_disk_are_led_by_others_and_stay_when_it_is_replaced(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket, **SOON), networks=False, shards=2) as made:
        one = made.brokers[1]
        until(lambda: in_store(made, 1, 2, 3), "the controller does not hear of the logs")
        create_wide(made, "load", [[1], [2], [3], [2]])
        ask(one, "create_topics", [NewTopic("plain", 1, replica_assignment=[[2]])], "plain")
        with load(made.bootstrap, "load", 4, members=1, rate=60, padding=300) as workload:
            made.kill(2)
            shutil.rmtree(made.brokers[2].data_dir)
            assert not (bucket / "shared").exists(), "an upload has it as well, and the test shows nothing"
            until(lambda: led_by_others(made, "load", (1, 3)), "no broker leads")
            before = workload.highest["load", 1], workload.highest["load", 3]
            until(
                lambda: workload.highest["load", 1] > before[0] and workload.highest["load", 3] > before[1],
                "producers do not go on",
            )
            until(lambda: DONE in logs(made), "it does not end")
            assert leader(one, "plain") in (-1, 2), "its disk alone has it"
            found = cluster_status(one)
            assert (found["restored_partitions"], found["restorable_partitions"]) == (2, 0)
            assert metric(one, "millstream_take_over_partitions_total") == 2
            made.brokers[2].data_dir.mkdir()
            made.replace(2)
            until(lambda: not fenced(one), "broker 2 does not come back")
            workload.wait_progress(200)
            assert led_by_others(made, "load", (1, 3))


def test_a_paused_broker_is_taken_over_acknowledges_nothing_and_serves_the_rest_when_it_goes_on(tmp_path):
    with cluster(3, settings=settings(tmp_path / "bucket", **SOON), networks=False, shards=2) as made:
        one, two = made.brokers[1], made.brokers[2]
        until(lambda: in_store(made, 1, 2, 3), "the controller does not hear of the logs")
        create_wide(made, "taken", [[2], [2]])
        for partition in (0, 1):
            produce(one, "taken", range(100), partition)
        files = until(lambda: list(two.data_dir.glob("topics/*/?")), "it has no files")
        ask(one, "create_topics", [NewTopic("plain", 1, replica_assignment=[[2]])], "plain")
        produce(one, "plain", range(50))
        delivered = []
        options = {"bootstrap.servers": two.bootstrap, "linger.ms": 0, "log_level": 0, "message.timeout.ms": 60_000}
        late = Producer(options)
        late.produce("taken", b"warm", partition=0, on_delivery=lambda error, _: error or delivered.append(b"warm"))
        assert late.flush(60) == 0
        made.pause(2)
        late.produce("taken", b"late", partition=0, on_delivery=lambda error, _: error or delivered.append(b"late"))
        late.poll(0.5)
        until(lambda: led_by_others(made, "taken", (0, 1)), "no broker leads")
        for partition in (0, 1):
            produce(one, "taken", range(100, 120), partition)
        made.go_on(2)
        until(lambda: "it starts again" in two.log_path.read_text(), "the zombie continues")
        late.flush(60)
        until(lambda: not fenced(one) and leader(one, "plain") == 2, "it does not serve the rest")
        assert in_order(consume(one, "plain")) == expected(range(50)), "its own records are gone"
        assert led_by_others(made, "taken", (0, 1))
        until(lambda: not any(each.exists() for each in files), "its files of them are not removed")
        for partition in (0, 1):
            produce(one, "taken", range(120, 140), partition)
        assert in_order(consume(one, "taken", 1)) == expected(range(140))
        found = [value for _, _, value, _ in consume(one, "taken", 0)]
        assert all(value in found for value in delivered), "an acknowledgement of the zombie is lost"
        assert found.count(b"late") == delivered.count(b"late") <= 1
        assert len([value for value in dict.fromkeys(found) if value not in (b"warm", b"late")]) == 140


def die_and_come_back(made, workload, dead, other):
    """One broker dies, and another one while partitions of the first are restored: it restores them, or decides it."""
    keeper = made.brokers[({1, 2, 3} - {dead, other}).pop()]
    before = logs(made).count("and had it alone")
    made.kill(dead)
    until(lambda: logs(made).count("and had it alone") > before, "nothing begins")
    made.kill(other)
    made.restart(other)
    until(lambda: led_by_others(made, "load", range(6), dead), "a partition has no leader")
    made.restart(dead)
    until(lambda: not fenced(keeper, dead), "it does not come back")
    marks = dict(workload.highest)
    until(
        lambda: all(workload.highest["load", at] > marks["load", at] for at in range(6)),
        "producers do not go on",
    )


def test_brokers_that_die_while_they_restore_and_controllers_that_die_while_they_take_over_lose_nothing(tmp_path):
    with cluster(3, settings=settings(tmp_path / "bucket", **SOON), networks=False) as made:
        until(lambda: in_store(made, 1, 2, 3), "the controller does not hear of the logs")
        create_wide(made, "load", [[1], [2], [3], [2], [2], [2]])
        with load(made.bootstrap, "load", 6, members=1, rate=60, padding=300) as workload:
            for dead, other in ((2, 1), (1, 3), (3, 2)):
                die_and_come_back(made, workload, dead, other)


def test_idempotent_producers_go_on_when_all_that_they_wrote_is_in_objects(tmp_path):
    often = {"shared.upload.interval.ms": 1000}
    with cluster(3, settings=settings(tmp_path / "bucket", **SOON, **often), networks=False) as made:
        one, two = made.brokers[1], made.brokers[2]
        until(lambda: in_store(made, 1, 2, 3), "the controller does not hear of the logs")
        create_wide(made, "wide", [[2]])
        producer = Producer({"bootstrap.servers": made.bootstrap, "enable.idempotence": True, "log_level": 0})
        failed = []
        for numbers in (range(100), range(100, 200)):
            for number in numbers:
                producer.produce("wide", value(number), on_delivery=lambda error, _: error and failed.append(error))
            assert producer.flush(PATIENCE_S) == 0 and not failed
            if two.running:
                until(lambda: uploaded(two, "wide", 0, 100), "it is not uploaded")
                made.kill(2)
                shutil.rmtree(two.data_dir)
                until(lambda: led_by_others(made, "wide", (0,)), "no broker leads")
        assert [each for _, _, each, _ in consume(one, "wide")] == [value(number) for number in range(200)]


def test_a_broker_that_had_its_log_on_the_disk_is_taken_over_only_when_the_store_has_that(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket, **SOON, **{"shared.wal": "disk"}), networks=False) as made:
        one, two = made.brokers[1], made.brokers[2]
        create_wide(made, "switched", [[2]])
        produce(one, "switched", range(100))
        assert not in_store(made, 1) and not in_store(made, 2)
        for node, broker in made.brokers.items():
            broker.stop()
            broker.settings["shared.wal"] = "object"
            made.restart(node)
        until(lambda: in_store(made, 1, 2, 3), "the controller does not hear of the logs")
        made.kill(2)
        shutil.rmtree(two.data_dir)
        until(lambda: led_by_others(made, "switched", (0,)), "no broker leads")
        assert in_order(consume(one, "switched")) == expected(range(100))
