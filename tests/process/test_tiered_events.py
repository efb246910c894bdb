"""Tiered event topics on a real broker: sealed chunks are in the object store, local ones go, and consumers of events,
of data, and of records notice nothing.
"""

import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tiering import AT_ONCE, archived, ask, metric, until

from millstream.errors import Rejected
from millstream.events import EventsClient, SubView
from millstream.testing.process import Broker

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

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


def chunks(broker):
    return sorted((broker.data_dir / "topics").rglob("chunk-*.crc"))


def archive(broker, client, name):
    """A topic of which only the open chunk is on the disk."""
    client.create_topic(name, partitions_count=1, configs=TIERED)
    topic = client.open_topic(name)
    push(topic, range(COUNT))
    until(lambda: len(chunks(broker)) == 1 and len(archived(broker)) >= 7, "sealed chunks stayed", WAIT_S)
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
        until(lambda: len(chunks(broker)) == 1, "sealed chunks stayed", WAIT_S)
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
        until(lambda: 0 < len(archived(broker)) < before, "objects of deleted events stayed", WAIT_S)
        first = pull(topic, "c", 1)[0].id
        assert 0 < first < COUNT
        client.delete_topic("frames")
        topics = broker.data_dir / "objects" / "topics"
        until(lambda: not [one for one in topics.rglob("*") if one.is_file()], "objects stayed", WAIT_S)
