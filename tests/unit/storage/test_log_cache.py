"""The log cache: small for quiet logs, evicted oldest first once written, whole while sent, spared by cold reads."""

import random

import pytest
from storage_support import append, fill, new_shard, read_everything, settle

from millstream.iobuf import BLOCK_BYTES, ArenaFull, Fragment, MemoryClass
from millstream.storage.log.cache import CacheMemory
from millstream.storage.log.write_behind import WRITE_BYTES_MAX, WRITE_BYTES_MIN
from millstream.storage.messages.commands import SEGMENTS_LANE, Write
from sim.engine.local_storage import MIB

ROOMY = {"wal_bytes": 64 * MIB, "wal_file_bytes": 4 * MIB, "checkpoint_bytes": 1 << 40}


def test_ten_thousand_quiet_logs_cost_a_few_kib_each() -> None:
    shard = new_shard(memory_bytes=256 * MIB, settings=ROOMY)
    logs = [shard.open(n) for n in range(1, 10_001)]
    for n, log in enumerate(logs):
        append(log, 1, 1000)
        if n % 1000 == 999:
            settle(shard)
    settle(shard)
    assert all(log.durable_offset == 1 for log in logs)
    assert shard.arena.reserved_bytes(MemoryClass.CACHE) <= 10_000 * 2592


def test_ranges_grow_with_traffic_and_start_small_again_after_silence() -> None:
    shard = new_shard(memory_bytes=8 * MIB, settings=ROOMY)
    quiet, busy = shard.open(1), shard.open(2)
    fill(shard, busy, 400, 1000)
    sizes = [one.fragment.capacity for one in busy.cache.live()]
    assert sizes[:4] == [2592, 8748, 29525, 131072]
    append(quiet, 1, 1000)
    settle(shard)
    fill(shard, busy, 6000, 1000)
    assert not quiet.cache.live()
    append(quiet, 1, 1000)
    assert [one.fragment.capacity for one in quiet.cache.live()] == [2592]


def capacities(log) -> list[int]:
    return [one.fragment.capacity for one in log.cache.live()]


def test_a_log_with_much_in_the_cache_has_ranges_of_a_mib_while_there_are_any() -> None:
    """7 MiB of cache in an arena of 20: 4 MiB of the log are there before the first block, and never more than fit."""
    shard = new_shard(memory_bytes=20 * MIB, settings=ROOMY)
    log = shard.open(1)
    written = fill(shard, log, 100, 60_000)
    sizes = capacities(log)
    begun = sizes.index(BLOCK_BYTES)
    assert set(sizes[4:begun]) == {131072}
    assert 4 * MIB <= sum(sizes[:begun]) < 4 * MIB + 2 * 131072
    assert set(sizes[begun:]) == {BLOCK_BYTES}
    written += fill(shard, log, 300, 60_000)
    assert set(capacities(log)) == {BLOCK_BYTES}
    assert shard.arena.reserved_bytes(MemoryClass.CACHE) <= shard.arena.limit_bytes(MemoryClass.CACHE)
    assert log.read(0, log.next_offset, 100, True) is None
    assert read_everything(shard, log) == b"".join(written)
    held = []
    while (block := shard.arena.allocate_block()) is not None:
        held.append(block)
    shard.arena.on_pressure = None
    log.cache.close_open()
    held += [one.fragment.share() for one in log.cache.live()[:3]]  # as a slow consumer does
    written += fill(shard, log, 60, 60_000)
    assert {131072, BLOCK_BYTES} == set(capacities(log)), "it goes on with what there is"
    assert read_everything(shard, log) == b"".join(written)
    for fragment in held:
        fragment.release()


def test_the_longer_a_log_s_stream_in_the_cache_the_more_of_it_is_written_at_once() -> None:
    shard = new_shard(memory_bytes=96 * MIB, settings=ROOMY)
    shard.storage.write_bytes_min = WRITE_BYTES_MIN
    written: list[int] = []
    send = shard.storage.worker.send

    def note(command) -> None:
        if isinstance(command, Write):
            written.append(sum(command.spans[1::2]) - sum(command.spans[::2]))
        send(command)

    log = shard.open(1)
    shard.storage.worker.send = note
    for _ in range(900):
        append(log, 1, 60_000)
        settle(shard)
    assert written[1:4] == [WRITE_BYTES_MIN] * 3
    assert written[-3:] == [WRITE_BYTES_MAX] * 3


