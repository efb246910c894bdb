"""Shared topics in a cluster: leaders upload, replicas move without what is uploaded, earlier leaders do no harm."""

import pytest
from confluent_kafka.admin import NewTopic, OffsetSpec
from moving_support import move, moving
from shared_cluster_support import in_order, leader, produce, status, uploaded
from shared_support import SHARED, objects, settings
from tiering import ask, consume, expected, offset_of

from millstream.testing import cluster
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.ci
def test_a_replica_moves_without_what_is_uploaded(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket)) as three:
        one, two = three.brokers[1], three.brokers[2]
        ask(one, "create_topics", [NewTopic("moves", 2, replica_assignment=[[1], [1]], config=SHARED)], "moves")
        until(lambda: leader(one, "moves") == leader(one, "moves", 1) == 1, "no broker leads")
        for partition in (0, 1):
            produce(one, "moves", range(100), partition)
        until(lambda: uploaded(one, "moves", 0, 100) and uploaded(one, "moves", 1, 100), "uploads stand still")
        before = {path: path.stat().st_mtime_ns for path in objects(bucket)}
        assert move(one, "moves", {0: [2]}) == [(0, None)]
        until(lambda: not moving(one) and leader(two, "moves") == 2, "the replica does not move")
        found = until(lambda: status(two, "moves").get(0), "the replica is not there")
        assert found["local_start_offset"] == found["archived_end_offset"] >= 100, found
        assert {path: path.stat().st_mtime_ns for path in objects(bucket)} == before
        assert in_order(consume(two, "moves")) == expected(range(100))
        produce(two, "moves", range(100, 130))
        until(lambda: uploaded(two, "moves", 0, 130), "the new leader uploads nothing")
        assert in_order(consume(one, "moves")) == expected(range(130))
        assert in_order(consume(one, "moves", 1)) == expected(range(100))


@pytest.mark.ci
def test_a_leader_that_dies_or_was_cut_off_loses_nothing_and_changes_nothing(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket), networks="proxies") as three:
        brokers = three.brokers
        config = {**SHARED, "min.insync.replicas": "2"}
        ask(brokers[1], "create_topics", [NewTopic("copies", 1, 3, config=config)], "copies")
        first = until(lambda: max(leader(brokers[1], "copies"), 0), "no broker leads")
        produce(brokers[first], "copies", range(100))
        until(lambda: objects(bucket), "nothing is uploaded")
        rest = set(brokers) - {first}
        other = brokers[min(rest)]
        three.partition({first}, rest)  # both sides still reach the store
        until(lambda: leader(other, "copies") in rest, "no broker leads on the other side")
        produce(other, "copies", range(100, 200))
        three.heal()
        until(lambda: uploaded(brokers[leader(other, "copies")], "copies", 0, 200), "uploads stand still")
        second = leader(other, "copies")
        brokers[second].kill()
        rest = set(brokers) - {second}
        other = brokers[min(rest)]
        until(lambda: leader(other, "copies") in rest, "no broker leads after a death")
        produce(other, "copies", range(200, 300))
        brokers[second].start()
        until(lambda: uploaded(brokers[leader(other, "copies")], "copies", 0, 300), "uploads stand still")
        assert in_order(consume(other, "copies")) == expected(range(300))
        ask(other, "delete_topics", ["copies"], "copies")
        until(lambda: not objects(bucket), "objects of the deleted topic stay")


def test_objects_of_several_brokers_go_when_no_log_needs_them(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket)) as three:
        one = three.brokers[1]
        for name, retention in (("short", "1"), ("stays", "-1")):
            config = {**SHARED, "retention.ms": retention}
            ask(one, "create_topics", [NewTopic(name, 3, replica_assignment=[[1], [2], [3]], config=config)], name)
        until(lambda: [leader(one, "stays", at) for at in range(3)] == [1, 2, 3], "no broker leads")
        until(lambda: [leader(one, "short", at) for at in range(3)] == [1, 2, 3], "no broker leads")
        for partition in range(3):
            produce(one, "stays", range(30), partition)
        until(lambda: all(uploaded(three.brokers[1 + at], "stays", at, 30) for at in range(3)), "uploads stand still")
        kept = {path.name for path in objects(bucket)}
        for partition in range(3):
            produce(one, "short", range(30), partition)
        for partition in range(3):
            until(lambda at=partition: offset_of(one, "short", OffsetSpec.earliest(), at) >= 30, "retention rests")
        until(lambda: {path.name for path in objects(bucket)} == kept, "dead objects stay")
        for partition in range(3):
            assert in_order(consume(one, "stays", partition)) == expected(range(30))
