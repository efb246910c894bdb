"""Reads of segments by the shard itself: what the worker would give, or nothing."""

import errno
import random
from array import array

import pytest
from storage_support import append, fill, new_shard, settle

from millstream.errors import Corruption
from millstream.format import index as index_format
from millstream.format.index import scan_index
from millstream.storage.disk import read_file, replace_file
from millstream.storage.segments.index import index_path
from sim.engine.local_storage import MIB

BIG = {"wal_bytes": 8 * MIB, "wal_file_bytes": MIB}


def taken(found):
    if found is None or isinstance(found, Exception):
        return found
    data = bytes(found)
    found.release()
    return data


def cold(shard, log, offset, end, max_bytes, minimum_one=True):
    return taken(shard.call(log.read_cold, offset, end, max_bytes, minimum_one))


def by_pages(shard, log, offset, end, max_bytes, minimum_one=True):
    """The second try: the first asks for the runs."""
    found = taken(log.read_pages(offset, end, max_bytes, minimum_one))
    if found is None:
        pages = shard.storage.reads.pages
        shard.run(lambda: not pages.tables.requested and pages.share.bytes < 0)
        found = taken(log.read_pages(offset, end, max_bytes, minimum_one))
    return found


def count(shard):
    return shard.storage.reads.pages._reads.value


def written(shard, batches=200, seed=1, **config):
    chance = random.Random(seed)
    log = shard.open(1, **{"index_interval_bytes": 4096, **config})
    for _ in range(batches):
        append(log, chance.randint(1, 4), chance.choice([20, 300, 900, 5000]))
        if chance.random() < 0.3:
            settle(shard)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    return log


@pytest.fixture
def shard():
    return new_shard(settings=BIG)


@pytest.mark.parametrize("seed", range(6))
def test_pages_give_the_beginning_of_what_the_worker_gives(shard, seed) -> None:
    log = written(shard, seed=seed, segment_bytes=60_000)
    chance = random.Random(seed)
    served = 0
    for _ in range(300):
        offset = chance.randrange(log.next_offset)
        end = chance.choice([log.next_offset, chance.randint(offset + 1, log.next_offset)])
        max_bytes = chance.choice([0, 100, 3000, 20_000, 1 << 20])
        minimum_one = chance.random() < 0.7
        expected = cold(shard, log, offset, end, max_bytes, minimum_one)
        found = by_pages(shard, log, offset, end, max_bytes, minimum_one)
        if found is not None:
            served += 1
            assert expected.startswith(found)
            assert bool(found) == bool(expected), (offset, end, max_bytes, minimum_one)
    assert served > 100


def test_a_reader_goes_through_a_log_run_by_run(shard) -> None:
    log = written(shard, segment_bytes=100_000)
    offset, everything, asked = 0, b"", 0
    while offset < log.next_offset:
        before = count(shard)
        data = by_pages(shard, log, offset, log.next_offset, 30_000)
        if data is None:
            data = cold(shard, log, offset, log.next_offset, 30_000)
        asked += count(shard) == before
        everything += data
        position = 0
        while position < len(data):
            base, size, delta = (
                int.from_bytes(data[position : position + 8], "big"),
                int.from_bytes(data[position + 8 : position + 12], "big") + 12,
                int.from_bytes(data[position + 23 : position + 27], "big"),
            )
            assert base == offset
            offset, position = base + delta + 1, position + size
    assert asked < 12  # the last run of each segment


def test_a_flipped_bit_is_never_served(shard) -> None:
    log = written(shard, 60)
    path = log.segments()[0].path
    size = log.segments()[0].bytes
    chance = random.Random(3)
    for _ in range(60):
        at = chance.randrange(size)
        file = shard.disk.open(path)
        old = bytearray(1)
        file.preadv([old], at)
        file.pwritev([bytes([old[0] ^ 1 << chance.randrange(8)])], at)
        offset = 0
        while offset < log.next_offset:
            found = by_pages(shard, log, offset, log.next_offset, 20_000)
            expected = cold(shard, log, offset, log.next_offset, 20_000)
            if isinstance(expected, Corruption):
                assert found is None
                break
            assert found is None or expected.startswith(found)
            offset = _end(found or expected)
        file.pwritev([bytes(old)], at)
        file.close()