def test_the_oldest_written_ranges_go_first_and_everything_stays_readable() -> None:
    shard = new_shard(memory_bytes=4 * MIB, settings=ROOMY)
    log = shard.open(1)
    written = fill(shard, log, 4000, 1000)
    assert log.read(0, log.next_offset, 100, True) is None
    assert bytes(log.read(3999, 4000, 100, True)) == written[-1]
    assert shard.arena.reserved_bytes(MemoryClass.CACHE) <= shard.arena.limit_bytes(MemoryClass.CACHE)
    assert read_everything(shard, log) == b"".join(written)


def test_a_send_keeps_its_bytes_while_the_cache_moves_on() -> None:
    shard = new_shard(memory_bytes=4 * MIB, settings=ROOMY)
    log = shard.open(1)
    written = fill(shard, log, 100, 1000)
    held = log.read(0, 100, 50_000, True)
    expected = b"".join(written)[: len(held)]
    fill(shard, log, 4000, 1000)
    assert log.read(0, 100, 50_000, True) is None
    assert bytes(held) == expected
    held.release()


@pytest.mark.parametrize("verb", ["cut", "delete"])
def test_a_write_to_a_segment_keeps_its_memory_though_the_log_is_cut_or_deleted(verb: str) -> None:
    shard = new_shard()
    log, other = shard.open(1), shard.open(2)
    fill(shard, log, 1)
    in_use = shard.arena.in_use_bytes
    shard.processes.hang(SEGMENTS_LANE, 1_000_000)
    log.write_out()
    assert log.behind.under_way
    if verb == "cut":
        shard.call(log.truncate_suffix, 0)
    else:
        shard.storage.delete_log(log, lambda: None)
        settle(shard)
    written = fill(shard, other, 20)
    shard.run(lambda: shard.arena.in_use_bytes <= in_use)  # the processes compare what is written with what was sent
    assert read_everything(shard, other) == b"".join(written)
    if verb == "cut":
        written = fill(shard, log, 2)
        shard.call(shard.storage.checkpoint)
        assert read_everything(shard, log) == b"".join(written)


def test_cold_reads_leave_the_tail_in_the_cache() -> None:
    shard = new_shard(memory_bytes=4 * MIB, settings=ROOMY)
    log, other = shard.open(1), shard.open(2)
    fill(shard, log, 3000, 1000)
    fill(shard, other, 50, 1000)
    before = list(log.cache.live() + other.cache.live())
    for offset in range(0, 1000, 50):
        found = shard.call(log.read_cold, offset, 3000, 100_000, True)
        assert len(found) > 90_000
        found.release()
    assert list(log.cache.live() + other.cache.live()) == before
    assert other.read(0, 50, 1000, True) is not None


def test_nothing_is_evicted_that_is_only_in_the_wal_and_the_append_is_refused_instead() -> None:
    shard = new_shard(memory_bytes=2 * MIB, settings=ROOMY)
    log = shard.open(1)
    shard.processes._lanes[0] = _Stuck()
    with pytest.raises(ArenaFull, match="not on disk yet"):
        for _ in range(2000):
            append(log, 1, 1000)
            settle(shard)
    reached = log.next_offset
    assert log.durable_offset == reached
    assert len(bytes(log.read(0, reached, 1 << 30, True))) == reached * 1061
    stuck = shard.processes._lanes[0]
    shard.processes._lanes[0] = stuck.release()
    settle(shard)
    shard.run(lambda: log.ends.written_position >= log.ends.durable_position - 131072)
    append(log, 1, 1000)


class _Stuck(list):
    """A queue that says it is empty: the worker does not get to it."""

    def __bool__(self) -> bool:
        return False

    def release(self):
        from collections import deque

        return deque(self)


