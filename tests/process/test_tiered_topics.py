"""Tiered topics on a real broker with a stock client: closed segments are in the object store, local copies go, and
readers notice nothing.
"""

import contextlib
import json
import os
import shutil
import tempfile
import urllib.request

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tiered_stores import object_store
from tiering import (
    AT_ONCE,
    RECORDS,
    TIERED,
    archived,
    ask,
    consume,
    create,
    expected,
    leader,
    local_bases,
    metric,
    offset_of,
    only_the_tail_is_local,
    produce,
    tier,
    value,
)

from millstream.client.connection import Connection
from millstream.errors import Corruption
from millstream.format.manifest import decode_manifest
from millstream.testing import cluster
from millstream.testing.process import Broker
from millstream.testing.stem import run_command
from millstream.tiers import Archive
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millstream.wire.records import build_batch
from waits import until

pytestmark = pytest.mark.process


def test_history_is_read_from_the_store_after_its_local_copies_are_gone_and_after_a_kill():
    warm = {"cache.type": "nvme", "cache.fill": "both", "cache.max.segment.age.ms": 10**13}
    # In memory: the cache takes nothing on a disk with less than a tenth of its space free, as a test machine's may be.
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as cache,
        Broker(settings=AT_ONCE | warm | {"cache.path": f"{cache}/cache"}) as broker,
    ):
        create(broker, "flights")
        produce(broker, "flights", range(RECORDS))
        until(lambda: only_the_tail_is_local(broker), "local copies stayed")
        assert len(archived(broker)) > 5
        assert consume(broker, "flights") == expected(range(RECORDS))
        local = local_bases(broker)[0]
        assert offset_of(broker, "flights", OffsetSpec.earliest()) == 0
        for wanted in (0, 7, local - 1, local, RECORDS - 1):
            assert offset_of(broker, "flights", OffsetSpec.for_timestamp(1_700_000_000_000 + wanted)) == wanted
        assert offset_of(broker, "flights", OffsetSpec.max_timestamp()) == RECORDS - 1
        broker.kill()  # and the log cache is gone
        broker.start()
        assert consume(broker, "flights") == expected(range(RECORDS))
        assert metric(broker, "millstream_archive_reads_total") > 0
        produce(broker, "flights", range(RECORDS, RECORDS + 40))
        until(lambda: local_bases(broker)[0] > local, "the archive does not go on after a kill")
        assert consume(broker, "flights", start=7) == expected(range(7, RECORDS + 40))
        assert metric(broker, "millstream_hot_tier_fills_total") > 0
        with urllib.request.urlopen(f"{broker.http}/v1/cache", timeout=60) as answer:
            caches = json.load(answer)
        assert (caches["type"], caches["is_on"], caches["blocks"] > 0) == ("nvme", True, True)
        served = {one["by"]: one["count"] for one in caches["served"]}
        assert served["archive"] > 0
        assert served["warm cache"] + served["object store"] > 0
        broker.stop()
        broker.start()
        assert consume(broker, "flights", start=7) == expected(range(7, RECORDS + 40))


