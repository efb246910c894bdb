"""A store that takes connections and never answers: what does not need it is served, in one request with what does."""

import itertools

import msgspec
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tiered_stores import STALLED, object_store
from tiering import AT_ONCE, RECORDS, ask, consume, create, expected, metric, produce

from millstream.events import EventsClient
from millstream.model.error_code import ErrorCode
from millstream.testing.process import Broker
from millstream.wire.messages.feed_events import FeedEventsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadStatePartition,
    ReadStateTopic,
)
from millstream.wire.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from raw_line import Line
from waits import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

WAIT_MS = PATIENCE_S * 1000
NEW = range(10)
EVENTS = 400
MEMBER = "m" * 22
BY_NAME = 12
"""Highest version of Fetch that names topics."""


@pytest.fixture
def broker(tmp_path, monkeypatch):
    """A broker whose store is silent: of ``old`` and ``events`` all but the end is there, of ``new`` nothing."""
    with (
        object_store("s3", tmp_path, monkeypatch) as bucket,
        Broker(settings={**AT_ONCE, "objects.url": bucket.url}, shards=2) as started,
    ):
        create(started, "old", 2)
        create(started, "new", 4, storage_mode="local")
        for partition in range(2):
            produce(started, "old", range(RECORDS), partition)
        with EventsClient(started.bootstrap, timeout_s=PATIENCE_S) as client:
            limits = {"events.partition": '{"max_events_per_chunk": 50}', "storage.mode": "tiered"}
            kept = {"retention.local.target.ms": "0", "file.delete.delay.ms": "100", "retention.ms": "-1"}
            client.create_topic("events", partitions_count=1, configs={**limits, **kept})
            with client.open_topic("events").producer(batch_size=7) as producer:
                for future in [producer.push({"n": number}, b"data") for number in range(EVENTS)]:
                    future.result(PATIENCE_S)
        until(lambda: metric(started, "millstream_archive_lag_bytes") == 0, "segments are not archived")
        until(lambda: is_archived(started), "local copies stayed")
        started.stop()  # what the archive process keeps in memory goes with it
        started.start()
        for partition in range(4):
            produce(started, "new", NEW, partition)
        bucket.away(STALLED)
        started.store = bucket
        yield started


def is_archived(broker):
    """Whether the first records of each partition that is archived have no local copy."""
    topics = broker.data_dir / "topics"
    firsts = [*topics.rglob("00000000000000000000.log"), *topics.rglob("00000000000000000000.meta")]
    return not [path for path in firsts if "old" in str(path) or "events" in str(path)]


def join(broker, line, group, names):
    """Make a share group that starts at the first record, with one member."""
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    ask(broker, "incremental_alter_configs", [resource], resource)
    found = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    until(lambda: line.ask(found).coordinators[0].error_code == 0, "there is no coordinator")
    request = ShareGroupHeartbeatRequest(group, MEMBER, 0, subscribed_topic_names=names)
    until(lambda: line.ask(request).error_code == 0, "the member cannot join")


def fetch_all():
    topics = [("old", 2), ("new", 4)]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        session_epoch=-1,
        topics=[
            FetchTopic(name, partitions=[FetchPartition(index, partition_max_bytes=1 << 20) for index in range(count)])
            for name, count in topics
        ],
    )


def found(answer):
    """(errors, partitions with records) of a fetch."""
    partitions = [(topic.topic, one) for topic in answer.responses for one in topic.partitions]
    return (
        {one.error_code for _, one in partitions},
        {(name, one.partition_index) for name, one in partitions if one.records},
    )


NEWS = {("new", partition) for partition in range(4)}


