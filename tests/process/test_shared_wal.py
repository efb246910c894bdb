"""Shared topics whose acknowledgements wait for the object store: the disk may be lost, and nothing acknowledged is."""

import contextlib
import shutil
import signal

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from moving_support import move, moving
from object_wal_support import settings
from shared_cluster_support import in_order, leader
from shared_cluster_support import produce as produce_through
from tiering import ask, consume, expected, metric, produce, tier, value

from millstream.objects import open_store
from millstream.testing import cluster
from millstream.testing.process import Broker
from millstream.tiers.wal_lives import end_lives, nodes
from waits import until

pytestmark = pytest.mark.process

SHARED = {"storage.mode": "shared", "retention.ms": "-1", "file.delete.delay.ms": "100"}


def create(broker, name, partitions=1, **config):
    own = {**SHARED, **{key.replace("_", "."): str(one) for key, one in config.items()}}
    ask(broker, "create_topics", [NewTopic(name, partitions, 1, config=own)], name)


def log_objects(bucket):
    """The objects of logs: (life, shard, number), without lives."""
    found = [path.relative_to(bucket / "wal").parts for path in (bucket / "wal").rglob("*") if path.is_file()]
    return sorted(
        (int(life), int(shard), int(number)) for _, life, *rest in found if life != "lives" for shard, number in [rest]
    )


def check_read(broker, topic, partition, numbers):
    """Everything is there. What a life before had is shown when the log of this one has it."""
    until(lambda: len(consume(broker, topic, partition)) >= len(numbers), "acknowledged records are missing")
    assert consume(broker, topic, partition) == expected(numbers)


def lose_disk(broker):
    shutil.rmtree(broker.data_dir)


def test_what_was_acknowledged_survives_the_loss_of_the_disk(tmp_path):
    bucket = tmp_path / "bucket"
    with Broker(settings=settings(bucket), shards=2) as broker:
        create(broker, "kept", 3)
        for partition in range(3):
            produce(broker, "kept", range(20), partition)
        assert metric(broker, "millstream_shared_wal_objects_total") > 0
        assert not (bucket / "shared").exists(), "an upload has it as well, and the test shows nothing"
        broker.kill()
        lose_disk(broker)
        broker.start()
        tier(broker, "recover", "kept")
        for partition in range(3):
            check_read(broker, "kept", partition, range(20))
        produce(broker, "kept", range(20, 40), 1)
        broker.kill()
        lose_disk(broker)
        broker.start()
        tier(broker, "recover", "kept")
        check_read(broker, "kept", 1, range(40))


@pytest.mark.slow
@pytest.mark.ci
def test_objects_of_the_log_go_when_the_archive_has_them(tmp_path):
    bucket = tmp_path / "bucket"
    often = {"shared.upload.interval.ms": 300, "log.retention.check.interval.ms": 200}
    data = tmp_path / "data"
    with Broker(settings=settings(bucket), data_dir=data, shards=2) as broker:
        create(broker, "trimmed", 4)
        for partition in range(4):
            produce(broker, "trimmed", range(30), partition)
        assert len(log_objects(bucket)) > 8
        broker.kill()
    with Broker(settings=settings(bucket, **often), data_dir=data, shards=2) as broker:
        produce(broker, "trimmed", range(30, 40))
        # The newest entry of each log in use, and a seal for each log of the life before.
        until(lambda: len(log_objects(bucket)) <= 4, "entries stay")
        assert {life for life, _, _ in log_objects(bucket)} == {1, 2}
        check_read(broker, "trimmed", 0, range(40))
        broker.kill()
        lose_disk(broker)
        broker.start()
        tier(broker, "recover", "trimmed")
        check_read(broker, "trimmed", 0, range(40))
        check_read(broker, "trimmed", 3, range(30))