def test_records_that_are_deleted_leave_the_store_and_a_deleted_topic_leaves_nothing():
    with Broker(settings=AT_ONCE) as broker:
        create(broker, "gone")
        produce(broker, "gone", range(RECORDS))
        until(lambda: only_the_tail_is_local(broker), "local copies stayed")
        before = len(archived(broker))
        where = TopicPartition("gone", 0, 150)
        assert ask(broker, "delete_records", [where], where).low_watermark == 150
        until(lambda: 0 < len(archived(broker)) < before, "objects of deleted records stayed")
        assert consume(broker, "gone", start=150) == expected(range(150, RECORDS))
        with pytest.raises(AssertionError):
            consume(broker, "gone", start=149, patience_s=5)
        smaller = ConfigEntry("retention.bytes", "40000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "gone", incremental_configs=[smaller])
        ask(broker, "incremental_alter_configs", [resource], resource)
        until(lambda: offset_of(broker, "gone", OffsetSpec.earliest()) > 150, "retention forgot the archive")
        kept = offset_of(broker, "gone", OffsetSpec.earliest())
        assert consume(broker, "gone", start=kept) == expected(range(kept, RECORDS))
        assert (RECORDS - kept) * len(value(0)) >= 40_000, "a log never shrinks below its limit"
        ask(broker, "delete_topics", ["gone"], "gone")
        topics = broker.data_dir / "objects" / "topics"
        until(lambda: not any(files for _, _, files in os.walk(topics)), "objects of a deleted topic stayed")
        shutil.rmtree(topics, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.ci
def test_a_topic_comes_back_from_the_store_alone(tmp_path):
    store = tmp_path / "bucket"
    settings = {**AT_ONCE, "objects.url": f"file://{store}"}
    with Broker(settings=settings) as lost:
        create(lost, "flights", partitions=2, retention_bytes=10**9)
        produce(lost, "flights", range(RECORDS))
        manifest = "topics/*/0/manifest"
        until(lambda: list(store.glob(manifest)) and only_the_tail_is_local(lost), "it was not archived")
        (here, _) = sorted(tier(lost, "status", "flights")["partitions"], key=lambda one: one["partition"])
        until(lambda: tier(lost, "verify", code=None)["segments"] == here["archived_segments"], "the manifest is late")
        requests = {one["operation"]: one for one in tier(lost, "status")["requests"]}
        lost.kill()
    assert requests["put"]["count"] > here["archived_segments"]
    assert not requests["put"]["failures"]
    assert requests["put"]["bytes"] > here["archived_bytes"]
    end = here["archived_end_offset"]
    assert here["local_start_offset"] == end < here["high_watermark"] == RECORDS
    first = min(store.rglob("*.segment"))
    orphan = first.with_name(first.name.replace("-0.segment", "-7.segment"))
    shutil.copy(first, orphan)
    with Broker(settings=settings) as broker:
        (recovered,) = tier(broker, "recover")["topics"]
        assert (recovered["topic"], recovered["partitions"], recovered["records"]) == ("flights", 2, end)
        assert consume(broker, "flights") == expected(range(end))
        produce(broker, "flights", range(end, end + 40))
        assert consume(broker, "flights") == expected(range(end + 40))
        until(lambda: tier(broker, "status")["partitions"][0]["archived_end_offset"] > end, "the archive stands still")
        assert "is here already" in tier(broker, "recover", "flights", code=1)["topics"][0]["error"]
        assert tier(broker, "verify")["findings"] == []
        found = tier(broker, "scrub", "--older-than", "0", "--delete")
        assert [one["key"] for one in found["findings"]] == [str(orphan.relative_to(store))]
        assert not orphan.exists()
        broker.kill()
        broker.start()
        assert consume(broker, "flights") == expected(range(end + 40))
        damaged = bytearray(first.read_bytes())
        damaged[100] ^= 1
        first.write_bytes(damaged)
        (finding,) = tier(broker, "verify", "flights", code=1)["findings"]
        assert (finding["kind"], finding["key"]) == ("damaged", str(first.relative_to(store)))


@pytest.mark.slow
@pytest.mark.ci
def test_every_replica_drops_what_its_leader_archived_and_another_leader_goes_on(tmp_path):
    store = tmp_path / "bucket"
    with cluster(3, settings={**AT_ONCE, "objects.url": f"file://{store}"}) as three:
        brokers = three.brokers
        settings = {**TIERED, "min.insync.replicas": "2"}
        ask(brokers[1], "create_topics", [NewTopic("copies", 1, 3, config=settings)], "copies")
        until(lambda: leader(brokers[1]) in brokers, "no broker leads")
        produce(brokers[1], "copies", range(RECORDS))
        topic_ids = store / "topics"
        until(lambda: topic_ids.is_dir() and len(list(topic_ids.iterdir())) == 1, "nothing is archived")
        (topic_id,) = (one.name for one in topic_ids.iterdir())
        copies = {node: broker.data_dir / "topics" / topic_id for node, broker in brokers.items()}

        def bases(node):
            return sorted(int(path.name[:20]) for path in copies[node].rglob("*.log"))

        until(lambda: all(bases(node) and bases(node)[0] > 0 for node in brokers), "a replica keeps what is archived")
        assert consume(brokers[1], "copies") == expected(range(RECORDS))
        first = leader(brokers[1])
        terms = {path.stem.rpartition("-")[2] for path in store.rglob("*.segment")}
        assert len(terms) == 1, "one leader archives"
        three.kill(first)
        other = next(broker for node, broker in brokers.items() if node != first)
        until(lambda: leader(other) not in (first, -1), "no broker leads after the kill")
        produce(other, "copies", range(RECORDS, RECORDS + 60))
        assert consume(other, "copies") == expected(range(RECORDS + 60))
        until(
            lambda: {path.stem.rpartition("-")[2] for path in store.rglob("*.segment")} > terms,
            "the next leader archives nothing",
        )
        three.restart(first)
        assert consume(other, "copies") == expected(range(RECORDS + 60))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.ci), "s3"])