def test_a_fetch_answers_the_partitions_that_need_no_store_and_starts_no_read_twice(broker):
    with Line(broker.bootstrap) as line:
        for _ in range(4):
            assert found(line.ask(fetch_all(), BY_NAME)) == ({0}, NEWS)
        (topic,) = line.ask(MetadataRequest([MetadataRequestTopic(name="old")])).topics
        session = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=50 << 20,
            session_epoch=0,
            topics=[FetchTopic(topic_id=topic.topic_id, partitions=[FetchPartition(0, partition_max_bytes=1 << 20)])],
        )
        answer = line.ask(session)
        assert (answer.error_code, found(answer)) == (0, ({0}, set()))
        reads = metric(broker, "millstream_archive_reads_total")
        broker.store.back()
        wanted = msgspec.structs.replace(session, session_id=answer.session_id, session_epoch=1, topics=[])

        def came():
            nonlocal wanted
            later = line.ask(wanted)
            assert later.error_code == 0, later
            wanted = msgspec.structs.replace(wanted, session_epoch=wanted.session_epoch + 1)
            return found(later)[1]

        until(came, "the session has forgotten what was late")
    assert reads <= 4, "one of each partition; at a second end of the store's patience, another one"
    for partition in range(2):
        assert consume(broker, "old", partition) == expected(range(RECORDS))


def test_look_ups_by_time_end_with_the_patience_of_their_request(broker):
    asked = [ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp=0)]) for name in ("old", "new")]
    with Line(broker.bootstrap) as line:
        for _ in range(3):
            answer = line.ask(ListOffsetsRequest(topics=asked, timeout_ms=700), 10)
            errors = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
            assert errors == {"old": ErrorCode.REQUEST_TIMED_OUT, "new": 0}
        broker.store.back()
        request = ListOffsetsRequest(topics=asked, timeout_ms=WAIT_MS)
        until(lambda: all(not topic.partitions[0].error_code for topic in line.ask(request, 10).topics), "no offsets")


def test_a_feed_of_events_ends_with_the_time_that_its_consumer_grants(broker):
    with Line(broker.bootstrap) as line:
        (topic,) = line.ask(MetadataRequest([MetadataRequestTopic(name="events")])).topics
        feed = FeedEventsRequest(
            "c", topic.topic_id, 0, next_event_id=0, max_events=10, max_bytes=1 << 20, max_wait_ms=100
        )
        answer = line.ask(feed)
        assert (answer.error_code, len(answer.metadata_sizes)) == (0, 0)
        broker.store.back()
        wait = msgspec.structs.replace(feed, max_wait_ms=60_000)
        until(lambda: len(line.ask(wait).metadata_sizes) == 40, "no events came")


def test_a_share_fetch_takes_what_needs_no_store(broker):
    with Line(broker.bootstrap) as line:
        partitions = {"old": 2, "new": 4}
        names = MetadataRequest([MetadataRequestTopic(name=name) for name in partitions])
        topics = {topic.name: topic.topic_id for topic in line.ask(names).topics}
        join(broker, line, "g", list(partitions))
        states = ReadShareGroupStateRequest(
            "g",
            [
                ReadStateTopic(topics[name], [ReadStatePartition(index, -1) for index in range(count)])
                for name, count in partitions.items()
            ],
        )
        until(
            lambda: not any(one.error_code for topic in line.ask(states).results for one in topic.partitions),
            "no state",
        )
        wanted = [
            ShareFetchTopic(topics[name], [ShareFetchPartition(index) for index in range(count)])
            for name, count in partitions.items()
        ]
        taken = set()
        for epoch in itertools.count():
            request = ShareFetchRequest(
                "g", MEMBER, epoch, 5_000, 1, 1 << 20, 500, 500, topics=wanted if not epoch else []
            )
            answer = line.ask(request, 2)
            assert answer.error_code == 0
            parts = [(topic.topic_id, one) for topic in answer.responses for one in topic.partitions]
            assert {one.error_code for _, one in parts} <= {0}
            taken |= {(topic, one.partition_index) for topic, one in parts if one.acquired_records}
            if len(taken) == 4:
                break
        assert {topic for topic, _ in taken} == {topics["new"]}
        assert metric(broker, "millstream_archive_reads_total") <= 4
        broker.store.back()