@pytest.mark.slow
@pytest.mark.ci
def test_nothing_is_acknowledged_while_the_store_is_away(tmp_path):
    bucket = tmp_path / "bucket"
    small = settings(bucket, **{"shared.uncommitted.max.bytes": 1 << 20})
    with Broker(settings=small, shards=1) as broker:
        create(broker, "away")
        produce(broker, "away", range(30))
        bucket.rename(tmp_path / "hidden")
        bucket.write_text("no directory")
        outcomes = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "delivery.timeout.ms": 3000, "linger.ms": 5})
        for number in range(4000):
            with contextlib.suppress(BufferError):
                producer.produce("away", value(number), on_delivery=lambda error, _: outcomes.append(error))
            producer.poll(0.001)
        producer.flush(60)
        assert outcomes
        assert all(outcomes), "acknowledged without the store"
        assert len(consume(broker, "away")) == 30, "readers have seen what the store does not have"
        assert metric(broker, "millstream_shared_wal_pending_bytes") >= 1 << 19, "less waits than is allowed to"
        bucket.unlink()
        (tmp_path / "hidden").rename(bucket)
        until(lambda: metric(broker, "millstream_shared_wal_pending_bytes") == 0, "the log stands still")
        produce(broker, "away", range(5))
        assert len(consume(broker, "away")) >= 35


@pytest.mark.slow
@pytest.mark.ci
def test_a_broker_of_a_cluster_that_comes_back_with_an_empty_disk_has_its_records_again(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket), networks=False) as made:
        one = made.brokers[1]
        ask(one, "create_topics", [NewTopic("comes", 2, replica_assignment=[[2], [2]], config=SHARED)], "comes")
        until(lambda: leader(one, "comes") == leader(one, "comes", 1) == 2, "no broker leads")
        for partition in (0, 1):
            produce_through(one, "comes", range(100), partition)
        made.kill(2)
        assert not (bucket / "shared").exists(), "an upload has it as well, and the test shows nothing"
        made.replace(2)
        for partition in (0, 1):
            until(lambda at=partition: len(consume(one, "comes", at)) >= 100, "acknowledged records are missing")
            assert in_order(consume(one, "comes", partition)) == expected(range(100))
            produce_through(one, "comes", range(100, 120), partition)
            assert in_order(consume(one, "comes", partition)) == expected(range(120))
        made.kill(2)
        made.restart(2)  # its log goes on with another member than it began with
        for partition in (0, 1):
            until(lambda at=partition: len(consume(one, "comes", at)) >= 120, "acknowledged records are missing")
            produce_through(one, "comes", range(120, 130), partition)
            assert in_order(consume(one, "comes", partition)) == expected(range(130))
        assert move(one, "comes", {0: [3]}) == [(0, None)]
        until(lambda: not moving(one) and leader(one, "comes") == 3, "the replica does not move")
        assert in_order(consume(one, "comes")) == expected(range(130))


@pytest.mark.slow
def test_a_cluster_that_loses_all_its_disks_has_what_was_acknowledged_after_a_recovery(tmp_path):
    often = {"shared.upload.interval.ms": 300}
    with cluster(3, settings=settings(tmp_path / "bucket", **often), networks=False) as made:
        one = made.brokers[1]
        ask(one, "create_topics", [NewTopic("all", 3, replica_assignment=[[1], [2], [3]], config=SHARED)], "all")
        until(lambda: [leader(one, "all", at) for at in range(3)] == [1, 2, 3], "no broker leads")
        for partition in range(3):
            produce_through(one, "all", range(100), partition)
        for node in made.brokers:
            made.kill(node)
            lose_disk(made.brokers[node])
        made.start()
        tier(one, "recover", "all")
        for partition in range(3):
            until(lambda at=partition: len(consume(one, "all", at)) >= 100, "acknowledged records are missing")
            assert in_order(consume(one, "all", partition)) == expected(range(100))
            produce_through(one, "all", range(100, 110), partition)


@pytest.mark.slow
@pytest.mark.ci
def test_a_paused_broker_whose_log_was_sealed_acknowledges_nothing_and_ends_when_it_goes_on(tmp_path):
    bucket = tmp_path / "bucket"
    with Broker(settings=settings(bucket), shards=1) as broker:
        create(broker, "sealed")
        produce(broker, "sealed", range(30))
        outcomes = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 8000, "log_level": 0})
        producer.list_topics("sealed", timeout=60)
        broker.signal_all(signal.SIGSTOP)
        producer.produce("sealed", value(30), on_delivery=lambda error, _: outcomes.append(error))
        producer.poll(0.5)
        store = open_store(f"file://{bucket}", 20)
        (node,) = nodes(store)
        end_lives(store, node)
        store.close()
        broker.signal_all(signal.SIGCONT)
        until(lambda: not broker.running, "the zombie continues")
        producer.flush(60)
        assert outcomes
        assert all(outcomes), "acknowledged by a broker that was taken over"
        assert "this broker was taken over" in broker.log_tail()