def test_a_topic_comes_back_into_an_empty_cluster(kind, tmp_path, monkeypatch):
    with object_store(kind, tmp_path, monkeypatch) as bucket:
        recover_into_an_empty_cluster(bucket.url, bucket.open())


def recover_into_an_empty_cluster(url, store):
    settings = {**AT_ONCE, "objects.url": url}
    with cluster(3, settings=settings, networks=False) as lost:  # they have to reach the S3 of this process
        one = lost.brokers[1]
        ask(one, "create_topics", [NewTopic("copies", 2, 3, config=TIERED | {"min.insync.replicas": "2"})], "copies")
        until(lambda: leader(one) in lost.brokers, "no broker leads")
        produce(one, "copies", range(RECORDS))
        lost.kill(leader(one))  # so that there is a second leader epoch
        other = next(broker for broker in lost.brokers.values() if broker.running)
        until(lambda: leader(other) in [node for node, it in lost.brokers.items() if it.running], "no broker leads")
        produce(other, "copies", range(RECORDS, RECORDS + 100))
        until(lambda: archived_to(store) > RECORDS, "it was not archived")
    end = archived_to(store)
    with cluster(3, settings=settings, networks=False) as found:
        brokers = found.brokers
        (recovered,) = tier(brokers[2], "recover")["topics"]
        assert (recovered["topic"], recovered["partitions"], recovered["records"]) == ("copies", 2, end)
        until(lambda: leader(brokers[1]) in brokers, "no broker leads")
        assert consume(brokers[1], "copies") == expected(range(end))
        produce(brokers[1], "copies", range(end, end + 40))
        assert consume(brokers[1], "copies") == expected(range(end + 40))
        assert "is here already" in tier(brokers[1], "recover", "copies", code=1)["topics"][0]["error"]
        first = leader(brokers[1])
        found.kill(first)
        rest = next(broker for node, broker in brokers.items() if node != first)
        until(lambda: leader(rest) not in (first, -1), "the recovered replicas elect nobody")
        assert consume(rest, "copies") == expected(range(end + 40))
        assert refuses_recovery(rest)


def refuses_recovery(broker):
    """Whether ``tier recover`` asks for the broker that is dead, once the cluster knows it."""

    def said():
        return "not alive" in run_command("tier", "recover", "--bootstrap", broker.bootstrap).stderr

    return until(said, "a cluster without a broker recovers topics")


def archived_to(store):
    """Where the manifest of partition 0 ends; 0 without one, or if it was replaced after it was listed."""
    for info in store.list("topics/"):
        if info.key.endswith("/0/manifest"):
            with contextlib.suppress(Corruption):
                return Archive.of(decode_manifest(store.get(info.key, 0, info.size_bytes))).end_offset
    return 0


@pytest.mark.slow
@pytest.mark.ci
def test_a_local_topic_becomes_tiered_and_its_active_segment_is_archived_when_it_is_old():
    with Broker(settings=AT_ONCE) as broker:
        create(broker, "later", storage_mode="local")
        produce(broker, "later", range(RECORDS))
        assert not archived(broker)
        settings = {"storage.mode": "tiered", "segment.upload.max.ms": "500"}
        configs = [ConfigEntry(*one, incremental_operation=AlterConfigOpType.SET) for one in settings.items()]
        resource = ConfigResource(ResourceType.TOPIC, "later", incremental_configs=configs)
        ask(broker, "incremental_alter_configs", [resource], resource)
        until(lambda: archived(broker), "the topic did not become tiered")
        produce(broker, "later", range(RECORDS, RECORDS + 5))  # less than a segment

        def ends():
            (one,) = tier(broker, "status", "later")["partitions"]
            return one["archived_end_offset"] == one["high_watermark"] == RECORDS + 5

        until(ends, "the active segment is not archived")
        assert consume(broker, "later") == expected(range(RECORDS + 5))
        back = ConfigEntry("storage.mode", "local", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "later", incremental_configs=[back])
        with pytest.raises(KafkaException):
            ask(broker, "incremental_alter_configs", [resource], resource)


