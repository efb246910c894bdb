"""Reads of tiered topics: history from the object store by its manifest objects, files where there are some, and the
tail from the leader; every row once.
"""

import base64
import os
import shutil

import pytest
from fake_archive import Bucket
from fake_kafka import FakeKafka
from fake_manifest import Manifest
from spark_logs import EVERYTHING, expected, marker, plain, rows_of

from millstream.errors import Corruption, Unavailable
from millstream.format.manifest import ArchivedSegment, encode_manifest, pack_run
from millstream.format.manifest import Manifest as StoredManifest
from millstream.format.shared_object import BlockBytes, encode_object, shared_key
from millstream.model.shared import ObjectId, SharedPartition
from millstream.spark import archived_segment
from millstream.spark.archive import Archived, Archives
from millstream.spark.options import READ, parse_options
from millstream.spark.plan import plan_batch
from millstream.spark.planner import Span
from millstream.spark.read import read_task
from millstream.spark.stats import ReadStats, read_stats
from millstream.spark.wanted import Predicate
from millstream.wire.records import COMMIT


@pytest.fixture
def kafka():
    with FakeKafka({"t": 1}) as fake:
        yield fake


@pytest.fixture
def served(tmp_path):
    with Manifest(tmp_path / "data") as manifest:
        yield manifest


@pytest.fixture
def query(kafka, served, tmp_path):
    """Plans, lets ``between`` happen, reads; returns the rows in order and the counts."""

    def run(predicate=None, between=None, **options):
        names = {"subscribe": "t", "manifest.url": served.url, "kafka.request.timeout.ms": "60000"}
        names |= {name.replace("__", "."): value for name, value in options.items()}
        stats = tmp_path / f"stats-{len(list(tmp_path.iterdir()))}"
        parsed = parse_options({"servers": kafka.bootstrap, "stats.dir": str(stats), **names}, READ)
        tasks = plan_batch(parsed, EVERYTHING, predicate or Predicate())
        if between is not None:
            between()
        rows = [row for task in tasks for row in rows_of(read_task(task))]
        return sorted(rows, key=lambda row: row["offset"]), read_stats(stats)

    return run


@pytest.fixture
def tiered(kafka, served, tmp_path):
    """Offsets 0 to 80 are archived, 60 to 100 in files, 100 to 120 with the leader alone; the whole log."""
    bucket = Bucket(tmp_path / "bucket", served, "t", kafka.topics["t"].id)
    pieces = [plain(10, start=at, timestamp=1000 + 100 * at) + plain(10, start=at + 10) for at in range(0, 120, 20)]
    for piece in pieces[:4]:
        bucket.put(piece)
    bucket.commit(in_part=2)
    for piece in pieces[3:5]:
        served.seal("t", kafka.topics["t"].id, 0, piece)
    kafka.log("t", 0).extend(b"".join(pieces))
    return bucket, b"".join(pieces)


def test_history_comes_from_the_store_and_each_row_once(query, tiered):
    _, log = tiered
    rows, stats = query()
    assert rows == expected(log)
    assert (stats.archive_rows, stats.segment_rows, stats.tail_rows) == (60, 40, 20)
    assert stats.archive_bytes == pytest.approx(len(log) / 2, rel=0.05)


def test_any_range_begins_and_ends_where_it_should(query, tiered):
    _, log = tiered
    for low, high in ((0, 1), (5, 35), (19, 21), (40, 60), (59, 61), (79, 105)):
        rows, _ = query(startingOffsets=f'{{"t": {{"0": {low}}}}}', endingOffsets=f'{{"t": {{"0": {high}}}}}')
        assert rows == expected(log, low=low, high=high)


def test_several_requests_and_tasks_give_the_same_rows(query, tiered, monkeypatch):
    _, log = tiered
    monkeypatch.setattr(archived_segment, "REQUEST_BYTES", 1)
    rows, stats = query(minPartitions="7")
    assert rows == expected(log)
    assert stats.archive_rows == 60


def test_blocks_that_are_too_old_are_not_read(query, tiered):
    _, log = tiered
    rows, stats = query(Predicate(from_timestamp=5_000))
    assert rows == [row for row in expected(log) if row["timestamp"] >= 5_000_000]
    assert stats.archive_bytes == len(plain(10, start=40, timestamp=5000))


def test_a_machine_without_the_files_reads_their_archived_copies(query, tiered, served):
    _, log = tiered
    shutil.rmtree(served.directory)
    rows, stats = query()
    assert rows == expected(log)
    assert (stats.archive_rows, stats.segment_rows, stats.tail_rows) == (80, 0, 40)


def test_objects_and_files_that_go_before_they_are_read_come_from_the_leader(query, tiered, served):
    bucket, log = tiered

    def lose():
        os.unlink(bucket.path(1))
        shutil.rmtree(served.directory)

    rows, stats = query(between=lose, kafka__max__partition__fetch__bytes="1")  # one batch an answer
    assert rows == expected(log)
    assert (stats.archive_rows, stats.segment_rows, stats.tail_rows) == (60, 0, 60)


def test_a_store_that_cannot_be_read_costs_speed_or_with_read_path_segments_the_query(query, tiered):
    _, log = tiered
    rows, stats = query(objects__url="file:///no/such/bucket", kafka__max__partition__fetch__bytes="1")
    assert rows == expected(log)
    assert (stats.archive_rows, stats.tail_rows) == (0, 80)
    with pytest.raises(Unavailable, match="the archive of t cannot be read: the object store file:///no/such/bucket"):
        query(objects__url="file:///no/such/bucket", read__path="segments")


