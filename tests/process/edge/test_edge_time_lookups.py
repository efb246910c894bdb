"""ListOffsets by time and by largest time, over every kind of topic, against what a reader of the whole log finds.

The times of the records are in no order. After DeleteRecords, compaction, the move of old segments to the object store,
a restart and a kill the answers are those of a naive search through the records that a fetch returns.
"""

import contextlib
import random

import pytest
from edge_client import Client
from edge_transactions import Transaction

from millstream.testing.process import Broker
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from millstream.wire.records import build_batch, iter_batches, iter_records
from waits import until

pytestmark = pytest.mark.process

START = 1_700_000_000_000
SEGMENTS = {"internal_segment_bytes": 20_000, "retention_ms": -1, "file_delete_delay_ms": 100}
TIERED = {"storage_mode": "tiered", "retention_local_target_ms": 0, "segment_upload_max_ms": 10**9}
CHUNKS = '{"max_events_per_chunk": 7}'
EVENTS = {"topic_kind": "events", "events_partition": CHUNKS, "retention_ms": -1, "file_delete_delay_ms": 100}
KINDS = {
    "local": SEGMENTS,
    "log append time": {**SEGMENTS, "message_timestamp_type": "LogAppendTime"},
    "compacted": {**SEGMENTS, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01},
    "compacted and deleted": {**SEGMENTS, "cleanup_policy": "compact,delete", "min_cleanable_dirty_ratio": 0.01},
    "tiered": {**SEGMENTS, **TIERED},
    "shared": {**SEGMENTS, "storage_mode": "shared"},
    "events": EVENTS,
    "tiered events": {**EVENTS, **TIERED},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = {
        "log.retention.check.interval.ms": 100,
        "log.cleaner.backoff.ms": 200,
        "checkpoint.ms": 300,
        "shared.upload.interval.ms": 200,
        "objects.url": f"file://{tmp_path_factory.mktemp('store')}",
    }
    with Broker(shards=2, memory="128MiB", settings=settings) as one:
        yield one


def log_of(client, topic):
    """[(offset, time)] of all records, markers included."""
    found, at = [], client.offset(topic, 0, -2)[2]
    end = client.end(topic, 0)
    while at < end:
        part = client.fetch_one(topic, 0, at, max_wait_ms=5000)
        assert part.error_code == 0
        batches = list(iter_batches(memoryview(bytes(part.records))))
        found += [(one.offset, one.timestamp) for data in batches for one in iter_records(data) if one.offset >= at]
        if not batches:
            break  # the rest of the log is compacted away
        at = max(int.from_bytes(data[:8], "big") + int.from_bytes(data[23:27], "big") for data in batches) + 1
    return found


def check(client, topic, rng, isolation=0):
    """Compare the answers with the log, which compaction may change meanwhile."""
    while True:
        log = log_of(client, topic)
        if isolation:
            stable = client.offset(topic, 0, -1, isolation=1)[2]
            log = [one for one in log if one[0] < stable]
        times = {at for _, at in log}
        asked = rng.sample(sorted({at + step for at in times for step in (-1, 0, 1)}), min(30, len(times)))
        answers = {at: client.offset(topic, 0, at, isolation=isolation)[:3] for at in [0, *asked, START + 10**9]}
        largest = client.offset(topic, 0, -3, isolation=isolation)[:3]
        if isolation or log == log_of(client, topic):
            break
    naive = {at: next(((0, when, offset) for offset, when in log if when >= at), (0, -1, -1)) for at in answers}
    assert answers == naive
    offset, when = max(log, key=lambda one: (one[1], -one[0]), default=(-1, -1))
    assert largest == (0, when, offset)


def fill(client, topic, rng, count):
    for _ in range(count):
        base = START + rng.randrange(100_000)
        records = [
            (b"k%d" % rng.randrange(40), b'"%s"' % (b"x" * 2000), (), base + rng.randrange(20_000)) for _ in range(3)
        ]
        assert client.error(topic, 0, build_batch(records)) == "NONE"


def delete_records(client, topic, offset):
    asked = DeleteRecordsRequest([DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, offset)])], 10_000)
    answer = client.connection.call(asked, DeleteRecordsResponse, 2).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, offset)


def archived(client, topic, config):
    """Wait until something of a topic with an archive is in the store only."""
    if "storage_mode" in config:
        until(lambda: client.offset(topic, 0, -4, version=11)[2] > client.offset(topic, 0, -2)[2])


@contextlib.contextmanager
def connected(broker):
    client = Client(broker)
    try:
        yield client
    finally:
        client.connection.close()


def create(client, config):
    return client.create(1, message_timestamp_after_max_ms=9223372036854775807, **config)[0]


def test_a_lookup_by_time_finds_what_a_reader_of_the_log_finds(broker):
    rng = random.Random(7)
    with connected(broker) as client:
        topics = {kind: create(client, config) for kind, config in KINDS.items()}
        for topic in topics.values():
            fill(client, topic, rng, 14)
        for kind, topic in topics.items():
            archived(client, topic, KINDS[kind])
            check(client, topic, rng)
            fill(client, topic, rng, 3)
            if kind != "compacted":
                for offset in sorted(rng.sample(range(1, 45), 3)):
                    delete_records(client, topic, offset)
                    check(client, topic, rng)
    for stop in (broker.stop, broker.kill):
        stop()
        broker.start()
        with connected(broker) as client:
            for topic in topics.values():
                client.until_served(topic, 0)
                check(client, topic, rng)
                fill(client, topic, rng, 2)
                check(client, topic, rng)


@pytest.mark.parametrize("kind", ["local", "tiered", "shared"])
def test_a_lookup_of_committed_records_ends_where_a_transaction_is_open(broker, kind):
    rng, config = random.Random(kind), KINDS[kind]
    with connected(broker) as client:
        topic = create(client, config)
        fill(client, topic, rng, 14)
        archived(client, topic, config)
        one = Transaction(client, kind)
        assert one.add(3, topic) == {topic: "NONE"}
        assert one.produce(11, topic, timestamp=START + 10**8) == "NONE"
        fill(client, topic, rng, 2)
        for isolation in (0, 1):
            check(client, topic, rng, isolation)
        assert one.end(4, commits=False) == "NONE"