def _end(data):
    position = end = 0
    while position < len(data):
        end = int.from_bytes(data[position : position + 8], "big")
        end += int.from_bytes(data[position + 23 : position + 27], "big") + 1
        position += int.from_bytes(data[position + 8 : position + 12], "big") + 12
    return end


def test_runs_of_an_index_without_checksums_are_the_workers(shard) -> None:
    log = written(shard, 60)
    path = index_path(log.segments()[0].path)
    scan = scan_index(read_file(shard.disk, path), 0)
    zeros = array("I", bytes(4 * len(scan.offsets)))
    assert any(scan.sums)
    block = index_format.encode_block(scan.summary, scan.offsets, scan.positions, scan.timestamps, zeros)
    replace_file(shard.disk, path, block)
    shard.processes.file_worker.files._indexes.clear()
    assert by_pages(shard, log, 0, log.next_offset, 1 << 20) is None
    assert cold(shard, log, 0, log.next_offset, 1 << 20)


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EIO, errno.EOPNOTSUPP])
def test_what_the_page_cache_does_not_give_is_left_to_the_worker(shard, monkeypatch, error) -> None:
    log = written(shard, 60)
    assert by_pages(shard, log, 0, log.next_offset, 1 << 20)
    file = type(shard.disk.open(log.segments()[0].path))

    def fails(self, buffers, position):
        raise OSError(error, "not now")

    monkeypatch.setattr(file, "preadv_cached", fails)
    before = shard.arena.live_fragments
    assert log.read_pages(0, log.next_offset, 1 << 20, True) is None
    assert shard.arena.live_fragments == before


def test_a_short_read_gives_the_runs_that_are_there(shard, monkeypatch) -> None:
    log = written(shard, 60)
    whole = by_pages(shard, log, 0, log.next_offset, 40_000)
    file = type(shard.disk.open(log.segments()[0].path))
    preadv = file.preadv

    def short(self, buffers, position):
        return preadv(self, [buffers[0][:15_000]], position)

    monkeypatch.setattr(file, "preadv_cached", short)
    found = by_pages(shard, log, 0, log.next_offset, 40_000)
    assert found
    assert len(found) <= 15_000
    assert whole.startswith(found)


def test_a_log_that_is_cut_and_goes_on_otherwise_is_read_as_it_is(shard) -> None:
    log = written(shard, 120)
    for round_ in range(4):
        assert by_pages(shard, log, 0, log.next_offset, 1 << 20)
        boundary = _end(cold(shard, log, 0, log.next_offset, 40_000 - 7000 * round_))
        shard.call(log.truncate_suffix, boundary)
        for size in (100 + round_, 2000, 700 * (round_ + 1)) * 10:
            append(log, 2, size)
        settle(shard)
        shard.call(shard.storage.checkpoint)
        offset = 0
        while offset < log.next_offset:
            expected = cold(shard, log, offset, log.next_offset, 20_000)
            found = by_pages(shard, log, offset, log.next_offset, 20_000)
            assert found is None or expected.startswith(found)
            offset = _end(found or expected)


def test_what_was_trimmed_is_not_read(shard) -> None:
    log = written(shard, 120, segment_bytes=60_000)
    assert by_pages(shard, log, 0, log.next_offset, 1 << 20)
    second = log.segments()[1].base_offset
    assert second
    shard.call(log.trim_prefix, second + 1)
    settle(shard)
    assert by_pages(shard, log, second, log.next_offset, 1 << 20) is None
    assert not any(key[0].endswith("00000000000000000000.log") for key in shard.storage.reads.pages.tables._windows)


def test_a_turn_reads_no_more_than_its_share_while_batches_are_appended(shard) -> None:
    log = written(shard, 150, index_interval_bytes=4096)
    fill(shard, log, 3)
    assert by_pages(shard, log, 0, log.next_offset, 1 << 20)
    append(log, 1, 10)
    shard.run(lambda: shard.storage.reads.pages.share.bytes < 0)
    total = 0
    while (found := taken(log.read_pages(0, log.next_offset, 100_000, True))) is not None:
        total += len(found)
        assert total < 400_000
    assert total > 150_000