@pytest.mark.parametrize("place", [5, 30, -5])
def test_a_changed_byte_of_an_object_is_an_error_that_names_it(query, tiered, place):
    bucket, _ = tiered
    data = bytearray(bucket.path(0).read_bytes())
    data[place] ^= 1
    bucket.path(0).write_bytes(data)
    with pytest.raises(Corruption):
        query()


@pytest.mark.parametrize(("aborted", "archived"), [((), 20), (None, 10)])
def test_transactions_are_read_from_the_archive_if_it_knows_their_outcome(
    query, kafka, served, tmp_path, aborted, archived
):
    bucket = Bucket(tmp_path / "bucket", served, "t", kafka.topics["t"].id)
    log = plain(10) + plain(10, start=10, producer_id=7, producer_epoch=0, transactional=True)
    log += marker(COMMIT, offset=20, producer_id=7)
    bucket.put(log, aborted).commit()
    kafka.log("t", 0).extend(log + plain(5, start=21))
    rows, stats = query()
    assert rows == expected(log + plain(5, start=21))
    assert (stats.archive_rows, stats.tail_rows) == (archived, 25 - archived)


def test_a_manifest_that_is_behind_is_read_again_after_a_while(tiered, kafka):
    bucket, _ = tiered
    now = [0.0]
    archives = Archives(3.0, required=True, clock=lambda: now[0])
    span = Span("t", kafka.topics["t"].id.hex(), 0, 0, 200)
    archived = Archived(bucket.store.url, 120)
    assert archives.segments(archived, span)[-1].end_offset == 80
    for at in (80, 100):
        bucket.put(plain(20, start=at))
    bucket.commit(in_part=2)
    assert archives.segments(archived, span)[-1].end_offset == 80
    now[0] = 31.0
    found = archives.segments(archived, span)
    assert [one.base_offset for one in found] == [0, 20, 40, 60, 80, 100]
    shutil.rmtree(bucket.root)
    assert archives.segments(archived, span) == found, "it reaches as far as the broker says"
    assert [one.base_offset for one in archives.segments(archived, Span("t", span.topic_id, 0, 45, 61))] == [40, 60]
    archives.close()


@pytest.fixture
def shared(kafka, served, tmp_path):
    """Offsets 0 to 20 are in an object of their own, 20 to 40 and 40 to 60 in objects that another partition shares, 60
    to 80 with the leader alone; the whole log and the store.
    """
    bucket = Bucket(tmp_path / "bucket", served, "t", kafka.topics["t"].id)
    pieces = [plain(10, start=at, timestamp=1000 + at) + plain(10, start=at + 10) for at in range(0, 80, 20)]
    bucket.put(pieces[0])
    other = SharedPartition(bytes(16), 7)  # its block is the first
    for number in (1, 2):
        blocks = [
            BlockBytes(key, 20 * number, 20 * number + 20, 1000, pieces[number])
            for key in (SharedPartition(kafka.topics["t"].id, 0), other)
        ]
        encoded = encode_object(ObjectId(number), blocks)
        bucket.store.put(shared_key(ObjectId(number)), encoded.parts)
        size = len(pieces[number])
        bucket.segments.append(
            ArchivedSegment(20 * number, 20 * number + 20, size, 0, 1000, 2000, 0, object_id=ObjectId(number))
        )
    manifest = StoredManifest(bucket.owner, 0, (), (pack_run(bucket.segments),))
    served.shared[0] = base64.b64encode(encode_manifest(manifest)).decode()
    served.archived[0] = 60
    kafka.log("t", 0).extend(b"".join(pieces))
    return bucket, b"".join(pieces)


def test_ranges_of_a_shared_topic_come_from_their_objects_and_the_tail_from_the_leader(query, shared):
    _, log = shared
    rows, stats = query()
    assert rows == expected(log)
    assert (stats.archive_rows, stats.segment_rows, stats.tail_rows) == (60, 0, 20)
    for low, high in ((0, 1), (15, 25), (39, 41), (25, 70), (45, 50)):
        rows, _ = query(startingOffsets=f'{{"t": {{"0": {low}}}}}', endingOffsets=f'{{"t": {{"0": {high}}}}}')
        assert rows == expected(log, low=low, high=high)


def test_a_shared_object_that_is_gone_comes_from_the_leader_and_a_damaged_one_is_an_error(query, shared):
    bucket, log = shared
    key = shared_key(ObjectId(1))
    archived_segment._objects.clear()
    rows, stats = query(between=lambda: bucket.store.delete([key]), kafka__max__partition__fetch__bytes="1")
    assert rows == expected(log)
    assert (stats.archive_rows, stats.tail_rows) == (40, 40)
    path = bucket.root / shared_key(ObjectId(2))
    data = bytearray(path.read_bytes())
    data[bucket.segments[2].size_bytes + 5] ^= 1
    path.write_bytes(data)
    archived_segment._objects.clear()
    with pytest.raises(Corruption, match=shared_key(ObjectId(2))):
        query(kafka__max__partition__fetch__bytes="1")


def test_the_counts_of_tasks_add_up():
    assert ReadStats(segment_rows=1, archive_rows=2, tail_rows=4).rows == 7
