"""An index that is damaged, or that the disk cannot read, while its segment is written, read and cut: derived as it is,
it is done without, and written anew once the segment can be read.
"""

import errno
from itertools import pairwise

import pytest
from storage_support import SEGMENT, append, entries, fill, kill, new_shard, read_everything, reopened, settle

from millstream.format.index import INDEX_INTERVAL_BYTES
from millstream.storage.processes.worker import Worker
from millstream.storage.segments.index import Growing, SegmentIndex, batches_from
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, recover_locally

LOG, INDEX = SEGMENT + ".log", SEGMENT + ".index"
BATCH_BYTES = 4000


def unreadable(*paths: str):
    return lambda kind, path: errno.EIO if kind == "read" and path in paths else 0


def well(_kind: str, _path: str) -> int:
    return 0


def restarted(shard: LocalShard):
    """The shard after an orderly stop, its log opened: nothing was read of the files yet."""
    shard.stop()
    shard, log = reopened(shard.disk, recover_locally(shard.disk))
    assert shard.clean
    return shard, log


@pytest.fixture
def written():
    """(shard, its log, what is in it), after an orderly restart; more than 20 entries of index."""
    shard = new_shard()
    data = fill(shard, shard.open(1), 200, BATCH_BYTES)
    return *restarted(shard), data


def is_whole(disk: SimDisk) -> bool:
    """The index file is good, and has entries from the segment's start to its end."""
    index = SegmentIndex.load(disk, LOG, 0)
    return index.whole and is_dense(disk, index, disk.size(LOG))


def is_dense(disk: SimDisk, index: SegmentIndex, until: int) -> bool:
    """No two neighbours lie farther apart than two intervals, and every entry names a batch; where a log was opened in
    between, other batches have entries than in an index that was made at one go.
    """
    made = SegmentIndex(0)
    growing = Growing(made, 0, interval_bytes=1)  # an entry for each batch
    file = disk.open(LOG)
    for batch in batches_from(file, 0, disk.size(LOG)):
        growing.add(batch)
    assert set(entries(index)) <= set(entries(made))
    places = [0, *index.positions, until]
    return max(later - before for before, later in pairwise(places)) <= 2 * INDEX_INTERVAL_BYTES


def file_worker(shard: LocalShard) -> Worker:
    return shard.processes.file_worker


def test_an_index_that_cannot_be_read_is_written_anew_by_the_next_checkpoint(written, capfd):
    shard, log, data = written
    disk = shard.disk
    disk.fail = unreadable(INDEX)
    data += fill(shard, log, 100, BATCH_BYTES)
    shard.call(shard.storage.checkpoint)
    said = capfd.readouterr().err.splitlines()
    assert [line.split(None, 1)[1] for line in said] == [
        f"ERROR [topic1/0] {INDEX} could not be read: Input/output error",
        f"WARN  [topic1/0] repaired: {INDEX} was damaged or could not be read and is rebuilt from the segment",
    ]
    disk.fail = well
    assert is_whole(disk)
    data += fill(shard, log, 100, BATCH_BYTES)
    shard.call(shard.storage.checkpoint)
    assert is_whole(disk)
    assert read_everything(shard, log) == b"".join(data)
    assert capfd.readouterr().err == ""


def test_what_cannot_be_read_of_a_segment_either_is_left_to_a_later_checkpoint(written):
    shard, log, data = written
    disk = shard.disk
    disk.fail = unreadable(INDEX, LOG)
    for _ in range(2):
        data += fill(shard, log, 100, BATCH_BYTES)
        shard.call(shard.storage.checkpoint)
    disk.fail = well
    index = SegmentIndex.load(disk, LOG, 0)
    assert index.whole  # nobody touched it
    assert not is_dense(disk, index, disk.size(LOG))
    data.append(append(log))
    settle(shard)
    shard.call(shard.storage.checkpoint)
    assert is_whole(disk)
    assert read_everything(shard, log) == b"".join(data)


def test_what_was_left_is_mended_by_the_start_after_a_crash(written, capfd):
    shard, log, data = written
    shard.disk.fail = unreadable(INDEX, LOG)
    data += fill(shard, log, 100, BATCH_BYTES)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    disk.fail = well
    shard, log = reopened(disk, recover_locally(disk))
    assert f"repaired: {INDEX} was missing, damaged or short" in capfd.readouterr().err
    assert is_whole(disk)
    assert read_everything(shard, log) == b"".join(data)


def test_a_segment_is_read_though_its_index_cannot_be(written, capfd):
    shard, log, data = written
    shard.disk.fail = unreadable(INDEX)
    assert read_everything(shard, log) == b"".join(data)
    assert capfd.readouterr().err.count("ERROR") == 1
    faults = shard.processes.worker_stats.counter("storage_faults", kind="read_error")
    assert faults.value == 1


def test_an_index_that_rots_while_nobody_has_it_open_is_written_anew(written, capfd):
    shard, log, data = written
    disk = shard.disk
    disk.flip(INDEX, disk.size(INDEX) // 2)
    data += fill(shard, log, 100, BATCH_BYTES)
    shard.call(shard.storage.checkpoint)
    assert is_whole(disk)
    assert "repaired: " in capfd.readouterr().err
    assert read_everything(shard, log) == b"".join(data)


def test_a_segment_is_cut_though_its_index_cannot_be_read(written):
    shard, log, data = written
    disk = shard.disk
    disk.fail = unreadable(INDEX)
    shard.call(log.truncate_suffix, 150)
    data[150:] = fill(shard, log, 60, BATCH_BYTES)
    shard.call(shard.storage.checkpoint)
    disk.fail = well
    assert is_whole(disk)
    assert read_everything(shard, log) == b"".join(data)


def test_entries_stay_that_lie_behind_what_is_durable_of_a_segment(written):
    """A checkpoint is about what was durable when it began; more was written meanwhile."""
    shard, log, data = written
    disk = shard.disk
    before = SegmentIndex.load(disk, LOG, 0).summary
    disk.fail = unreadable(INDEX)
    data += fill(shard, log, 100, BATCH_BYTES)
    log.behind.write(log.ends.durable_position)
    shard.run(lambda: not log.behind.under_way)
    worker = file_worker(shard)
    worker.files.write_index(LOG, before)
    disk.fail = well
    index = SegmentIndex.load(disk, LOG, 0)
    assert index.positions[-1] < before.size_bytes
    assert is_dense(disk, index, before.size_bytes)
    kept = worker.files.index(LOG, 0)
    assert kept.pending > 5
    assert is_dense(disk, kept, disk.size(LOG))
    shard.call(shard.storage.checkpoint)
    assert is_whole(disk)
