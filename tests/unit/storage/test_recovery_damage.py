"""What a start makes of pages that went bad, and of batches that do not match their checksum."""

import random

import pytest
from storage_support import SEGMENT, WAL, fill, kill, new_shard, read_everything, reopened

from millstream.errors import Corruption
from millstream.storage.disk import exists
from sim.engine.local_storage import LocalShard, recover_locally


@pytest.mark.parametrize("index", ["there", "lost"])
def test_a_damaged_segment_is_not_taken_for_one_that_was_removed(index: str) -> None:
    """The log was trimmed within it, and the write-ahead log holds none of its batches any more."""
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 8)
    shard.call(shard.storage.checkpoint)
    shard.call(log.trim_prefix, 1)
    disk = kill(shard)
    if index == "lost":
        disk.unlink(SEGMENT + ".index")
    disk.damage(SEGMENT + ".log", 0, bytes(512))
    report = recover_locally(disk)
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    if index == "lost":
        with pytest.raises(Corruption, match=SEGMENT):
            shard.open(1)
    else:
        assert shard.open(1).next_offset == 8
    assert exists(disk, SEGMENT + ".log")


@pytest.mark.parametrize("page", range(4))
def test_a_bad_page_is_told_of_every_log_that_had_records_in_it(page: int) -> None:
    """Each of these logs has one small frame and nothing else: no later record tells that it lost one."""
    shard = new_shard()
    logs = [shard.open(group) for group in range(1, 4)]
    written: list[bytes] = []
    for log in logs:
        written += fill(shard, log, 1, 10)
    fill(shard, shard.open(4), 1)
    disk = kill(shard)
    disk.damage(WAL, 4096 * page, bytes(4096))
    report = recover_locally(disk)
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    lost = 0
    for group, batch in enumerate(written, 1):
        if any(fault.startswith(f"topic{group}/0: ") for fault in report.faults):
            lost += 1
            with pytest.raises(Corruption):
                shard.open(group)
        else:
            assert read_everything(shard, shard.open(group)) == batch
    assert lost == (page < 3)


@pytest.mark.parametrize("byte", [27, 35, 43, 51, 53, 61], ids=["time", "largest", "id", "epoch", "sequence", "record"])
def test_a_damaged_batch_is_told_and_left_out_when_headers_are_replayed(
    byte: int, capfd: pytest.CaptureFixture[str]
) -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 9, 900)
    shard.stop()
    disk = shard.disk
    disk.flip(SEGMENT + ".log", sum(map(len, written[:4])) + byte)
    shard, log = reopened(disk, recover_locally(disk))
    capfd.readouterr()
    seen: list[int] = []
    log.replay_headers(2, lambda header: seen.append(header[0]))
    assert seen == [2, 3, 5, 6, 7, 8]
    told = capfd.readouterr().err
    assert f"topic1/0] corrupt: {SEGMENT}.log: the batch at byte {4 * len(written[0])}, offset 4, does not" in told
    assert shard.stats.counter("storage_faults", kind="corruption").value == 1
    log.replay_headers(5, seen.append)  # type: ignore[arg-type]
    assert shard.stats.counter("storage_faults", kind="corruption").value == 1, "what lies before is not asked for"


@pytest.mark.parametrize("size", [0, 30, 1000], ids=["empty", "within a header", "within a batch"])
def test_a_segment_that_is_cut_short_is_not_gone_through_as_if_it_were_whole(size: int) -> None:
    """After an orderly stop only the length of the last segment is looked at."""
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000)
    fill(shard, log, 9, 900)
    shard.stop()
    disk = shard.disk
    disk.open(SEGMENT + ".log").truncate(size)
    _, log = reopened(disk, recover_locally(disk), segment_bytes=3000)
    with pytest.raises(Corruption, match=SEGMENT):
        log.replay_headers(0, lambda header: None)
