"""One log on its home shard: appending, reading from the cache, leader epochs, segments; in one process, by hand."""

import random
from typing import Any

import pytest
from storage_support import append, fill, new_shard, read_everything, settle

from millstream.errors import Rejected
from millstream.format.epochs import StoredVote
from millstream.iobuf import ArenaFull
from millstream.storage.messages.commands import SEGMENTS_LANE
from sim.engine.disk import SimDisk
from sim.engine.local_storage import MIB, LocalShard, plain_batch, recover_locally


@pytest.fixture
def shard() -> LocalShard:
    return new_shard()


def read(
    log: Any, offset: int, end: int | None = None, max_bytes: int = 1 << 20, minimum_one: bool = True
) -> bytes | None:
    found = log.read(offset, log.next_offset if end is None else end, max_bytes, minimum_one)
    if found is None:
        return None
    data = bytes(found)
    found.release()
    return data


def test_a_batch_is_kept_verbatim_but_for_offset_and_epoch(shard: LocalShard) -> None:
    log = shard.open(1)
    batches = [append(log, 3, 100, epoch=5), append(log, 1, 2000, epoch=5, pieces=3), append(log, 2, 0, epoch=6)]
    assert read(log, 0) == b"".join(batches)
    assert (log.next_offset, log.durable_offset) == (6, 0)
    settle(shard)
    assert log.durable_offset == 6
    assert read(log, 0) == b"".join(batches)


def test_durability_is_told_once_per_tick_with_the_exclusive_end(shard: LocalShard) -> None:
    log, other = shard.open(1), shard.open(2)
    told: list[tuple[str, int]] = []
    log.owner.on_durable = lambda end: told.append(("log", end))
    other.owner.on_durable = lambda end: told.append(("other", end))
    append(log, 3)
    append(log, 2)
    append(other)
    settle(shard)
    append(log)
    settle(shard)
    assert told == [("log", 5), ("other", 1), ("log", 6)]
    assert shard.stats.counter("wal_ticks").value == 2


def test_a_gap_in_offsets_is_a_broken_invariant(shard: LocalShard) -> None:
    log = shard.open(1)
    data = plain_batch(0, 1)
    with pytest.raises(AssertionError, match="the log's end is 0"):
        log.append((memoryview(data),), len(data), 1, 1, 0, 0)


