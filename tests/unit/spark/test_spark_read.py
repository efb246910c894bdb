"""Tasks against a fake broker and real segment files: every row once, from wherever it is to be had."""

import os

import pytest
from fake_kafka import HANG_UP, FakeKafka, Topic
from fake_manifest import Manifest
from spark_logs import EVERYTHING, expected, marker, plain, rows_of

from millstream.errors import Corruption, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.spark.loss import DataLost
from millstream.spark.options import READ, parse_options
from millstream.spark.plan import plan_batch
from millstream.spark.read import read_task
from millstream.spark.stats import ReadStats, read_stats
from millstream.spark.topic_error import topic_error
from millstream.spark.wanted import Predicate
from millstream.wire.records import ABORT, COMMIT

SMALL_FETCHES = {"kafka__max__partition__fetch__bytes": "1"}
"""One batch an answer: otherwise an answer holds more than the hole that it is to fill."""


@pytest.fixture
def kafka():
    with FakeKafka({"t": 2, "u": 1}) as fake:
        yield fake


@pytest.fixture
def manifest(tmp_path):
    with Manifest(tmp_path / "data") as served:
        yield served


@pytest.fixture
def query(kafka, manifest, tmp_path):
    """Plans and reads a batch query; returns its rows in order of partition and offset, and the counts."""

    def run(predicate=None, **options):
        names = {"subscribe": "t", "manifest.url": manifest.url, "kafka.request.timeout.ms": "60000"}
        names |= {name.replace("__", "."): value for name, value in options.items()}
        stats = tmp_path / f"stats-{len(list(tmp_path.iterdir()))}"
        parsed = parse_options({"servers": kafka.bootstrap, "stats.dir": str(stats), **names}, READ)
        tasks = plan_batch(parsed, EVERYTHING, predicate or Predicate())
        rows = [row for task in tasks for row in rows_of(read_task(task))]
        rows.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
        return rows, read_stats(stats)

    return run


def fill(kafka, manifest, *, sealed=4, tail=2, partition=0, topic="t", each=10, sources=None):
    """``sealed`` files of two batches each and ``tail`` batches; all of it is also in the broker. The whole log."""
    log = kafka.log(topic, partition)
    whole, offset = b"", 0
    for _ in range(sealed):
        segment = plain(each, start=offset) + plain(each, start=offset + each)
        offset += 2 * each
        manifest.seal(topic, kafka.topics[topic].id, partition, segment)
        whole += segment
    for _ in range(tail):
        whole += plain(each, start=offset)
        offset += each
    log.extend(whole)
    return whole


def test_sealed_files_are_read_directly_and_only_the_tail_from_the_broker(query, kafka, manifest):
    log = fill(kafka, manifest)
    rows, stats = query()
    assert rows == expected(log)
    assert (stats.segment_rows, stats.tail_rows, stats.tasks) == (80, 20, 1)


@pytest.mark.parametrize("known", [True, False])
def test_committed_records_of_transactions_are_read_from_files_whose_aborted_ones_are_known(
    query, kafka, manifest, known
):
    transaction = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    committed = plain(10) + plain(10, start=10, **transaction) + marker(COMMIT, offset=20, producer_id=7)
    log = committed + plain(3, start=21, **transaction) + marker(ABORT, offset=24, producer_id=7)
    manifest.seal("t", kafka.topics["t"].id, 0, log)
    if known:
        manifest.files["t", 0][0]["aborted"] = [(7, 21, 24)]
    kafka.log("t", 0).extend(log + plain(5, start=25))
    kafka.log("t", 0).aborted = [(7, 21)]
    rows, stats = query()
    assert rows == expected(committed + plain(5, start=25))
    assert stats.segment_rows == (20 if known else 10)


def test_a_broker_without_a_manifest_is_read_through_its_kafka_port(query, kafka, manifest):
    log = fill(kafka, manifest)
    manifest.broken = True
    rows, stats = query()
    assert rows == expected(log)
    assert stats.segment_rows == 0


def test_the_broker_says_itself_where_its_manifest_is(kafka, manifest, tmp_path):
    log = fill(kafka, manifest)
    kafka.configs = {"millstream.http.endpoint": manifest.url}
    options = parse_options({"servers": kafka.bootstrap, "subscribe": "t", "stats.dir": str(tmp_path / "s")}, READ)
    rows = [row for task in plan_batch(options, EVERYTHING, Predicate()) for row in rows_of(read_task(task))]
    assert rows == expected(log)
    assert read_stats(tmp_path / "s").segment_rows == 80


