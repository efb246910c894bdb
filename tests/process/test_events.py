"""Event topics of a real broker: what is pushed is fed, fetched in ranges, acknowledged, and there after a kill."""

import contextlib
import json
import random
import struct
import subprocess
import sys
import threading
import urllib.request

import confluent_kafka
import confluent_kafka.admin
import pytest

from millstream.errors import Rejected
from millstream.events import EventsClient, decode_descriptor
from millstream.format.events import INDEX_RECORD_BYTES, StrideView, SubView
from millstream.model.error_code import ErrorCode
from waits import Patience, until

pytestmark = pytest.mark.process

WAIT_S = 120
EVENTS = [({"n": n, "even": n % 2 == 0}, bytes([n % 251]) * (n % 40)) for n in range(300)]


@pytest.fixture
def client(broker):
    with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as one:
        yield one


_numbers = iter(range(1000))


@pytest.fixture
def topic(client):
    name = f"events{next(_numbers)}"
    client.create_topic(name, partitions_count=2)
    return client.open_topic(name)


def push(topic, events, **options):
    with topic.producer(**options) as producer:
        futures = [producer.push(*event, partition=n % 2) for n, event in enumerate(events)]
    return [future.result(WAIT_S) for future in futures]


def consumed(topic, count, name="c", **options):
    """Events by partition, in order of their ids."""
    found = {0: [], 1: []}
    with topic.consumer(name, **options) as consumer:
        for _ in range(count):
            one = consumer.pull(WAIT_S)
            found[one.partition].append(one)
    return found


def check(found, events=EVENTS):
    for partition, ones in found.items():
        wanted = events[partition::2]
        assert [one.id for one in ones] == list(range(len(wanted)))
        assert [(one.metadata, b"".join(one.data)) for one in ones] == wanted


