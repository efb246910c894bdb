"""A stream's driver side against a fake broker: offsets, limits, replays, what appears, what is lost."""

import json

import pytest
from fake_kafka import FakeKafka, Topic
from fake_manifest import Manifest
from spark_logs import EVERYTHING, expected, plain, rows_of

from millstream.errors import Rejected
from millstream.spark.loss import DataLost
from millstream.spark.options import READ, parse_options
from millstream.spark.plan import check_read_options
from millstream.spark.read import read_task
from millstream.spark.stream import TopicStream


@pytest.fixture
def kafka():
    with FakeKafka({"t": 2}) as fake:
        yield fake


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def open_stream(kafka, tmp_path):
    opened = []
    with Manifest(tmp_path) as manifest:

        def start(clock=None, **options):
            names = {"servers": kafka.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
            names |= {"manifest.url": manifest.url, "kafka.request.timeout.ms": "60000"}
            names |= {name.replace("__", "."): value for name, value in options.items() if value is not None}
            names = {
                name: value
                for name, value in names.items()
                if not (name == "subscribe" and "subscribePattern" in names)
            }
            stream = TopicStream(parse_options(names, READ), EVERYTHING, *([clock] if clock else []))
            opened.append(stream)
            return stream

        start.manifest = manifest
        yield start
        for stream in opened:
            stream.close()


def rows(stream, start, end):
    found = [row for task in stream.tasks(start, end) for row in rows_of(read_task(task))]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def through_json(offset):
    return json.loads(json.dumps(offset))


def test_batches_join_without_gap_or_overlap(open_stream, kafka):
    stream = open_stream()
    at = stream.initial()
    seen = []
    for step in range(4):
        kafka.log("t", step % 2).append(plain(7))
        end = through_json(stream.latest(at, limited=True))
        seen += rows(stream, at, end)
        at = end
    assert sorted((row["partition"], row["offset"]) for row in seen) == [(p, o) for p in (0, 1) for o in range(14)]


def test_nothing_new_gives_the_very_same_offset(open_stream, kafka):
    stream = open_stream()
    kafka.log("t").append(plain(7))
    end = through_json(stream.latest(stream.initial(), limited=True))
    assert stream.latest(end, limited=True) is end


def test_a_query_begins_where_it_says(open_stream, kafka):
    kafka.log("t").append(plain(7))
    assert place(open_stream(startingOffsets="latest").initial(), 0)[0] == 7
    assert place(open_stream(startingOffsets="earliest").initial(), 0)[0] == 0
    assert place(open_stream(startingOffsets='{"t": {"0": 3, "1": -1}}').initial(), 0)[0] == 3
    assert place(open_stream(startingOffsets=None).initial(), 0)[0] == 0


def place(offset, partition, topic="t"):
    (entry,) = [found for found in offset["topics"].values() if found["n"] == topic]
    return entry["p"][str(partition)]


def test_a_limit_is_shared_out_and_everything_comes_in_the_end(open_stream, kafka):
    for _ in range(9):
        kafka.log("t", 0).append(plain(10))
    kafka.log("t", 1).append(plain(10))
    stream = open_stream(maxOffsetsPerTrigger="20")
    at, sizes = stream.initial(), []
    while (end := through_json(stream.latest(at, limited=True))) != at:
        sizes.append(len(rows(stream, at, end)))
        at = end
    assert sizes[0] == 20
    assert max(sizes) <= 21
    assert sum(sizes) == 100
    assert place(at, 0)[0] == 90


def test_a_trigger_without_limits_reads_everything(open_stream, kafka):
    kafka.log("t").append(plain(50))
    stream = open_stream(maxOffsetsPerTrigger="20")
    assert len(rows(stream, stream.initial(), stream.latest(stream.initial(), limited=False))) == 50


def test_a_limit_in_bytes(open_stream, kafka):
    topic = kafka.topics["t"]
    segment = b"".join(plain(100, start=start, value_bytes=100) for start in range(0, 1000, 100))
    open_stream.manifest.seal("t", topic.id, 0, segment)
    topic.logs[0].extend(segment)
    stream = open_stream(maxBytesPerTrigger=str(len(segment) // 4))
    end = stream.latest(stream.initial(), limited=True)
    assert 240 <= place(end, 0)[0] <= 260


def test_too_little_is_waited_for_but_not_for_ever(open_stream, kafka):
    clock = Clock()
    stream = open_stream(clock, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    at = stream.initial()
    kafka.log("t").append(plain(5))
    assert stream.latest(at, limited=True) is at
    clock.now = 29
    assert stream.latest(at, limited=True) is at
    clock.now = 31
    end = stream.latest(at, limited=True)
    assert place(end, 0)[0] == 5
    kafka.log("t").append(plain(10))
    assert place(stream.latest(end, limited=True), 0)[0] == 15


def test_available_now_stops_at_what_there_was(open_stream, kafka):
    kafka.log("t").append(plain(10))
    stream = open_stream(maxOffsetsPerTrigger="4")
    at = stream.initial()
    stream.freeze()
    kafka.log("t").append(plain(10))
    kafka.topics["t"].logs.append(type(kafka.log("t"))())
    seen = []
    while (end := through_json(stream.latest(at, limited=True))) != at:
        seen += rows(stream, at, end)
        at = end
    assert [row["offset"] for row in seen] == list(range(10))


def test_a_replay_gives_the_same_tasks_whatever_the_options_are_now(open_stream, kafka):
    for _ in range(20):
        kafka.log("t").append(plain(10))
    first = open_stream(minPartitions="7")
    start = first.initial()
    end = through_json(first.latest(start, limited=True))
    before = [(task.scan, task.index, task.ranges) for task in first.tasks(start, end)]
    again = open_stream(minPartitions="3", maxOffsetsPerTrigger="1", split__bytes="1k")
    assert [(task.scan, task.index, task.ranges) for task in again.tasks(start, end)] == before
    assert len(before) == 7


def test_a_replay_reads_the_same_rows_when_files_have_appeared_or_gone(open_stream, kafka):
    log = plain(10) + plain(10, start=10)
    kafka.log("t").extend(log)
    stream = open_stream()
    start = stream.initial()
    end = through_json(stream.latest(start, limited=True))
    assert rows(stream, start, end) == expected(log)
    open_stream.manifest.seal("t", kafka.topics["t"].id, 0, plain(10))
    assert rows(open_stream(), start, end) == expected(log)


def test_new_partitions_begin_at_their_first_record(open_stream, kafka):
    stream = open_stream()
    at = stream.initial()
    kafka.topics["t"].logs.append(type(kafka.log("t"))())
    kafka.log("t", 2).append(plain(5))
    end = through_json(stream.latest(at, limited=True))
    assert place(end, 2) == [5, 0, 1, 0]
    assert [row["partition"] for row in rows(stream, at, end)] == [2] * 5
    assert stream.latest(end, limited=True) is end


def test_new_topics_of_a_pattern_are_read_from_their_beginning(open_stream, kafka):
    stream = open_stream(subscribePattern="t.*", startingOffsets="latest")
    at = stream.initial()
    kafka.topics["t2"] = Topic(1)
    kafka.log("t2").append(plain(5))
    kafka.log("t2").trim(2)
    end = through_json(stream.latest(at, limited=True))
    found = rows(stream, at, end)
    assert [(row["topic"], row["offset"]) for row in found] == [("t2", 2), ("t2", 3), ("t2", 4)]


def test_a_new_empty_partition_is_remembered_at_once(open_stream, kafka):
    # If it were not, retention could take its first records before it is ever seen.
    stream = open_stream()
    at = stream.initial()
    kafka.topics["t"].logs.append(type(kafka.log("t"))())
    end = through_json(stream.latest(at, limited=True))
    assert place(end, 2)[0] == 0
    assert stream.tasks(at, end) == []


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_was_created_again_is_a_loss(open_stream, kafka, fail):
    kafka.log("t").append(plain(10))
    stream = open_stream(failOnDataLoss=fail)
    at = through_json(stream.latest(stream.initial(), limited=True))
    kafka.topics["t"] = Topic(1)
    kafka.log("t").append(plain(3))
    if fail == "true":
        with pytest.raises(DataLost, match="deleted and created again"):
            stream.latest(at, limited=True)
    else:
        end = through_json(stream.latest(at, limited=True))
        assert [row["offset"] for row in rows(stream, at, end)] == [0, 1, 2]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_was_deleted_is_a_loss(open_stream, kafka, fail):
    kafka.log("t").append(plain(10))
    stream = open_stream(failOnDataLoss=fail)
    at = through_json(stream.latest(stream.initial(), limited=True))
    del kafka.topics["t"]
    if fail == "true":
        with pytest.raises(DataLost, match="no longer exists"):
            stream.latest(at, limited=True)
    else:
        assert stream.latest(at, limited=True)["topics"] == {}


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_log_that_ends_before_what_was_read_is_a_loss_and_never_read_again(open_stream, kafka, fail, frozen):
    kafka.log("t").append(plain(10))
    stream = open_stream(failOnDataLoss=fail)
    at = through_json(stream.latest(stream.initial(), limited=True))
    kafka.log("t").batches = []
    if frozen:
        stream.freeze()
    if fail == "true":
        with pytest.raises(DataLost, match="ends at 0, and 10 had been read"):
            stream.latest(at, limited=True)
    else:
        assert stream.latest(at, limited=True) is at


def test_progress_reports_tell_the_ends_of_the_logs(open_stream, kafka):
    kafka.log("t").append(plain(10))
    stream = open_stream(maxOffsetsPerTrigger="2")
    assert stream.newest() is None
    stream.latest(stream.initial(), limited=True)
    assert place(stream.newest(), 0)[0] == 10


def test_a_checkpoint_of_something_else_is_refused(open_stream):
    with pytest.raises(Rejected, match="version"):
        open_stream().latest({"t": {"0": 1}}, limited=True)


def test_a_stream_with_an_end_stops_there_for_good(kafka, open_stream):
    for partition in (0, 1):
        kafka.log("t", partition).append(plain(10))
    stream = open_stream(endingOffsets='{"t": {"0": 4}}')
    start = through_json(stream.initial())
    end = through_json(stream.latest(start, limited=True))
    assert [(row["partition"], row["offset"]) for row in rows(stream, start, end)] == [(0, n) for n in range(4)]
    assert stream.latest(end, limited=True) == end
    with pytest.raises(Rejected, match="JSON per partition"):
        check_read_options(
            parse_options({"servers": "x", "subscribe": "t", "endingOffsets": "latest"}, READ), streaming=True
        )