def test_files_that_are_gone_are_read_from_the_broker(query, kafka, manifest):
    log = fill(kafka, manifest)
    os.unlink(manifest.files["t", 0][1]["path"])
    os.unlink(manifest.files["t", 0][3]["path"])
    rows, stats = query(**SMALL_FETCHES)
    assert rows == expected(log)
    assert (stats.segment_rows, stats.tail_rows) == (40, 60)


@pytest.mark.parametrize("found", ['{"incarnation": "bb"}', "{}", "[", "", None])
def test_a_diverged_file_at_the_same_path_on_another_disk_is_not_read(query, kafka, manifest, found):
    log = fill(kafka, manifest)
    manifest.incarnation, identity = "aa", manifest.directory / "identity.json"
    identity.write_text('{"incarnation": "aa"}')
    assert query()[1].segment_rows == 80
    entry = manifest.files["t", 0][1]
    with open(entry["path"], "wb") as file:  # as on a replica that has not yet learned that others were elected
        file.write(plain(10, start=20, timestamp=5) + plain(10, start=30, timestamp=5))
    identity.unlink() if found is None else identity.write_text(found)
    rows, stats = query(**SMALL_FETCHES)
    assert rows == expected(log)
    assert (stats.segment_rows, stats.tail_rows) == (0, 100)
    with pytest.raises(Unavailable, match=r"read\.path=segments, but .* cannot be read"):
        query(read__path="segments")


def test_a_file_that_is_shorter_than_it_was_is_completed_from_the_broker(query, kafka, manifest):
    log = fill(kafka, manifest)
    entry = manifest.files["t", 0][2]
    os.truncate(entry["path"], entry["bytes"] // 2 + 40)
    rows, stats = query(**SMALL_FETCHES)
    assert rows == expected(log)
    assert (stats.segment_rows, stats.tail_rows) == (70, 30)


def test_a_hole_between_files_is_filled_from_the_broker(query, kafka, manifest):
    log = fill(kafka, manifest)
    del manifest.files["t", 0][1]
    rows, stats = query(**SMALL_FETCHES)
    assert rows == expected(log)
    assert (stats.segment_rows, stats.tail_rows) == (60, 40)


def test_segments_only_fails_when_a_file_is_missing(query, kafka, manifest):
    fill(kafka, manifest)
    assert len(query(read__path="segments")[0]) == 100
    os.unlink(manifest.files["t", 0][1]["path"])
    with pytest.raises(Unavailable, match=r"read\.path=segments"):
        query(read__path="segments")
    manifest.broken = True
    with pytest.raises(Unavailable, match="no manifest of t"):
        query(read__path="segments")


def test_broker_only_asks_for_no_manifest(query, kafka, manifest):
    log = fill(kafka, manifest)
    rows, stats = query(read__path="broker")
    assert rows == expected(log)
    assert (manifest.requests, stats.segment_rows) == (0, 0)


def test_a_manifest_of_another_topic_of_that_name_is_not_believed(query, kafka, manifest):
    log = fill(kafka, manifest)
    manifest.topic_ids["t"] = bytes(16)
    rows, stats = query()
    assert rows == expected(log)
    assert stats.segment_rows == 0


def test_corruption_in_a_file_is_an_error_that_names_it(query, kafka, manifest):
    fill(kafka, manifest)
    path = manifest.files["t", 0][1]["path"]
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"!")
    with pytest.raises(Corruption, match=os.path.basename(path)):
        query()


def test_splits_inside_of_segments_lose_nothing_and_repeat_nothing(query, kafka, manifest):
    log = fill(kafka, manifest, sealed=6, tail=3, each=37)
    for size in ("1k", "2k", "5k", "20k"):
        assert query(split__bytes=size)[0] == expected(log)
    assert query(minPartitions="23")[1].tasks == 23
    assert query(maxRecordsPerPartition="50")[0] == expected(log)


def test_a_large_file_is_entered_through_its_index(query, kafka, manifest):
    segment = b"".join(plain(100, start=start, value_bytes=1000) for start in range(0, 5000, 100))
    manifest.seal("t", kafka.topics["t"].id, 0, segment)
    kafka.log("t").extend(segment)
    rows, stats = query(Predicate(from_offset=4900))
    assert rows == expected(segment, low=4900)
    assert stats.segment_bytes < 500_000


