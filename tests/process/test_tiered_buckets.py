"""Tiered topics over a store that is away for long, and a broker of a cluster that loses its disk."""

import threading
import uuid

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tiered_stores import REFUSED, STALLED, THROTTLED, object_store
from tiering import (
    AT_ONCE,
    RECORDS,
    TIERED,
    InBackground,
    archived,
    ask,
    consume,
    create,
    expected,
    leader,
    metric,
    only_the_tail_is_local,
    produce,
    tier,
)

from millstream.testing import cluster
from millstream.testing.process import Broker
from waits import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("kind", "how"),
    [("local", REFUSED), ("s3", REFUSED), ("s3", STALLED), ("s3", THROTTLED)],
)
def test_a_store_that_is_away_longer_than_any_request_waits_costs_time_and_nothing_else(
    kind, how, tmp_path, monkeypatch
):
    """Producers and readers of the tail do not notice, a reader of history waits, and then everything is archived."""
    with (
        object_store(kind, tmp_path, monkeypatch) as store,
        Broker(settings={**AT_ONCE, "objects.url": store.url}) as broker,
    ):
        create(broker, "away")
        produce(broker, "away", range(RECORDS))
        until(lambda: only_the_tail_is_local(broker), "local copies stayed")
        broker.stop()  # what is in memory is gone
        broker.start()
        end, ending = [RECORDS], threading.Event()

        def go_on():
            while not ending.is_set():
                produce(broker, "away", range(end[0], end[0] + 20))
                end[0] += 20
                ending.wait(0.5)

        store.away(how)
        try:
            producing = InBackground(go_on)
            history = InBackground(lambda: consume(broker, "away", patience_s=2 * PATIENCE_S))
            failures = "millstream_archive_upload_failures_total"
            until(lambda: metric(broker, failures) > 0, "no upload gave up")
            until(lambda: metric(broker, "millstream_archive_read_failures_total") > 0, "no read gave up")
            place = end[0]
            tail = consume(broker, "away", start=place - 20)
            assert tail[:20] == expected(range(place - 20, place))
        finally:
            ending.set()
            producing.join(PATIENCE_S)
            store.back()
        found = history.join(2 * PATIENCE_S)
        assert found == expected(range(len(found)))
        assert len(found) >= RECORDS
        until(lambda: only_the_tail_is_local(broker), "the archive does not go on")
        until(lambda: not tier(broker, "verify", code=None)["findings"], "the store is not what the manifest says")
        assert consume(broker, "away") == expected(range(end[0]))


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_broker_that_lost_its_disk_gets_the_archived_partitions_of_its_cluster_back(kind, tmp_path, monkeypatch):
    with object_store(kind, tmp_path, monkeypatch) as store:
        settings = {**AT_ONCE, "objects.url": store.url}
        with cluster(3, settings=settings, networks=False) as three:  # they have to reach the S3 of this process
            brokers = three.brokers
            config = {**TIERED, "min.insync.replicas": "2"}
            ask(brokers[1], "create_topics", [NewTopic("copies", 1, 3, config=config)], "copies")
            until(lambda: leader(brokers[1]) in brokers, "no broker leads")
            produce(brokers[1], "copies", range(RECORDS))

            def archived_to(broker):
                partitions = tier(broker, "status", "copies")["partitions"]
                return partitions and partitions[0]["archived_end_offset"]

            until(lambda: archived_to(brokers[1]) > RECORDS // 2, "nothing is archived")
            lost = leader(brokers[1])
            three.kill(lost)
            other = next(broker for node, broker in brokers.items() if node != lost)
            until(lambda: leader(other) not in (lost, -1), "no broker leads after the kill")
            three.replace(lost)
            produce(other, "copies", range(RECORDS, RECORDS + 60))
            again = brokers[lost]

            def has_it():
                (topic_id,) = (path.name for path in (other.data_dir / "topics").iterdir())
                return sorted((again.data_dir / "topics" / topic_id).rglob("*.log"))

            until(has_it, "the new broker has no replica")
            until(lambda: in_sync(other) == {1, 2, 3}, "the replica is not in sync")
            first = leader(other)
            three.kill(first)  # the new one has to lead, or to help who does
            alive = next(broker for broker in brokers.values() if broker.running)
            until(lambda: leader(alive) not in (first, -1), "no broker leads without the first")
            assert consume(again, "copies") == expected(range(RECORDS + 60))
            produce(again, "copies", range(RECORDS + 60, RECORDS + 90))
            assert consume(again, "copies") == expected(range(RECORDS + 90))
            three.restart(first)
            until(
                lambda: not tier(again, "verify", code=None)["findings"],
                "the store is not what the manifest says",
            )


def in_sync(broker):
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    return set(client.list_topics("copies", timeout=60).topics["copies"].partitions[0].isrs)


@pytest.mark.ci
def test_objects_of_a_topic_that_is_deleted_while_the_store_is_away_go_when_it_is_back(tmp_path, monkeypatch):
    """Also after a kill; and nobody recovers the topic meanwhile, or afterwards."""
    with (
        object_store("local", tmp_path, monkeypatch) as store,
        Broker(settings={**AT_ONCE, "objects.url": store.url}) as broker,
    ):
        create(broker, "kept")
        create(broker, "gone", partitions=2)
        for topic in ("kept", "gone"):
            produce(broker, topic, range(RECORDS))
        until(lambda: len(topic_ids(store)) == 2, "nothing is archived")
        until(lambda: tier(broker, "verify", code=None)["segments"] > 10, "no manifest is written")
        (kept,) = (one["topic_id"] for one in topics_of(broker) if one["name"] == "kept")
        store.away(REFUSED)
        ask(broker, "delete_topics", ["gone"], "gone")
        marks = broker.data_dir / "purges"
        until(lambda: marks.is_dir() and len(list(marks.iterdir())) == 2, "the deletion is not noted")
        broker.kill()
        store.back()
        assert len(topic_ids(store)) == 2
        broker.start()
        until(lambda: topic_ids(store) == {kept}, "objects of the deleted topic stayed")
        until(lambda: not list(marks.iterdir()), "it is not noted that they are gone")
        assert [one["topic"] for one in tier(broker, "recover", code=1)["topics"]] == ["kept"]
        assert consume(broker, "kept") == expected(range(RECORDS))


@pytest.mark.ci
def test_objects_of_deleted_records_go_also_if_the_broker_stops_before_it_removes_them():
    """What it has to remove is in its memory alone: after the start they are found by their offsets."""
    with Broker(settings=AT_ONCE) as broker:
        create(broker, "trimmed", file_delete_delay_ms=3_600_000)
        produce(broker, "trimmed", range(RECORDS))
        until(lambda: only_the_tail_is_local(broker), "local copies stayed")
        middle = TopicPartition("trimmed", 0, RECORDS // 2)
        ask(broker, "delete_records", [middle], middle)
        broker.stop()

        def below():
            return [path.name for path in archived(broker) if int(path.name[21:41]) <= RECORDS // 2]

        assert len(below()) > 2, "they went before their time"
        broker.start()
        sooner = ConfigEntry("file.delete.delay.ms", "100", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "trimmed", incremental_configs=[sooner])
        ask(broker, "incremental_alter_configs", [resource], resource)  # what it remembers stays for an hour
        until(lambda: not below(), "objects of deleted records stayed")
        assert consume(broker, "trimmed", start=RECORDS // 2) == expected(range(RECORDS))[RECORDS // 2 :]
        until(lambda: not tier(broker, "verify", code=None)["findings"], "the store is not what the manifest says")


def topic_ids(store):
    """The topics that have anything in the store."""
    return {info.key.split("/")[1] for info in store.open().list("topics/")}


def topics_of(broker):
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    found = client.describe_topics(TopicCollection(["kept", "gone"]))
    described = [one.result(60) for one in found.values()]
    return [{"name": one.name, "topic_id": uuid_of(one.topic_id).hex} for one in described]


def uuid_of(topic_id):
    parts = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    high, low = (part % (1 << 64) for part in parts)
    return uuid.UUID(int=high << 64 | low)
