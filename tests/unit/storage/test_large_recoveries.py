"""A start after a crash of a broker with many logs, or with offsets that are far apart."""

import random

from storage_support import append, new_shard, read_everything, settle

from millstream.testing.local_storage import LocalShard, plain_batch, recover_locally
from millstream.testing.sim_disk import SimDisk, SimFile


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
    assert len(found.segments_list) == len(log.segments_list) == 6
    assert read_everything(shard, found) == written


class CountingDisk(SimDisk):
    """Counts the files that are open, and how many that were at once."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.held = self.most = 0

    def open(self, path: str, *, create: bool = False) -> SimFile:
        file = super().open(path, create=create)
        self.held += 1
        self.most = max(self.most, self.held)

        def close() -> None:
            self.held -= 1

        file.close = close
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
