"""Segments that compaction, a copy of another replica's log or a replay has written are read by the shard, too."""

import itertools
import random
from array import array
from typing import Any

import pytest
from compaction_support import COMPACTED, NOW_MS, compact, compacted_shard, overwrite, put
from storage_support import append, fill, new_shard, reopened, settle

from millstream.errors import Corruption, MillstreamError
from millstream.format.segment import whole_batches
from millstream.model.replication import LogPoint, Term
from millstream.storage.disk import read_file
from millstream.storage.log.exporting import choose_end, describe, read_batches
from millstream.storage.log.importing import LogImport
from millstream.storage.segments import index as segment_index
from sim.engine.local_storage import LocalShard, recover_locally

INTERVAL = {"index_interval_bytes": 4096}
ROOM = {"wal_bytes": 16 << 20, "wal_file_bytes": 1 << 20}


def taken(found: Any) -> Any:
    if found is None or isinstance(found, Exception):
        return found
    data = bytes(found)
    found.release()
    return data


def by_worker(shard: LocalShard, log: Any, offset: int, end: int, max_bytes: int, minimum_one: bool = True) -> Any:
    return taken(shard.call(log.read_cold, offset, end, max_bytes, minimum_one))


def by_pages(shard: LocalShard, log: Any, offset: int, end: int, max_bytes: int, minimum_one: bool = True) -> Any:
    """The second try: the first asks for the runs."""
    found = taken(log.read_pages(offset, end, max_bytes, minimum_one))
    if found is None:
        pages = shard.storage.reads.pages
        shard.run(lambda: not pages.tables.requested and pages.share.bytes < 0)
        found = taken(log.read_pages(offset, end, max_bytes, minimum_one))
    return found


def share_of_pages(shard: LocalShard, log: Any, seed: int) -> float:
    """Reads at random places, each compared with what the worker gives; the share that the shard answered."""
    chance = random.Random(seed)
    served = read = 0
    for _ in range(250):
        offset = chance.randrange(log.start_offset, log.next_offset)
        end = chance.choice([log.next_offset, chance.randint(offset + 1, log.next_offset)])
        max_bytes = chance.choice([0, 100, 3000, 20_000, 1 << 20])
        minimum_one = chance.random() < 0.7
        expected = by_worker(shard, log, offset, end, max_bytes, minimum_one)
        found = by_pages(shard, log, offset, end, max_bytes, minimum_one)
        read += isinstance(expected, bytes)
        if found is not None:
            served += 1
            assert expected.startswith(found)
            assert bool(found) == bool(expected), (offset, end, max_bytes, minimum_one)
    return served / read


def compacted(seed: int) -> tuple[LocalShard, Any]:
    """A log with gaps, of some rewritten segments."""
    chance = random.Random(seed)
    shard = compacted_shard(seed, **ROOM)
    log = shard.open(1, **{**COMPACTED, **INTERVAL, "segment_bytes": 80_000})
    for count in range(150):
        size = chance.choice([60, 500, 3000])
        keys = sorted({chance.choice([chance.randrange(40), 100 + count]) for _ in range(chance.randint(1, 5))})
        put(shard, log, *((b"key%d" % key, chance.randbytes(size)) for key in keys))
    shard.call(shard.storage.checkpoint)
    compact(shard, log)
    return shard, log


@pytest.mark.parametrize("seed", range(4))
def test_a_compacted_log_is_read_as_the_worker_reads_it(seed: int) -> None:
    shard, log = compacted(seed)
    assert any(one.generation for one in log.files.segments.all())
    assert share_of_pages(shard, log, seed) > 0.5


def test_an_offset_that_compaction_has_removed_gives_the_next_batch() -> None:
    shard, log = compacted(7)
    segment = next(one for one in log.files.segments.all() if one.generation)
    batches = list(whole_batches(memoryview(read_file(shard.disk, segment.path))))
    gaps = [
        (one.last_offset + 1, after.base_offset)
        for one, after in itertools.pairwise(batches)
        if one.last_offset + 1 < after.base_offset
    ]
    assert len(gaps) > 5
    for offset, following in gaps:
        found = by_pages(shard, log, offset, log.next_offset, 1 << 20)
        assert found is None or int.from_bytes(found[:8], "big") == following


def flipped_bits_are_never_served(shard: LocalShard, log: Any, path: str) -> None:
    """Each byte that is served is the one that was written, whichever bit of the file is flipped."""
    size = shard.disk.size(path)
    chance = random.Random(3)
    right = bytes(read_file(shard.disk, path))
    for _ in range(60):
        at = chance.randrange(size)
        file = shard.disk.open(path)
        file.pwritev([bytes([right[at] ^ 1 << chance.randrange(8)])], at)
        offset = log.start_offset
        while offset < log.next_offset:
            found = by_pages(shard, log, offset, log.next_offset, 20_000)
            expected = by_worker(shard, log, offset, log.next_offset, 20_000)
            if isinstance(expected, Corruption):
                assert found is None
                break
            assert found is None or expected.startswith(found)
            offset = list(whole_batches(memoryview(found or expected)))[-1].last_offset + 1
        file.pwritev([right[at : at + 1]], at)
        file.close()


def test_a_flipped_bit_of_a_compacted_segment_is_never_served() -> None:
    shard, log = compacted(2)
    flipped_bits_are_never_served(shard, log, next(one.path for one in log.files.segments.all() if one.generation))