@pytest.mark.slow
@pytest.mark.ci
def test_a_topic_that_was_compacted_is_archived_with_its_gaps_and_comes_back_from_the_store(tmp_path):
    settings = {**AT_ONCE, "log.cleaner.backoff.ms": 50, "objects.url": f"file://{tmp_path}/bucket"}
    with Broker(settings=settings) as broker:
        compacted = {"min.cleanable.dirty.ratio": "0.01", "cleanup_policy": "compact"}
        create(broker, "prices", storage_mode="local", **compacted)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for number in range(RECORDS):  # what the first, the middle and the last batches have stays
            key = number if number % 100 < 4 or number >= RECORDS - 4 else number % 7
            producer.produce("prices", value(number), b"%d" % key, timestamp=1_700_000_000_000 + number)
            if number % 3 == 2:
                assert producer.flush(60) == 0
        until(lambda: len(consume(broker, "prices")) < RECORDS // 2, "it was not compacted")

        def alter(**configs):
            changes = [
                ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET) for name, text in configs.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, "prices", incremental_configs=changes)
            ask(broker, "incremental_alter_configs", [resource], resource)

        alter(**{"cleanup.policy": "delete"})
        before = consume(broker, "prices")
        alter(**{"storage.mode": "tiered", "segment.upload.max.ms": "300"})

        def all_is_archived():
            (one,) = tier(broker, "status", "prices")["partitions"]
            return one["local_start_offset"] == RECORDS

        until(all_is_archived, "it was not archived")
        found = consume(broker, "prices")
        assert set(found) <= set(before), "a pass of the cleaner that had begun may end after the change"
        assert {key: (offset, text) for offset, key, text, _ in found} == {
            key: (offset, text) for offset, key, text, _ in before
        }, "the newest value of each key stays"
        for offset, _, _, timestamp in found:
            assert offset_of(broker, "prices", OffsetSpec.for_timestamp(timestamp)) == offset
        gap = next(one for one in range(RECORDS) if one not in {offset for offset, *_ in found})
        assert consume(broker, "prices", start=gap) == [one for one in found if one[0] > gap]
        with pytest.raises(KafkaException, match="create another topic and copy the records"):
            alter(**{"cleanup.policy": "compact"})
        until(lambda: tier(broker, "verify", code=None)["segments"] > 0, "the manifest is late")
        broker.kill()
    with Broker(settings=settings) as broker:
        assert tier(broker, "recover")["topics"][0]["topic"] == "prices"
        assert consume(broker, "prices") == found
        assert tier(broker, "verify")["findings"] == tier(broker, "scrub", "--older-than", "0")["findings"] == []


@pytest.mark.slow
@pytest.mark.ci
def test_history_is_read_from_s3(tmp_path, monkeypatch):
    with (
        object_store("s3", tmp_path, monkeypatch) as bucket,
        Broker(settings={**AT_ONCE, "objects.url": bucket.url}) as broker,
    ):
        create(broker, "flights")
        produce(broker, "flights", range(RECORDS))
        until(lambda: only_the_tail_is_local(broker), "local copies stayed")
        broker.kill()
        broker.start()
        assert consume(broker, "flights") == expected(range(RECORDS))
        assert metric(broker, "millstream_archive_reads_total") > 0
        assert tier(broker, "verify")["findings"] == []


@pytest.mark.slow
@pytest.mark.ci
def test_records_without_a_time_and_of_next_year_keep_nothing_on_the_disk_or_in_the_store():
    odd = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.local.target.ms": "1000"}
    with Broker(settings=AT_ONCE) as broker:
        create(broker, "later", **odd)
        create(broker, "never", retention_ms=1000, **odd)
        for topic, time_ms in (("later", 4_000_000_000_000), ("never", -1)):
            host, port = broker.bootstrap.split(":")
            with contextlib.closing(Connection(host, int(port), timeout_s=60)) as connection:
                for number in range(0, 60, 2):
                    batch = build_batch([(b"k", value(number), [], time_ms)] * 2)
                    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])]
                    asked = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)
                    answer = connection.call(asked, ProduceResponse, 9).responses[0].partition_responses[0]
                    assert answer.error_code == 0

        def ends(topic):
            (one,) = tier(broker, "status", topic)["partitions"]
            return one["log_start_offset"], one["local_start_offset"]

        until(lambda: ends("later")[1] >= 40, "a record of next year keeps local copies")
        until(lambda: ends("never")[0] >= 40, "records without a time are kept")
        assert ends("later")[0] == 0
