"""Shared topics of one broker: the disk keeps what is not uploaded, objects have the rest of many partitions."""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from archive_fault_support import check_all_read, produce_until
from confluent_kafka import Producer
from confluent_kafka.admin import OffsetSpec
from shared_kill_hook import STEPS
from shared_support import create, objects, settings, uploaded
from tiering import RECORDS, ask, consume, expected, local_bases, metric, offset_of, produce, tier, value

from millstream.testing.process import Broker
from waits import moment, until

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.ci
def test_records_of_many_partitions_go_into_few_objects_and_are_read_from_there(tmp_path):
    bucket = tmp_path / "bucket"
    with Broker(settings=settings(bucket), shards=2) as broker:
        create(broker, "many", 8)
        for partition in range(8):
            produce(broker, "many", range(30), partition)
        until(lambda: uploaded(broker, "many", 8), "the disk kept what is uploaded")
        assert 1 <= len(objects(bucket)) < 8 * 8
        broker.stop()  # what memory has is gone
        broker.start()
        for partition in range(8):
            assert consume(broker, "many", partition) == expected(range(30))
        assert metric(broker, "millstream_archive_reads_total") > 0
        assert offset_of(broker, "many", OffsetSpec.for_timestamp(1_700_000_000_011), 3) == 11
        assert offset_of(broker, "many", OffsetSpec.max_timestamp(), 3) == 29
        assert offset_of(broker, "many", OffsetSpec.earliest(), 3) == 0
        produce(broker, "many", range(30, 40), 3)
        assert consume(broker, "many", 3) == expected(range(40))


@pytest.mark.slow
@pytest.mark.ci
def test_a_broker_that_is_killed_at_any_moment_loses_nothing(tmp_path):
    chance = random.Random(7)
    with Broker(settings=settings(tmp_path / "bucket"), shards=1) as broker:
        create(broker, "killed", 2)
        end = 0
        for _ in range(6):
            produce(broker, "killed", range(end, end + 40))
            produce(broker, "killed", range(end, end + 40), 1)
            end += 40
            moment(chance.uniform(0, 0.7))  # before, during or after an upload, its commit, a checkpoint
            broker.kill()
            broker.start()
        for partition in (0, 1):
            assert consume(broker, "killed", partition) == expected(range(end))
        until(lambda: uploaded(broker, "killed", 2), "uploads stand still")
        for partition in (0, 1):
            assert consume(broker, "killed", partition) == expected(range(end))


@pytest.mark.slow
@pytest.mark.ci
def test_objects_go_when_nobody_needs_their_records(tmp_path):
    bucket = tmp_path / "bucket"
    with Broker(settings=settings(bucket), shards=2) as broker:
        create(broker, "short", 2, retention_ms=1)
        create(broker, "deleted")
        create(broker, "stays")
        for topic in ("short", "deleted", "stays"):
            produce(broker, topic, range(30))
        until(lambda: uploaded(broker, "stays"), "uploads stand still")
        ask(broker, "delete_topics", ["deleted"], "deleted")
        until(lambda: offset_of(broker, "short", OffsetSpec.earliest()) == 30, "retention does nothing")
        kept = len(objects(bucket))
        produce(broker, "short", range(30, 60))
        until(lambda: uploaded(broker, "short", 2), "uploads stand still")
        until(lambda: offset_of(broker, "short", OffsetSpec.earliest()) == 60, "retention does nothing")
        until(lambda: len(objects(bucket)) <= kept, "dead objects stay")
        assert consume(broker, "stays") == expected(range(30))
        ask(broker, "delete_topics", ["stays"], "stays")
        until(lambda: not objects(bucket), "objects of deleted topics stay")