def test_an_index_that_is_damaged_or_missing_costs_time_only(query, kafka, manifest):
    log = fill(kafka, manifest, sealed=2, tail=0, each=2000)
    first, second = (entry["path"].replace(".log", ".index") for entry in manifest.files["t", 0])
    os.unlink(first)
    with open(second, "r+b") as file:
        file.write(b"garbage")
    rows, _ = query(split__bytes="64k")
    assert rows == expected(log)


def test_files_without_rows_late_enough_are_not_opened(query, kafka, manifest):
    early, late = plain(100, timestamp=1000), plain(100, start=100, timestamp=900_000)
    for segment in (early, late):
        manifest.seal("t", kafka.topics["t"].id, 0, segment)
        kafka.log("t").extend(segment)
    rows, stats = query(Predicate(from_timestamp=900_150))
    assert [row["offset"] for row in rows] == list(range(150, 200))
    assert stats.segment_bytes == len(late)


def test_small_partitions_are_read_by_one_task(query, kafka, manifest):
    log = fill(kafka, manifest)
    other = fill(kafka, manifest, partition=1, sealed=1)
    rows, stats = query()
    assert stats.tasks == 1
    assert rows == expected(log) + expected(other, partition=1)


def test_several_topics_by_pattern_and_partitions_by_assignment(query, kafka, manifest):
    one = fill(kafka, manifest)
    other = fill(kafka, manifest, topic="u", sealed=1)
    kafka.topics["__consumer_offsets"] = kafka.topics["u"]
    assert query(subscribe="t,u")[0] == expected(one) + expected(other, topic="u")
    predicate = Predicate(topics=frozenset({"u"}))
    assert query(predicate, subscribe="t,u")[0] == expected(other, topic="u")


@pytest.mark.parametrize(("pattern", "found"), [("t", ["eu-t-1", "t"]), ("^t$", ["t"]), ("eu|^_", ["eu-t-1"])])
def test_a_pattern_finds_parts_of_names_and_no_internal_topics(kafka, manifest, pattern, found):
    kafka.topics["eu-t-1"] = Topic(1)
    logs = {"t": fill(kafka, manifest), "eu-t-1": fill(kafka, manifest, topic="eu-t-1", sealed=1)}
    kafka.topics["__t"] = kafka.topics["t"]
    options = parse_options({"servers": kafka.bootstrap, "subscribePattern": pattern}, READ)
    rows = [row for task in plan_batch(options, EVERYTHING, Predicate()) for row in rows_of(read_task(task))]
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
    assert rows == [row for topic in found for row in expected(logs[topic], topic=topic)]


def test_from_and_to_are_offsets_or_times(query, kafka, manifest):
    log = fill(kafka, manifest)
    both = '{"t": {"0": %d, "1": -2}}'
    rows, _ = query(startingOffsets=both % 15, endingOffsets='{"t": {"0": 85, "1": -1}}')
    assert rows == expected(log, low=15, high=85)
    rows, _ = query(startingTimestamp="1033", endingTimestamp="1040", startingOffsetsByTimestampStrategy="latest")
    assert rows == expected(log, low=33, high=40)
    with pytest.raises(Rejected, match="no record at or after"):
        query(startingTimestamp="1033")
    with pytest.raises(Rejected, match="leaves out t-1"):
        query(startingOffsets='{"t": {"0": 1}}')
    with pytest.raises(Rejected, match="names t-7"):
        query(startingOffsets='{"t": {"0": 1, "1": 0, "7": 0}}')


def test_offsets_outside_of_the_log_are_a_loss(query, kafka, manifest):
    log = fill(kafka, manifest)
    kafka.log("t").trim(30)
    begin = '{"t": {"0": 5, "1": -2}}'
    with pytest.raises(DataLost, match="startingOffsets says 5"):
        query(startingOffsets=begin)
    rows, _ = query(startingOffsets=begin, failOnDataLoss="false")
    assert rows == expected(log, low=30)


def test_a_topic_that_does_not_exist_is_named(query):
    with pytest.raises(Rejected, match="topic nope does not exist"):
        query(subscribe="nope")


def test_a_partition_that_does_not_exist_is_named(query, kafka):
    options = parse_options({"servers": kafka.bootstrap, "assign": '{"t": [0, 9]}'}, READ)
    with pytest.raises(Rejected, match="topic t has no partition 9"):
        plan_batch(options, EVERYTHING, Predicate())


