"""Compacted logs: gaps between batches and inside of them, empty batches, tombstones with their delete horizon."""

import random

import pytest
from fake_archive import Bucket
from fake_kafka import FakeKafka
from fake_manifest import Manifest
from spark_logs import EVERYTHING, expected, plain, read, rows_of

from millstream.format.archive import segment_key
from millstream.format.compacted import emptied, filtered
from millstream.spark.options import READ, parse_options
from millstream.spark.plan import plan_batch
from millstream.spark.read import read_task
from millstream.spark.rewriting import Group, rewrite
from millstream.spark.scrub import Piece, check
from millstream.spark.stats import read_stats
from millstream.spark.wanted import Predicate
from millstream.storage.disk import SystemDisk
from millstream.tiers.messages import Upload
from millstream.tiers.uploading import Pace, upload
from millstream.wire.records import build_batch, parse_header


def thinned(batch, keep, horizon=None):
    """What compaction leaves of a batch of which the records with these offset deltas stay."""
    header = parse_header(batch)
    kept, _ = filtered(header, memoryview(batch), lambda record: record.offset_delta in keep, lambda _: horizon)
    return b"" if kept is None else bytes(kept)


def compacted_log(seed, batches=30, each=10, codec=0):
    """A log that compaction went over: whole batches gone, others thinned, one in five empty, the last of all there."""
    rng = random.Random(seed)
    log = b""
    for n in range(batches):
        batch = plain(each, start=n * each, compression=codec)
        choice = rng.random()
        if n == batches - 1 or choice < 0.2:
            log += emptied(parse_header(batch))
        elif choice < 0.6:
            log += thinned(batch, set(rng.sample(range(each), rng.randint(1, each))), rng.choice([None, 99_000_000]))
    return log


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_rows_keep_their_offsets_and_times(codec, pieces):
    log = compacted_log(1, codec=codec)
    wanted = expected(log)
    assert 20 < len(wanted) < 200
    assert rows_of(read(log, pieces=pieces)) == wanted


@pytest.mark.parametrize("seed", range(5))
def test_ranges_that_begin_and_end_in_gaps_give_every_row_once(seed):
    log = compacted_log(seed)
    cuts = sorted(random.Random(seed).sample(range(1, 300), 8))
    rows = [
        row
        for low, high in zip([0, *cuts], [*cuts, 300], strict=True)
        for row in rows_of(read(log, start=low, end=high))
    ]
    assert rows == expected(log)


def test_tombstones_with_a_delete_horizon_have_the_time_of_their_record():
    batch = build_batch([(b"a", None, (), 5000), (b"b", b"1", (), 4000), (b"c", None, (), 6000)], base_offset=7)
    rows = rows_of(read(thinned(batch, {0, 2}, horizon=123_456_789)))
    assert [(row["offset"], row["key"], row["value"], row["timestamp"]) for row in rows] == [
        (7, b"a", None, 5_000_000),
        (9, b"c", None, 6_000_000),
    ]


@pytest.mark.parametrize("options", [{}, {"minPartitions": "9"}, {"split.bytes": "600"}, {"read.path": "broker"}])
def test_files_and_tail_of_a_compacted_topic_give_every_row_once(tmp_path, options):
    with FakeKafka({"t": 1}) as kafka, Manifest(tmp_path / "data") as manifest:
        log, tail = compacted_log(3), plain(10, start=300)
        path = manifest.seal("t", kafka.topics["t"].id, 0, log, end_offset=300)
        compacted = path.with_name(path.name.replace(".log", ".2.log"))
        path.rename(compacted)
        path.with_suffix(".index").rename(compacted.with_suffix(".index"))
        (entry,) = manifest.files["t", 0]
        entry.update(base_offset=0, path=str(compacted))
        for part in (log, tail):
            kafka.log("t", 0).extend(part)
        given = {"subscribe": "t", "manifest.url": manifest.url, "kafka.request.timeout.ms": "60000", **options}
        stats = tmp_path / "stats"
        stats.mkdir()
        parsed = parse_options({"servers": kafka.bootstrap, "stats.dir": str(stats), **given}, READ)
        tasks = plan_batch(parsed, EVERYTHING, Predicate())
        rows = sorted((row for task in tasks for row in rows_of(read_task(task))), key=lambda row: row["offset"])
        assert rows == expected(log + tail)
        assert "read.path" in options or read_stats(stats).segment_rows == len(expected(log))


@pytest.mark.parametrize("seed", [3, 4])
def test_an_archived_log_that_was_compacted_is_read_checked_and_rewritten_with_its_gaps(tmp_path, seed):
    with FakeKafka({"t": 1}) as kafka, Manifest(tmp_path / "data") as served:
        bucket = Bucket(tmp_path / "bucket", served, "t", kafka.topics["t"].id)
        log, tail = compacted_log(seed), plain(10, start=300)
        path = tmp_path / f"{0:020}.1.log"
        path.write_bytes(log)
        command = Upload(1, bucket.owner, str(path), 0, 0, 300, len(log), 1, [], 0)
        segment = upload(bucket.store, SystemDisk(), command, Pace(1e12))
        bucket.segments.append(segment)
        bucket.commit()
        for part in (log, tail):
            kafka.log("t", 0).extend(part)
        stats = tmp_path / "stats"
        stats.mkdir()
        given = {"subscribe": "t", "manifest.url": served.url, "kafka.request.timeout.ms": "60000"}
        parsed = parse_options({"servers": kafka.bootstrap, "stats.dir": str(stats), **given}, READ)
        tasks = plan_batch(parsed, EVERYTHING, Predicate())
        rows = sorted((row for task in tasks for row in rows_of(read_task(task))), key=lambda row: row["offset"])
        assert rows == expected(log + tail)
        assert read_stats(stats).archive_rows == len(expected(log))
        made = rewrite(Group(bucket.owner.topic_id.hex, 0, (segment,)), bucket.store.url, 3)
        for one in (segment, made.after):
            name = segment_key(bucket.owner, one)
            piece = Piece("t", 0, name, 0, 300, one.size_bytes, bucket.owner.topic_id.hex, one, gaps=True)
            assert check(piece, bucket.store.url).finding == ""