@pytest.mark.slow
@pytest.mark.ci
def test_a_store_that_is_away_makes_producers_wait_and_loses_nothing(tmp_path):
    bucket = tmp_path / "bucket"
    small = settings(bucket, **{"shared.uncommitted.max.bytes": 1 << 20})
    with Broker(settings=small, shards=1) as broker:
        create(broker, "away")
        produce(broker, "away", range(RECORDS))
        until(lambda: uploaded(broker, "away"), "uploads stand still")
        bucket.rename(tmp_path / "hidden")
        bucket.write_text("no directory")
        acked = RECORDS
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "delivery.timeout.ms": 3000}
        )
        outcomes = []
        for number in range(4000):
            with suppress(BufferError):
                producer.produce("away", value(number), on_delivery=lambda error, _: outcomes.append(error))
            producer.poll(0.001)
        producer.flush(60)
        acked += sum(error is None for error in outcomes)
        assert any(outcomes), "nothing waited"
        assert metric(broker, "millstream_shared_uncommitted_bytes") >= 1 << 20
        bucket.unlink()
        (tmp_path / "hidden").rename(bucket)
        until(lambda: uploaded(broker, "away"), "uploads stand still")
        produce(broker, "away", range(5))
        assert len(consume(broker, "away")) >= acked + 5


@pytest.mark.slow
@pytest.mark.ci
def test_a_broker_whose_disk_is_lost_comes_back_with_everything_that_was_uploaded(tmp_path):
    bucket = tmp_path / "bucket"
    with Broker(settings=settings(bucket), shards=2) as broker:
        create(broker, "lost", 3)
        for partition in range(3):
            produce(broker, "lost", range(50), partition)
            produce(broker, "lost", range(50, 90), partition)
        until(lambda: uploaded(broker, "lost", 3), "uploads stand still")
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.data_dir.mkdir()
        broker.start()
        moment(1)  # sweeps leave alone what they do not know
        found = tier(broker, "recover", "lost")
        assert not any("error" in one for one in found), found
        for partition in range(3):
            assert consume(broker, "lost", partition) == expected(range(90))
        produce(broker, "lost", range(90, 100))
        assert consume(broker, "lost") == expected(range(100))
        until(lambda: uploaded(broker, "lost", 3), "uploads stand still")
        assert local_bases(broker) != [0]


@pytest.mark.slow
def test_a_broker_that_is_killed_at_any_step_of_an_object_loses_nothing(tmp_path):
    step, aside = tmp_path / "step", tmp_path / "aside"
    hook = {"internal.shard.hook": "shared_kill_hook:kill_at_step"}
    where = {"PYTHONPATH": str(Path(__file__).parent), "MILLSTREAM_KILL_AT": str(step)}
    with Broker(settings=settings(tmp_path / "bucket") | hook, shards=1, env=where) as broker:
        create(broker, "killed", 2)
        acknowledged = {}
        for number, name in enumerate(STEPS):
            aside.write_text(name)
            aside.replace(step)
            produce_aside(broker, number)
            acknowledged |= produce_until(broker, "killed", 1000 * number, lambda: not step.exists())
            broker.kill()  # collects the process
            broker.start()
            check_all_read(consume(broker, "killed"), acknowledged)
        assert len(acknowledged) > 20, "the steps were reached without records"
        until(lambda: uploaded(broker, "killed", 2), "uploads stand still")
        check_all_read(consume(broker, "killed"), acknowledged)
        assert not tier(broker, "verify")["findings"]


def produce_aside(broker, number):
    """Some records in the other partition, whose outcome does not matter: objects have two partitions."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "delivery.timeout.ms": 1000, "log_level": 0})
    for one in range(20):
        producer.produce("killed", value(one), b"%d" % number, 1)
    producer.flush(2)


@pytest.mark.slow
@pytest.mark.ci
def test_transactions_of_uploaded_records_are_read_as_they_ended(tmp_path):
    with Broker(settings=settings(tmp_path / "bucket"), shards=1) as broker:
        create(broker, "money")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "teller"})
        producer.init_transactions(60)
        for number in range(6):
            producer.begin_transaction()
            for _ in range(3):
                producer.produce("money", b"%d" % number)
            producer.flush(60)
            (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)
        until(lambda: uploaded(broker, "money"), "uploads stand still")
        broker.stop()
        broker.start()
        assert [one[2] for one in consume(broker, "money")] == [
            b"%d" % number for number in (0, 2, 4) for _ in range(3)
        ]