@pytest.mark.parametrize("size", [0, 900, 5000, 140_000, 300_000])
def test_reads_return_whole_batches_within_the_limit(size: int) -> None:
    """Every offset, every limit: the batch that holds the offset first, as many as fit, one in any case."""
    rng = random.Random(size)
    disk = SimDisk(rng)
    recover_locally(disk)
    shard = LocalShard(disk, rng, memory_bytes=32 << 20, settings={"wal_file_bytes": 1 << 20, "wal_bytes": 4 << 20})
    log = shard.open(1)
    batches: list[tuple[int, int, bytes]] = []
    for _ in range(12):
        count = rng.randint(1, 4)
        base = log.next_offset
        batches.append((base, base + count, append(log, count, rng.choice([size, size // 2, 10]))))
        settle(shard)
    for _ in range(300):
        offset = rng.randrange(log.next_offset)
        end = rng.choice([log.next_offset, rng.choice(batches)[1]])
        limit = rng.choice([0, 60, 400, 5000, 200_000, 1 << 22])
        minimum = rng.random() < 0.5
        expected = b""
        for base, following, data in batches:
            if following <= offset or base >= end or offset >= end:
                continue
            if len(expected) + len(data) > limit and (expected or not minimum):
                break
            expected += data
        assert read(log, offset, end, limit, minimum) == expected, (offset, end, limit, minimum)


def test_an_end_inside_a_batch_leaves_that_batch_out(shard: LocalShard) -> None:
    log = shard.open(1)
    first = append(log, 4)
    append(log, 4)
    assert read(log, 0, 6) == first
    assert read(log, 5, 6) == b""
    assert read(log, 8) == b""


def test_epochs_say_where_each_began(shard: LocalShard) -> None:
    log = shard.open(1)
    for epoch, count in ((0, 3), (0, 2), (2, 4), (5, 1)):
        append(log, count, epoch=epoch)
    assert log.leader_epochs == [(0, 0), (2, 5), (5, 9)]
    with pytest.raises(AssertionError, match="epoch 4 after 5"):
        append(log, epoch=4)


def test_segments_roll_by_size_and_are_listed_with_what_is_in_them(shard: LocalShard) -> None:
    log = shard.open(1, segment_bytes=3000)
    for n in range(7):
        append(log, 1, 1000, timestamp=5000 - n)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    found = log.segments()
    assert [(one.base_offset, one.end_offset, one.sealed) for one in found] == [
        (0, 2, True),
        (2, 4, True),
        (4, 6, True),
        (6, 7, False),
    ]
    assert all(one.flushed_bytes == one.bytes for one in found)
    assert (found[0].min_timestamp, found[0].max_timestamp) == (4999, 5000)
    assert found[1].path.endswith("/00000000000000000002.log")
    assert log.size_bytes == sum(one.bytes for one in found) == 7 * 1061


def test_a_batch_larger_than_a_wal_file_is_rejected_and_leaves_no_trace(shard: LocalShard) -> None:
    log = shard.open(1)
    with pytest.raises(Rejected, match="takes"):
        append(log, 1, 70_000)
    assert (log.next_offset, log.leader_epochs, shard.arena.live_fragments) == (0, [], 0)


def test_a_full_wal_refuses_and_takes_again_when_ticks_have_landed(shard: LocalShard) -> None:
    log = shard.open(1)
    with pytest.raises(ArenaFull, match="write-ahead log"):
        for _ in range(2000):
            append(log, 1, 300)
    reached = log.next_offset
    settle(shard)
    assert log.durable_offset == reached
    append(log)


def test_deleting_a_log_gives_its_memory_back_and_removes_its_files(shard: LocalShard) -> None:
    log, other = shard.open(1), shard.open(2)
    for _ in range(50):
        append(log, 1, 300)
        append(other, 1, 300)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    append(log, 1, 300)
    shard.call(shard.storage.delete_log, log)
    settle(shard)
    assert sorted(shard.disk.list("/data/topics")) == [f"{2:032x}"]
    assert all(one.log is other for one in shard.storage.memory._order if one.fragment is not None)
    with pytest.raises(Exception, match="closed"):
        append(log)


def test_every_fragment_comes_home_when_logs_are_deleted(shard: LocalShard) -> None:
    logs = [shard.open(n) for n in range(1, 9)]
    for log in logs:
        for _ in range(20):
            append(log, 1, 500)
        settle(shard)
    for log in logs:
        shard.call(shard.storage.delete_log, log)
    settle(shard)
    assert shard.arena.live_fragments == 0


def test_truncation_is_durable_before_it_is_done_and_the_log_goes_on_from_there(shard: LocalShard) -> None:
    log = shard.open(1, segment_bytes=2500)
    kept = [append(log, 1, 700, epoch=1) for _ in range(5)]
    for _ in range(4):
        append(log, 1, 700, epoch=2)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    shard.call(log.truncate_suffix, 5)
    assert (log.next_offset, log.durable_offset, log.leader_epochs) == (5, 5, [(1, 0)])
    kept.append(append(log, 2, 100, epoch=3))
    settle(shard)
    assert read(log, 0) == b"".join(kept)
    shard.disk.crash(torn=True)
    report = recover_locally(shard.disk)
    again = LocalShard(shard.disk, shard.rng, clean=report.clean).open(1, segment_bytes=2500)
    assert (again.next_offset, again.leader_epochs) == (7, [(1, 0), (3, 5)])


def test_a_vote_is_there_after_a_crash(shard: LocalShard) -> None:
    log = shard.open(1)
    shard.call(log.save_vote, StoredVote(7, 3))
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    assert LocalShard(shard.disk, shard.rng, clean=report.clean).open(1).raft.vote == StoredVote(7, 3)


def test_a_closed_log_is_in_its_segments_and_can_be_opened_again(shard: LocalShard) -> None:
    log = shard.open(1)
    written = [append(log, 2, 300) for _ in range(20)]
    shard.call(shard.storage.close_log, log)
    assert shard.arena.live_fragments == 0
    with pytest.raises(Exception, match="closed"):
        append(log)
    again = shard.open(1)
    assert again.next_offset == 40
    assert read_everything(shard, again) == b"".join(written)


def test_the_controllers_log_has_a_place_of_its_own(shard: LocalShard) -> None:
    log = shard.storage.registry.open_controller_log(shard.config(), clean=True)
    append(log, 1, 300)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    assert "00000000000000000000.log" in shard.disk.list("/data/controller/log")
    assert (log.group, log.name) == (0, "controller")


def test_a_group_is_opened_once(shard: LocalShard) -> None:
    shard.open(1)
    with pytest.raises(AssertionError, match="twice"):
        shard.open(1)


def test_a_start_is_seen_when_it_is_durable_and_not_before() -> None:
    """Who was told of it must not be told less after a crash."""
    shard = new_shard()
    log = shard.open(1)
    for _ in range(10):
        append(log)
    settle(shard)
    told: list[int] = []
    log.trim_prefix(5, lambda: told.append(log.start_offset))
    assert log.start_offset == 0
    settle(shard)
    assert (told, log.start_offset) == ([5], 5)


def test_many_segments_that_are_deleted_before_they_were_written_are_passed_over_at_once() -> None:
    settings = {"wal_bytes": 4 * MIB, "wal_file_bytes": MIB, "checkpoint_bytes": 1 << 40}
    shard = new_shard(settings=settings, memory_bytes=32 * MIB)
    log = shard.open(1, segment_bytes=200)
    shard.processes.hang(SEGMENTS_LANE, 60_000_000)
    fill(shard, log, 700, 100)
    log.trim_prefix(log.next_offset)
    settle(shard)
    shard.run(lambda: log.ends.written_position == log.ends.durable_position, 120_000_000)
    written = append(log)
    settle(shard)
    assert read_everything(shard, log) == written