def plan(kafka, manifest, **options):
    names = {"servers": kafka.bootstrap, "subscribe": "t", "manifest.url": manifest.url, **options}
    return plan_batch(parse_options(names, READ), EVERYTHING, Predicate())


@pytest.mark.parametrize("fail", ["true", "false"])
def test_retention_that_overtakes_a_task_is_a_loss(kafka, manifest, fail):
    log = fill(kafka, manifest, sealed=0, tail=10)
    (task,) = plan(kafka, manifest, failOnDataLoss=fail)
    kafka.log("t").trim(40)
    if fail == "true":
        with pytest.raises(DataLost, match="starts at offset 40 now, and 0 had not been read"):
            list(read_task(task))
    else:
        assert rows_of(read_task(task)) == expected(log, low=40)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_created_again_under_a_task_is_a_loss(kafka, manifest, fail):
    fill(kafka, manifest, sealed=1, tail=1)
    (task,) = plan(kafka, manifest, failOnDataLoss=fail)
    kafka.topics["t"].id = bytes(15) + b"\7"
    if fail == "true":
        with pytest.raises(DataLost, match="deleted and created again"):
            list(read_task(task))
    else:
        assert len(rows_of(read_task(task))) == 20


def test_leaders_that_move_and_connections_that_break_cost_nothing(query, kafka, manifest):
    log = fill(kafka, manifest, sealed=0, tail=30)
    kafka.faults["Fetch"] += [0, HANG_UP, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, HANG_UP, HANG_UP]
    rows, _ = query(kafka__max__partition__fetch__bytes="1500")
    assert rows == expected(log)
    assert not kafka.faults["Fetch"]


def test_a_batch_larger_than_a_fetch_is_read(query, kafka, manifest):
    log = plain(1, value_bytes=100_000) + plain(1, start=1)
    kafka.log("t").extend(log)
    rows, _ = query(kafka__max__partition__fetch__bytes="1k")
    assert rows == expected(log)


def test_transactions_in_files_are_resolved_by_the_leader(query, kafka, manifest):
    transaction = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    log = plain(10) + plain(5, start=10, **transaction) + marker(ABORT, offset=15, producer_id=5) + plain(4, start=16)
    manifest.seal("t", kafka.topics["t"].id, 0, log)
    kafka.log("t").extend(log)
    kafka.log("t").aborted = [(5, 10)]
    rows, stats = query()
    assert [row["offset"] for row in rows] == [*range(10), *range(16, 20)]
    assert (stats.segment_rows, stats.tail_rows) == (10, 4)
    rows, stats = query(kafka__isolation__level="read_uncommitted")
    assert [row["offset"] for row in rows] == [*range(15), *range(16, 20)]
    assert stats.tail_rows == 0


def test_counts_of_a_task_that_runs_twice_are_counted_once(kafka, manifest, tmp_path):
    fill(kafka, manifest)
    (task,) = plan(kafka, manifest, **{"stats.dir": str(tmp_path / "s")})
    list(read_task(task))
    list(read_task(task))
    assert read_stats(tmp_path / "s").rows == 100
    assert read_stats(tmp_path / "none") == ReadStats()


def test_batches_larger_than_the_buffer_and_cut_off_by_it_are_read(query, kafka, manifest):
    segment = b"".join(
        plain(1, start=start, value_bytes=size)
        for start, size in enumerate([10, 700_000, 300_000, 5, 2_000_000, 513_000, 524_000, 10, 100_000])
    )
    manifest.seal("t", kafka.topics["t"].id, 0, segment)
    kafka.log("t").extend(segment)
    rows, stats = query()
    assert rows == expected(segment)
    assert (stats.tail_rows, stats.segment_bytes) == (0, len(segment))


def test_a_segment_that_ends_inside_of_a_batch_is_corrupt(query, kafka, manifest):
    segment = plain(10) + plain(10, start=10)[:-7]
    path = manifest.seal("t", kafka.topics["t"].id, 0, plain(10) + plain(10, start=10))
    path.write_bytes(segment)
    manifest.files["t", 0][0]["bytes"] = len(segment)
    kafka.log("t").extend(plain(10) + plain(10, start=10))
    with pytest.raises(Corruption, match="outside of its segment"):
        query()


def test_a_name_that_no_topic_can_have_is_refused_by_the_rule():
    found = topic_error("or ders", ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert "'or ders' cannot be the name of a topic: letters, digits" in found.message
