"""A start after a crash of a broker with many logs, or with offsets that are far apart."""

import random
from collections.abc import Sequence

from storage_support import append, fill, new_shard, read_everything, settle

from sim.engine.disk import SimDisk, SimFile
from sim.engine.local_storage import MIB, LocalShard, plain_batch, recover_locally


def test_segments_roll_for_their_offsets_in_a_replay_as_they_did() -> None:
    shard = new_shard()
    log = shard.open(1)
    for _ in range(6):
        count = 2**31 - 1
        data = plain_batch(0, count, bytes(20_000))
        log.append([memoryview(data)], len(data), log.next_offset, log.next_offset + count - 1, 0, 1000)
        settle(shard)
    written = read_everything(shard, log)
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    assert report.faults == ()
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    found = shard.open(1)
    assert len(found.files.segments) == len(log.files.segments) == 6
    assert read_everything(shard, found) == written


class CountingDisk(SimDisk):
    """Counts the files that are open, how many that were at once, and how much was read of a segment at once."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.held = self.most = self.longest = 0

    def open(self, path: str, *, create: bool = False) -> SimFile:
        file = super().open(path, create=create)
        self.held += 1
        self.most = max(self.most, self.held)

        def close() -> None:
            self.held -= 1

        read = file.preadv

        def preadv(buffers: Sequence[bytearray | memoryview], at: int) -> int:
            if path.endswith(".log"):
                self.longest = max(self.longest, sum(map(len, buffers)))
            return read(buffers, at)

        file.close, file.preadv = close, preadv
        return file


def test_a_recovery_holds_few_files_open_however_many_logs_there_are() -> None:
    disk = CountingDisk(random.Random(1))
    shard = new_shard(disk=disk)
    for group in range(1, 101):
        append(shard.open(group), 1, 100)
    settle(shard)
    disk.held = disk.most = 0
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    assert report.logs == 100
    assert disk.held == 0
    assert disk.most < 5


def test_a_long_tail_that_is_torn_where_it_begins_is_not_read_into_memory() -> None:
    disk = CountingDisk(random.Random(1))
    settings = {"wal_bytes": 32 * MIB, "wal_file_bytes": 4 * MIB, "checkpoint_bytes": 1 << 40}
    shard = new_shard(disk=disk, settings=settings, memory_bytes=64 * MIB)
    log = shard.open(1)
    append(log)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    begin = log.next_position
    written = read_everything(shard, log) + b"".join(fill(shard, log, 90, 100_000))
    log.behind.write(log.ends.durable_position)
    shard.run(lambda: log.ends.written_position == log.ends.durable_position)
    disk.sync_all("")
    disk.damage(log.files.segments.active.path, begin, bytes(512))
    disk.longest = 0
    report = recover_locally(disk)
    assert [repair.kind for repair in report.repairs] == ["torn_segment", "wal_replayed"]
    assert disk.longest <= 4 * MIB
    shard = LocalShard(disk, shard.rng, clean=report.clean, memory_bytes=64 * MIB)
    assert read_everything(shard, shard.open(1)) == written


def test_segments_roll_for_their_offsets_though_small_batches_follow_each_other() -> None:
    shard = new_shard(memory_bytes=64 * MIB)
    log = shard.open(1, index_interval_bytes=32 * 1024)
    while log.cache.level < 3:
        fill(shard, log, 10)
    count = 2**31 - 1
    data = plain_batch(0, count, bytes(40))
    for n in range(400):
        log.append([memoryview(data)], len(data), log.next_offset, log.next_offset + count - 1, 0, 1000)
        if n % 20 == 19:
            settle(shard)
    shard.call(shard.storage.checkpoint)
    written = read_everything(shard, log)
    assert all(one.end_offset - one.base_offset <= 2**31 - 1 for one in log.segments())
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    assert report.faults == ()
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean, memory_bytes=64 * MIB)
    assert read_everything(shard, shard.open(1)) == written