def test_quiet_logs_do_not_fill_the_cache_with_bytes_that_nobody_writes() -> None:
    """Far more logs than the cache has room for, each with a little: the oldest are written and leave."""
    shard = new_shard(memory_bytes=4 * MIB, settings=ROOMY)
    rng = random.Random(3)
    logs = [shard.open(n) for n in range(1, 1200)]
    refused = 0
    for _ in range(6000):
        try:
            append(rng.choice(logs), 1, 700)
        except ArenaFull:
            refused += 1
            shard.run(lambda: not shard.processes.steps() and not shard.reactor.ready)
        for _ in range(2):
            shard.step()
    settle(shard)
    assert refused < 60
    for log in rng.sample(logs, 40):
        assert len(read_everything(shard, log)) == log.next_offset * 761


def test_a_batch_that_goes_on_in_a_new_range_keeps_the_one_it_began_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The open range is in the segment, and so may go, when the cache is full at the moment of the append."""
    shard = new_shard()
    log = shard.open(1)
    written = append(log, 1, 1000)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    take = CacheMemory.take

    def of_a_full_cache(memory: CacheMemory, size: int) -> Fragment:
        memory._evict(size)
        return take(memory, size)

    monkeypatch.setattr(CacheMemory, "take", of_a_full_cache)
    written += append(log, 1, 5000)
    settle(shard)
    assert read_everything(shard, log) == written
    assert [one.base_offset for one in log.cache.live()] == [0, 2], "both ranges are there"


def test_a_log_cut_inside_a_range_that_left_the_cache_has_what_is_appended_next_in_its_segment() -> None:
    """The segment is written from the new range, not from memory that the log has given back."""
    shard = new_shard()
    log = shard.open(1)
    kept = append(log, 1, 200)
    append(log, 1, 160)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    assert log.ends.written_position == log.next_position
    assert log.cache.open is log.cache.live()[0], "it takes the next batch"
    shard.storage.memory._evict(1)
    assert not log.cache.live()
    shard.call(log.truncate_suffix, 1)
    written = kept + append(log, 1, 340, epoch=1)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    shard.storage.memory._evict(1)
    assert log.read(0, 2, 1000, True) is None, "what follows is from the segment"
    assert read_everything(shard, log) == written


def expected(batches: list[tuple[int, int, bytes]], offset: int, end: int, room: int) -> bytes:
    """What a read from ``offset`` on finds in these batches, which are (first offset, last offset, bytes)."""
    data = b""
    for base, last, batch in batches:
        if last >= offset and base < end:
            if data and len(data) + len(batch) > room:
                break
            data += batch
    return data


@pytest.mark.parametrize("seed", range(5))
def test_a_read_that_is_repeated_finds_what_is_there_now(seed: int) -> None:
    """As several groups at the tail do, while the log grows, loses its end, and is evicted."""
    rng = random.Random(seed)
    shard = new_shard(memory_bytes=4 * MIB, settings=ROOMY)
    log, other = shard.open(1), shard.open(2)
    batches: list[tuple[int, int, bytes]] = []
    hits = offset = 0

    def grow() -> None:
        base, count = log.next_offset, rng.choice([1, 1, 1, 3])
        batch = append(log, count, rng.choice([900, 900, 900, 200_000]), rng.randint(1, 1 << 40))
        batches.append((base, base + count - 1, batch))
        settle(shard)

    grow()
    for _ in range(150):
        what = rng.random()
        if what < 0.4:
            grow()
        elif what < 0.6:  # lose the end, and mostly write as much again
            cut = rng.choice(batches[-3:])[0]
            shard.call(log.truncate_suffix, cut)
            lost = [one for one in batches if one[0] >= cut]
            del batches[len(batches) - len(lost) :]
            for _ in lost or [0]:
                grow()
        elif what < 0.65:
            for _ in range(rng.randint(40, 80)):
                fill(shard, other, 1, 50_000)
        if rng.random() < 0.5 or offset >= log.next_offset:
            offset = rng.randint(max(0, log.next_offset - 6), log.next_offset - 1)
        room = rng.choice([1500, 1 << 20, 1 << 20])
        for _ in range(rng.randint(1, 3)):
            found = log.read(offset, log.durable_offset, room, True)
            if found is not None:
                hits += 1
                assert bytes(found) == expected(batches, offset, log.durable_offset, room)
                found.trim_front(rng.randint(0, len(found)))
                found.release()
    assert hits > 50
    for one in (log, other):
        for left in one.cache.clear():
            left.log.host.memory.give_back(left)
    assert shard.arena.reserved_bytes(MemoryClass.CACHE) == 0
