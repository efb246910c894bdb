"""Joins of shared topics: small ranges become larger objects, shared objects go, and readers notice nothing."""

import contextlib
import shutil
from pathlib import Path

import pytest
from archive_fault_support import check_all_read, produce_until
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from shared_join_kill_hook import STEPS
from shared_support import create, objects, settings, uploaded
from tiered_stores import object_store
from tiering import InBackground, ask, consume, expected, metric, offset_of, produce, tier

from millstream.testing.process import Broker
from waits import PATIENCE_S, moment, until

pytestmark = [pytest.mark.process, pytest.mark.slow]


JOINING = {"shared.join.interval.ms": 400}


def shared(store):
    """Keys of the shared objects of a store."""
    with contextlib.closing(store.open()) as opened:
        return [one.key for one in opened.list("shared/")]


@pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.ci), "s3"])
def test_ranges_of_many_uploads_become_few_objects_and_shared_objects_go_under_readers(kind, tmp_path, monkeypatch):
    with (
        object_store(kind, tmp_path, monkeypatch) as store,
        Broker(settings=settings(tmp_path) | JOINING | {"objects.url": store.url}, shards=2) as broker,
    ):
        create(broker, "many", 4)
        stops = []

        def read_on():
            while not stops:
                found = consume(broker, "many", 1)
                assert found == expected(range(len(found)))
            return True

        for partition in range(4):
            produce(broker, "many", range(20), partition)
        reader = InBackground(read_on)
        for first in range(20, 120, 20):
            for partition in range(4):
                produce(broker, "many", range(first, first + 20), partition)
            moment(0.3)
        until(lambda: uploaded(broker, "many", 4), "uploads stand still")
        until(lambda: not shared(store), "shared objects stay")
        stops.append(True)
        assert reader.join(PATIENCE_S)
        assert metric(broker, "millstream_shared_joins_total") >= 4
        broker.stop()  # what memory has is gone
        broker.start()
        for partition in range(4):
            assert consume(broker, "many", partition) == expected(range(120))
        assert metric(broker, "millstream_archive_reads_total") > 0
        assert offset_of(broker, "many", OffsetSpec.for_timestamp(1_700_000_000_031), 2) == 31
        assert not tier(broker, "verify")["findings"]
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.data_dir.mkdir()
        broker.start()
        found = tier(broker, "recover", "many")
        assert not any("error" in one for one in found["topics"]), found
        for partition in range(4):
            assert consume(broker, "many", partition) == expected(range(120))
        produce(broker, "many", range(120, 140), 2)
        client = AdminClient({"bootstrap.servers": broker.bootstrap})
        for deleted in client.delete_records([TopicPartition("many", 2, 50)]).values():
            deleted.result(60)
        until(lambda: offset_of(broker, "many", OffsetSpec.earliest(), 2) == 50, "records stay")
        until(lambda: uploaded(broker, "many", 4), "uploads stand still")
        assert consume(broker, "many", 2, start=50) == expected(range(140))[50:]
        ask(broker, "delete_topics", ["many"], "many")
        with contextlib.closing(store.open()) as opened:
            until(lambda: not list(opened.list("")), "objects of a deleted topic stay")


def test_a_broker_that_is_killed_at_any_step_of_a_join_loses_nothing(tmp_path):
    bucket, step, aside = tmp_path / "bucket", tmp_path / "step", tmp_path / "aside"
    hook = {"internal.shard.hook": "shared_join_kill_hook:kill_at_step"}
    where = {"PYTHONPATH": str(Path(__file__).parent), "MILLSTREAM_KILL_AT": str(step)}
    with Broker(settings=settings(bucket) | JOINING | hook, shards=1, env=where) as broker:
        create(broker, "killed")
        acknowledged = {}
        for number, name in enumerate(STEPS):
            aside.write_text(name)
            aside.replace(step)
            acknowledged |= produce_until(broker, "killed", 1000 * number, lambda: not step.exists())
            broker.kill()  # collects the process
            broker.start()
            check_all_read(consume(broker, "killed"), acknowledged)
        assert len(acknowledged) > 20, "the steps were reached without records"
        until(lambda: uploaded(broker, "killed"), "uploads stand still")
        until(lambda: not objects(bucket), "shared objects stay")
        check_all_read(consume(broker, "killed"), acknowledged)
        assert not tier(broker, "verify")["findings"]
        tier(broker, "scrub", "--older-than", "0", "--delete")
        broker.stop()
        broker.start()
        check_all_read(consume(broker, "killed"), acknowledged)