def test_compaction_names_a_flipped_bit_of_a_leader_epoch_and_copies_it_nowhere(
    capfd: pytest.CaptureFixture[str],
) -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 5)
    shard.call(shard.storage.checkpoint)
    first = log.files.segments.first
    assert first.sealed
    file = shard.disk.open(first.path)
    file.pwritev([b"\x01"], 14)
    file.close()
    compaction = shard.storage.compaction
    shard.run(lambda: "leader epoch 256 where 0 was written" in capfd.readouterr().err, limit_us=60_000_000)
    assert compaction.stretch(log).dirty_bytes
    assert not any(one.generation for one in log.files.segments.all())


def copied() -> tuple[LocalShard, Any]:
    """A log that another replica has sent."""
    source = new_shard(1, settings=ROOM)
    theirs = source.open(1, replicated=True, segment_bytes=60_000)
    for term, batches in ((3, 30), (7, 80)):
        theirs.append_control(Term(term), b"")
        for count in range(batches):
            append(theirs, 1 + count % 3, 4000, epoch=term)
            settle(source)
    source.call(source.storage.checkpoint)
    end = choose_end(theirs, theirs.durable_offset)
    description = describe(theirs, end, b"")
    shard = new_shard(2)
    config = {"replicated": True, "segment_bytes": 60_000, **INTERVAL}
    log = shard.open(1, **config)
    receiving = LogImport(log, description)
    while receiving.next_offset < end:
        part = source.call(read_batches, theirs, source.storage.reads.cold, receiving.next_offset, end, 9_000)
        assert shard.call(receiving.add, [memoryview(bytes(part.buf))], part.next_offset) is None
        part.buf.release()
    assert shard.call(receiving.finish) is None
    base = description.log_state.base
    shard.call(shard.storage.adopt_log, log, receiving.directory, LogPoint(base.position, base.term), end)
    return shard, shard.open(1, **config)


def test_a_copy_of_a_log_is_read_as_the_worker_reads_it() -> None:
    shard, log = copied()
    assert len(log.files.segments) > 4
    assert share_of_pages(shard, log, 1) > 0.5


def test_a_flipped_bit_of_a_copied_segment_is_never_served() -> None:
    shard, log = copied()
    flipped_bits_are_never_served(shard, log, log.files.segments.first.path)


def test_a_copy_with_another_leader_epoch_is_refused() -> None:
    source = new_shard(1, settings={"checkpoint_bytes": 1 << 20})
    theirs = source.open(1, replicated=True, segment_bytes=2_000)
    theirs.append_control(Term(3), b"")
    fill(source, theirs, 20, 400, epoch=3)
    source.call(source.storage.checkpoint)
    end = choose_end(theirs, theirs.durable_offset)
    shard = new_shard(2)
    receiving = LogImport(shard.open(1, replicated=True, segment_bytes=8_000), describe(theirs, end, b""))
    while receiving.next_offset < end:
        part = source.call(read_batches, theirs, source.storage.reads.cold, receiving.next_offset, end, 1_000)
        data = bytearray(bytes(part.buf))
        if receiving.next_offset > 3:
            data[12:16] = (5).to_bytes(4, "big")
        assert shard.call(receiving.add, [memoryview(bytes(data))], part.next_offset) is None
        part.buf.release()
    failed = shard.call(receiving.finish)
    assert isinstance(failed, MillstreamError)
    assert "leader epoch 5" in failed.message


def test_a_replayed_log_is_read_as_the_worker_reads_it() -> None:
    shard = new_shard(settings=ROOM)
    written = fill(shard, shard.open(1), 300, 2_000)
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    assert report.records > 100
    shard, log = reopened(shard.disk, report)
    sums = [
        one
        for segment in log.files.segments.all()
        for one in segment_index.SegmentIndex.load(shard.disk, segment.path, segment.base_offset).sums[1:]
    ]
    assert len(sums) == sum(map(len, written)) // (32 * 1024)
    assert sums.count(0) <= 1, "but for the run in which the replay began"
    assert share_of_pages(shard, log, 5) > 0.5


def test_the_end_of_a_segment_that_has_no_runs_does_not_hide_those_before_it(monkeypatch) -> None:
    monkeypatch.setattr(segment_index, "RUNS_MAX", 8)
    shard = new_shard(settings=ROOM)
    log = shard.open(1, index_interval_bytes=4096, segment_bytes=200_000)
    fill(shard, log, 150, 2_000)
    shard.call(shard.storage.checkpoint)
    first = log.files.segments.first
    assert by_pages(shard, log, first.end_offset - 1, log.next_offset, 1 << 20) is None
    for offset in (0, 60, 30):
        assert by_pages(shard, log, offset, log.next_offset, 1 << 20), offset


def test_a_segment_whose_first_offsets_are_gone_is_read_from_its_first_batch() -> None:
    index = segment_index.SegmentIndex(100)
    for offset, position in ((130, 0), (150, 500), (170, 1000)):
        index.add(offset, position, NOW_MS, 7)
    for offset in (100, 129, 130, 151):
        data = array("I", index.runs(offset))
        assert list(data) == [0, 50, 70, 0, 500, 1000, 7, 7, 7]
    assert index.runs(170) == b""