@pytest.mark.parametrize("batch_size", [1, 16, None])
def test_what_is_pushed_is_fed_in_order_with_its_data(topic, batch_size):
    ids = push(topic, EVENTS, batch_size=batch_size)
    assert ids == [n // 2 for n in range(300)]
    check(consumed(topic, 300, batch_size=7))


def test_only_selected_ranges_are_fetched(topic):
    push(topic, [({"n": n}, bytes(range(100))) for n in range(20)])

    def select(metadata, descriptor):
        if metadata["n"] % 3:
            return None
        return descriptor.narrowed(SubView(10, 50)).narrowed(StrideView(0, 3, 4, 6))

    found = consumed(
        topic, 20, data_selector=select, data_allocator=lambda metadata, descriptor: [bytearray(descriptor.size)]
    )
    for one in (*found[0], *found[1]):
        wanted = b"" if one.metadata["n"] % 3 else bytes([*range(10, 14), *range(20, 24), *range(30, 34)])
        assert b"".join(one.data) == wanted


def test_a_consumer_goes_on_where_it_acknowledged_and_its_lag_is_a_groups(topic, client):
    push(topic, EVENTS)
    with topic.consumer("acker", targets=[0]) as consumer:
        for _ in range(10):
            one = consumer.pull(WAIT_S)
        one.acknowledge()
        assert consumer.lag() == {0: 140}
    with topic.consumer("acker", targets=[0]) as consumer:
        assert consumer.pull(WAIT_S).id == 10
        consumer.seek(0, 3)
        assert consumer.pull(WAIT_S).id == 3


def take(parts, found, count):
    """Pull and acknowledge until ``count`` events are found. ``parts``: which partitions each consumer has had."""
    patience = Patience()
    while len(found) < count:
        patience.check(f"{len(found)} of {count} events came")
        for consumer, partitions in parts.items():
            with contextlib.suppress(TimeoutError):
                event = consumer.pull(0.05)
                found.append((event.partition, event.id))
                partitions.add(event.partition)
                event.acknowledge().result(WAIT_S)


def test_consumers_of_one_name_share_the_partitions_and_a_group_tool_sees_them(client, broker):
    client.create_topic("shared", partitions_count=4)
    topic = client.open_topic("shared")
    found = []
    with topic.consumer("team") as first:
        with topic.producer() as producer:
            for n in range(40):
                producer.push({"n": n}, partition=n % 4)
        take({first: set()}, found, 40)
        with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as other:
            second = other.open_topic("shared").consumer("team")
            parts = {first: set(), second: set()}
            patience = Patience()
            while not (parts[first] and parts[second]):
                patience.check("one of the two gets nothing")
                for one in parts.values():
                    one.clear()
                with topic.producer() as producer:
                    for n in range(4):
                        producer.push({"n": n}, partition=n)
                take(parts, found, len(found) + 4)
            assert parts[first] | parts[second] == {0, 1, 2, 3}
            assert not parts[first] & parts[second]
            admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
            (described,) = admin.describe_consumer_groups(["team"]).values()
            assert len(described.result(WAIT_S).members) == 2
            second.close()
        until(lambda: len(first._feeds) == 4, "the one that stayed reads all partitions")
    assert len(found) == len(set(found))
    assert topic.consumer("team", targets=[0]).lag() == {0: 0}


def test_what_a_consumer_did_not_acknowledge_goes_to_the_next_of_its_name(topic):
    push(topic, EVENTS[:20])
    first = topic.consumer("heirs")
    assert len([first.pull(WAIT_S) for _ in range(20)]) == 20
    first.acknowledge(1, 9).result(WAIT_S)
    first.close()
    with topic.consumer("heirs") as second:
        assert [(one.partition, one.id) for one in (second.pull(WAIT_S) for _ in range(10))] == [
            (0, n) for n in range(10)
        ]


def test_acknowledgements_of_many_connections_only_move_forward(topic, broker):
    push(topic, EVENTS)
    ids = random.Random(1).sample(range(150), 90)

    def acknowledge(part):
        with (
            EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client,
            client.open_topic(topic.name).consumer("many", targets=[0]) as consumer,
        ):
            for one in part:
                consumer.acknowledge(0, one).result(WAIT_S)

    threads = [threading.Thread(target=acknowledge, args=(ids[n::3],)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with topic.consumer("many", targets=[0]) as consumer:
        assert consumer.lag() == {0: 149 - max(ids)}


CONSUMER = """
import sys
from millstream.events import EventsClient
with EventsClient(sys.argv[1]) as client, client.open_topic(sys.argv[2]).consumer("killed", targets=[0, 1]) as consumer:
    while True:
        consumer.pull()
        print("one", flush=True)
"""


def test_consumers_that_are_killed_while_they_fetch_data_disturb_nobody(topic, broker):
    events = [({"n": n}, bytes([n]) * (256 << 10)) for n in range(40)]
    push(topic, events)
    for _ in range(2):
        command = [sys.executable, "-c", CONSUMER, broker.bootstrap, topic.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as consumer:
            assert consumer.stdout.readline() == b"one\n"
            consumer.kill()
    check(consumed(topic, 40), events)


BACKLOG = """
import resource, sys
from millstream.events import EventsClient
count = int(sys.argv[3])
with EventsClient(sys.argv[1], timeout_s=60) as client, client.open_topic(sys.argv[2]).consumer("slow") as consumer:
    assert [consumer.pull(60).id for _ in range(count)] == list(range(count))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_backlog_of_a_million_events_is_consumed_in_little_memory(client, broker):
    client.create_topic("backlog")
    with client.open_topic("backlog").producer(batch_size=4096) as producer:
        for n in range(1_000_000):
            producer.push({"n": n})
    command = [sys.executable, "-c", BACKLOG, broker.bootstrap, "backlog", "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert int(done.stdout) < 200 * 1024, "KiB"


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_events_of_any_size_up_to_the_limit_come_back_and_a_larger_one_is_refused(client, size):
    name = f"sizes-{size}"
    client.create_topic(name, configs={"events.max.bytes": str(size + 10)})
    topic = client.open_topic(name)
    with topic.producer() as producer:
        producer.push({}, bytes(size)).result(WAIT_S)
        with pytest.raises(Rejected, match="split it, or keep the data elsewhere"):
            producer.push({}, bytes(size + 9))
    with topic.consumer("c") as consumer:
        assert b"".join(consumer.pull(WAIT_S).data) == bytes(size)


def test_a_complete_topic_ends_and_takes_no_more(topic):
    push(topic, EVENTS[:9])
    topic.complete()
    with topic.consumer("c") as consumer:
        assert len(list(consumer)) == 9
    with pytest.raises(Rejected, match="complete") as caught, topic.producer() as producer:
        producer.push({}).result(WAIT_S)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"cleanup.policy": "compact"}, "compact needs keys"),
        ({"compression.type": "zstd"}, "ranges of data"),
        ({"events.partition": '{"max_chunk_sise": 1}'}, "max_chunk_sise"),
        ({"topic.kind": "records"}, "topic.kind=events"),
    ],
)
def test_what_does_not_fit_events_is_refused_in_words(client, configs, why):
    with pytest.raises(Rejected, match=why):
        client.create_topic("refused", configs=configs)


def test_acknowledged_events_are_there_after_a_kill_in_chunks_of_the_seeds_limits(broker_factory):
    broker = broker_factory(shards=1)
    with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
        client.create_topic(
            "t",
            partitions_count=2,
            configs={"events.partition": '{"max_events_per_chunk": 60, "fd_cache_capacity": 2}'},
        )
        push(client.open_topic("t"), EVENTS, batch_size=7)
    broker.kill()
    broker.start()
    with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
        topic = client.open_topic("t")
        check(consumed(topic, 300))
        push(topic, EVENTS)
        check(consumed(topic, 600, name="d"), EVENTS + EVENTS)
    broker.stop()
    directories = sorted(broker.data_dir.glob("topics/*/t-*"))
    assert len(directories) == 2
    for directory in directories:
        counts = [one.stat().st_size // INDEX_RECORD_BYTES for one in sorted(directory.glob("chunk-*.idx"))]
        assert sum(counts) == 300
        assert all(60 <= count < 60 + 150 for count in counts[:-1])
    broker.start()
    with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
        check(consumed(client.open_topic("t"), 600, name="e"), EVENTS + EVENTS)
    data_bytes = 2 * sum(len(data) for _, data in EVENTS)
    with urllib.request.urlopen(f"{broker.http}/metrics") as answer:
        metrics = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
    assert int(metrics['millstream_events_fed_total{source="segment"}']) == 600
    assert int(metrics['millstream_event_data_bytes_total{source="segment"}']) == data_bytes
    assert int(metrics["millstream_event_files_opened_total"])
    assert int(metrics["millstream_event_files_reused_total"])


def test_buffer_pools_hold_pushes_and_feeds_back_and_everything_arrives(broker_factory):
    """One buffer of each pool, and a partition whose home is another core than that of most connections."""
    broker = broker_factory(shards=2)
    one = {"num_buffers": 1, "first_size": 2048}
    shapes = {
        "producers": {"metadata_buffer_pool": one, "data_buffer_pool": one},
        "consumers": {"metadata_buffer_pool": one, "desc_buffer_pool": one},
    }
    with EventsClient(broker.bootstrap, timeout_s=WAIT_S) as client:
        client.create_topic("pooled", partitions_count=2, configs={"events.partition": json.dumps(shapes)})
        topic = client.open_topic("pooled")
        threads = [threading.Thread(target=push, args=(topic, EVENTS), kwargs={"batch_size": 5}) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        found = consumed(topic, 4 * len(EVENTS))
        assert [len(ones) for ones in found.values()] == [2 * len(EVENTS)] * 2
        assert sorted(b"".join(one.data) for ones in found.values() for one in ones) == sorted(
            4 * [data for _, data in EVENTS]
        )

    def metrics():
        with urllib.request.urlopen(f"{broker.http}/metrics") as answer:
            return dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")

    for pool in ("producers_metadata", "producers_data", "consumers_metadata", "consumers_desc"):
        until(lambda name=pool: metrics()[f'millstream_event_pool_leased_bytes{{pool="{name}"}}'] == "0")
        assert int(metrics()[f'millstream_event_pool_leases_total{{pool="{pool}"}}'])
    waits = [int(value) for name, value in metrics().items() if name.startswith("millstream_event_pool_waits_total")]
    assert sum(waits), "four producers found a free buffer every time"


def kafka_records(broker, name, count, offset=0, partition=0):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": name, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(name, partition, offset)])
    found = []
    try:
        while len(found) < count:
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("view", ["metadata", "data", "envelope"])
def test_a_kafka_consumer_reads_events_as_records(client, broker, view):
    name = f"view-{view}"
    client.create_topic(name, configs={"kafka.view": view})
    push_to_one(client.open_topic(name), EVENTS)
    found = kafka_records(broker, name, 250, offset=50)
    assert [one.offset() for one in found] == list(range(50, 300))
    for one, (metadata, data) in zip(found, EVENTS[50:], strict=True):
        text = json.dumps(metadata, separators=(",", ":")).encode()
        headers = dict(one.headers() or [])
        if view == "metadata":
            assert one.value() == text
            assert headers.get("mofka.data", b"") == data
        elif view == "data":
            assert one.value() == data
            assert headers["mofka.metadata"] == text
        else:
            assert one.value() == struct.pack("<QQ", len(text), len(data)) + text + data


def test_the_data_of_an_event_topic_are_read_by_seek_in_a_topic_of_their_own(client, broker):
    client.create_topic("images", partitions_count=2)
    topic = client.open_topic("images")
    push(topic, EVENTS)
    for offset in (149, 3, 77):
        (found,) = kafka_records(broker, "images.data", 1, offset=offset, partition=1)
        assert (found.offset(), found.value()) == (offset, EVENTS[2 * offset + 1][1])
        (found,) = kafka_records(broker, "images", 1, offset=offset, partition=1)
        headers = dict(found.headers())
        assert headers["mofka.data.size"] == str(len(EVENTS[2 * offset + 1][1])).encode()
        descriptor = decode_descriptor(headers["mofka.data.desc"])
        (data,) = topic.fetch_data(1, [(offset, descriptor.narrowed(SubView(1, 1)))])
        assert data == EVENTS[2 * offset + 1][1][1:2]
        with pytest.raises(Rejected, match="INVALID_REQUEST"):
            topic.fetch_data(1, [(offset + 1 if offset < 149 else 0, descriptor)])
    with pytest.raises(Rejected, match="it is the data of event topic 'images'"):
        client.create_topic("images.data")
    with pytest.raises(Rejected, match="the events are in images"):
        client.open_topic("images.data")
    assert "images.data" not in confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap}).list_topics().topics


def test_a_producer_of_the_data_of_an_event_topic_is_refused_at_once(client, broker):
    client.create_topic("read-only")
    refused = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("read-only.data", "{}", on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(WAIT_S) == 0
    assert refused[0].code() == confluent_kafka.KafkaError.TOPIC_EXCEPTION


def test_a_group_consumes_the_data_of_an_event_topic_with_its_own_position(client, broker):
    client.create_topic("grouped")
    push_to_one(client.open_topic("grouped"), EVENTS[:50])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["grouped.data"])
    found = [consumer.poll(WAIT_S) for _ in range(50)]
    consumer.commit(asynchronous=False)
    (place,) = consumer.committed([confluent_kafka.TopicPartition("grouped.data", 0)])
    consumer.close()
    assert [one.value() for one in found] == [data for _, data in EVENTS[:50]]
    assert place.offset == 50


def push_to_one(topic, events):
    with topic.producer() as producer:
        for event in events:
            producer.push(*event)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_kafka_producer_writes_events(client, broker, codec):
    name = f"written-{codec}"
    client.create_topic(name)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "compression.type": codec, "linger.ms": 20}
    )
    for n in range(40):
        producer.produce(name, json.dumps({"n": n}))
        producer.produce(name, b"data %d" % n, headers={"mofka.metadata": json.dumps({"with": n})})
    assert producer.flush(WAIT_S) == 0
    refused = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, "no JSON", on_delivery=lambda error, _: refused.append(error))
    producer.flush(WAIT_S)
    assert refused[0].code() == confluent_kafka.KafkaError.INVALID_RECORD
    with client.open_topic(name).consumer("c") as consumer:
        found = [consumer.pull(WAIT_S) for _ in range(80)]
    assert [(one.metadata, b"".join(one.data)) for one in found] == [
        event for n in range(40) for event in (({"n": n}, b""), ({"with": n}, b"data %d" % n))
    ]


@pytest.mark.slow
def test_an_event_topic_with_three_replicas_loses_no_event_with_its_leader():
    from millstream.testing import cluster

    with cluster(3) as brokers, EventsClient(brokers.bootstrap, timeout_s=WAIT_S) as client:
        limits = {"events.partition": '{"max_events_per_chunk": 40}'}
        client.create_topic("t", partitions_count=2, replicas_count=3, configs=limits)
        push(client.open_topic("t"), EVENTS, batch_size=7)
        given = consumed(client.open_topic("t"), 300, "g", data_selector=lambda *_: None, data_allocator=lambda *_: [])
        first, second, *_ = brokers.brokers
        brokers.kill(first)
        for partition, ones in given.items():
            found = client.open_topic("t").fetch_data(partition, [(one.id, one.descriptor) for one in ones])
            assert [bytes(one) for one in found] == [data for _, data in EVENTS[partition::2]]
        push(client.open_topic("t"), EVENTS, batch_size=7)
        check(consumed(client.open_topic("t"), 600), EVENTS + EVENTS)
        brokers.brokers[first].start()
        brokers.kill(second)
        check(consumed(client.open_topic("t"), 600, name="d"), EVENTS + EVENTS)
