"""Tiered event topics on a real broker: sealed chunks are in the object store, local ones go, and consumers of events,
of data, and of records notice nothing.
"""

import os
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tiered_stores import object_store
from tiering import AT_ONCE, archived, ask, metric

from millstream.errors import Rejected
from millstream.events import EventsClient, SubView
from millstream.testing import cluster
from millstream.testing.process import Broker
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

WAIT_S = 120
COUNT = 400
LIMITS = '{"max_events_per_chunk": 50}'
TIERED = {
    "storage.mode": "tiered",
    "retention.ms": "-1",
    "retention.local.target.ms": "0",
    "file.delete.delay.ms": "100",
    "events.partition": LIMITS,
}


def event(number):
    return {"n": number}, bytes([number % 251]) * (number % 3000)


def push(topic, numbers):
    with topic.producer(batch_size=7) as producer:
        futures = [producer.push(*event(number)) for number in numbers]
    return [future.result(WAIT_S) for future in futures]


def pull(topic, name, count, **options):
    with topic.consumer(name, **options) as consumer:
        return [consumer.pull(WAIT_S) for _ in range(count)]


def read_back(topic, name, numbers):
    found = pull(topic, name, len(numbers))
    assert [one.id for one in found] == list(numbers)
    assert [(one.metadata, b"".join(one.data)) for one in found] == [event(number) for number in numbers]


def alter(broker, name, key, value):
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    ask(broker, "incremental_alter_configs", [resource], resource)


def test_events_of_three_brokers_are_read_back_from_s3_also_by_the_next_leader(tmp_path, monkeypatch):
    with object_store("s3", tmp_path, monkeypatch) as bucket:
        settings = {**AT_ONCE, "objects.url": bucket.url}
        with cluster(3, settings=settings, networks=False) as three:  # they have to reach the S3 of this process
            store = bucket.open()
            config = {**TIERED, "topic.kind": "events", "min.insync.replicas": "2"}
            ask(three.brokers[1], "create_topics", [NewTopic("frames", 1, 3, config=config)], "frames")
            with EventsClient(three.bootstrap, timeout_s=WAIT_S) as client:
                push(client.open_topic("frames"), range(COUNT))

                def archived_everywhere():
                    kept = [len(chunks(broker)) for broker in three.brokers.values()]
                    keys = [info.key for info in store.list("topics/")]
                    return kept == [1, 1, 1] and sum(key.endswith(".segment") for key in keys) >= 7

                until(archived_everywhere, "sealed chunks stayed")
            three.kill(first := leader_of(three.brokers[1], "frames"))  # and its log cache is gone
            other = next(broker for broker in three.brokers.values() if broker.running)
            until(lambda: leader_of(other, "frames") not in (first, -1), "no broker leads after the kill")
            alive = ",".join(broker.bootstrap for broker in three.brokers.values() if broker.running)
            with EventsClient(alive, timeout_s=WAIT_S) as client:
                topic = client.open_topic("frames")
                read_back(topic, "all", range(COUNT))
                push(topic, range(COUNT, COUNT + 100))
            for node, broker in three.brokers.items():  # now nobody has anything in memory
                if broker.running:
                    three.kill(node)
            three.start()
            until(lambda: leader_of(other, "frames") in three.brokers, "no broker leads after the start")
            with EventsClient(three.bootstrap, timeout_s=WAIT_S) as client:
                read_back(client.open_topic("frames"), "everything", range(COUNT + 100))
            reads = sum(metric(broker, "millstream_archive_reads_total") for broker in three.brokers.values())
            assert reads > 0, "nothing was read from the store"


def leader_of(broker, name):
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topics = client.list_topics(timeout=60).topics
    return topics[name].partitions[0].leader if name in topics and topics[name].partitions else -1


def chunks(broker):
    return sorted((broker.data_dir / "topics").rglob("chunk-*.crc"))


def archive(broker, client, name):
    """A topic of which only the open chunk is on the disk."""
    client.create_topic(name, partitions_count=1, configs=TIERED)
    topic = client.open_topic(name)
    push(topic, range(COUNT))
    until(lambda: len(chunks(broker)) == 1 and len(archived(broker)) >= 7, "sealed chunks stayed")
    return topic


@pytest.mark.ci
def test_events_are_fed_and_fetched_from_the_store_after_their_chunks_are_gone_and_after_a_kill():
    with Broker(settings=AT_ONCE) as broker:
        with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
            archive(broker, client, "frames")
        broker.kill()  # and the log cache is gone
        broker.start()
        with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
            topic = client.open_topic("frames")
            read_back(topic, "all", range(COUNT))
            assert metric(broker, "millstream_events_fed_total") >= COUNT
            push(topic, range(COUNT, COUNT + 100))
            read_back(topic, "more", range(COUNT + 100))

            def ends(metadata, descriptor):
                return descriptor.narrowed(SubView(5, 10)) if metadata["n"] % 100 == 50 else None

            def room(metadata, descriptor):
                return [bytearray(descriptor.size)]

            few = pull(topic, "few", COUNT, data_selector=ends, data_allocator=room)
            assert [b"".join(one.data) for one in few if one.data] == [event(n)[1][5:15] for n in (50, 150, 250, 350)]
        options = {"bootstrap.servers": broker.bootstrap, "group.id": "records", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(options)
        consumer.assign([confluent_kafka.TopicPartition("frames", 0, 3)])
        found, end = [], time.monotonic() + WAIT_S
        while len(found) < COUNT - 3 and time.monotonic() < end:
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None, message.error()
                found.append((message.offset(), message.value()))
        consumer.close()
        assert found == [(number, b'{"n":%d}' % number) for number in range(3, COUNT)]


def test_a_descriptor_stays_good_when_its_chunk_has_gone_to_the_store_and_a_wrong_one_is_refused():
    with Broker(settings=AT_ONCE) as broker, EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
        client.create_topic("frames", partitions_count=1, configs={**TIERED, "retention.local.target.ms": "-1"})
        topic = client.open_topic("frames")
        push(topic, range(COUNT))
        given = {}

        def remember(metadata, descriptor):
            given[metadata["n"]] = descriptor

        pull(topic, "c", COUNT, data_selector=remember, data_allocator=lambda *_: [])
        alter(broker, "frames", "retention.local.target.ms", "0")
        until(lambda: len(chunks(broker)) == 1, "sealed chunks stayed")
        broker.kill()
        broker.start()
        wanted = [(number, given[number]) for number in (3, 120, 121, 399)]
        found = topic.fetch_data(0, wanted)
        assert [bytes(one) for one in found] == [event(number)[1] for number, _ in wanted]
        with pytest.raises(Rejected, match="INVALID_REQUEST"):
            topic.fetch_data(0, [(3, given[120])])


def test_retention_and_deletion_reach_the_objects_of_an_event_topic():
    with Broker(settings=AT_ONCE) as broker, EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
        topic = archive(broker, client, "frames")
        before = len(archived(broker))
        alter(broker, "frames", "retention.bytes", "40000")
        until(lambda: 0 < len(archived(broker)) < before, "objects of deleted events stayed")
        first = pull(topic, "c", 1)[0].id
        assert 0 < first < COUNT
        client.delete_topic("frames")
        topics = broker.data_dir / "objects" / "topics"
        until(lambda: not any(files for _, _, files in os.walk(topics)), "objects stayed")
