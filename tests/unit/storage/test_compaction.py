"""Compaction of a log, with the production code stepped by hand: what survives, what readers see, what goes wrong."""

import errno
from typing import Any

import pytest
from compaction_support import (
    COMPACTED,
    NOW_MS,
    compact,
    compacted_shard,
    files_of,
    headers_of,
    last_values,
    overwrite,
    put,
    records_of,
)
from storage_support import new_shard, settle

from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.partition.lifecycle import replay_producers
from millstream.storage.messages.commands import CLEANER_LANE, READS_LANE, SEGMENTS_LANE, SYNCS_LANE
from millstream.wire.records import parse_header
from sim.engine.local_storage import WRITER_LANE, LocalShard, recover_locally


def whole(shard: LocalShard, log: Any) -> list[Any]:
    return records_of(shard, log)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_the_last_value_of_each_key_stays_at_its_offset(codec: int) -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    wanted = overwrite(shard, log, 20, compression=codec)
    before = whole(shard, log)
    log.roll()
    end = log.next_offset
    compact(shard, log)
    after = whole(shard, log)
    assert len(before) == 200
    assert last_values(after) == wanted
    assert len(after) == len(wanted)
    assert all(record in before for record in after)
    assert (log.next_offset, log.durable_offset, log.start_offset, log.files.clean_offset) == (end, end, 0, end)


def test_a_read_at_any_offset_gives_the_next_batch_that_is_left() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 15)
    log.roll()
    compact(shard, log)
    kept = headers_of(shard, log)
    for offset in range(log.next_offset):
        found = shard.call(log.read_cold, offset, log.next_offset, 1, True)
        data = bytes(found)
        found.release()
        first = next(header for header in kept if header.last_offset >= offset)
        assert int.from_bytes(data[:8], "big") == first.base_offset
        assert len(data) == first.size


def test_the_active_segment_and_young_segments_are_left_alone() -> None:
    shard = compacted_shard()
    log = shard.open(1, **{**COMPACTED, "min_compaction_lag_ms": 60})
    for n in range(60):
        put(shard, log, (b"k", b"%d" % n + bytes(100)))
    shard.reactor.advance(100_000)  # the first forty records are older than 60 ms now
    compact(shard, log)
    offsets = [record.offset for record in whole(shard, log)]
    young = next(one.base_offset for one in log.segments() if one.max_timestamp > NOW_MS + 40)
    assert offsets[-(60 - young) :] == list(range(young, 60))
    assert len(offsets) < 60


def test_small_segments_become_one_until_it_is_full() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 40)
    assert len(log.segments()) > 10
    log.roll()
    compact(shard, log)
    for _ in range(3):
        overwrite(shard, log, 1)
        log.roll()
        compact(shard, log)
    segments = log.segments()
    assert len(segments) <= 4
    assert all(one.bytes <= 2000 for one in segments)
    assert [one.end_offset for one in segments[:-1]] == [one.base_offset for one in segments[1:]]
    assert log.size_bytes == sum(one.bytes for one in segments)


def test_old_files_stay_for_readers_until_the_delay_is_over() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 10)
    log.roll()
    settle(shard)
    old = [one.path for one in log.segments() if one.sealed]
    compact(shard, log)
    assert set(old) <= {f"{log.directory}/{name}" for name in files_of(shard, log)}
    shard.run(lambda: not set(old) & {f"{log.directory}/{name}" for name in files_of(shard, log)})
    assert {one.path for one in log.segments() if one.sealed} == {
        f"{log.directory}/{name}" for name in files_of(shard, log)
    }


def test_tombstones_stay_for_their_time_and_then_go() -> None:
    shard = compacted_shard()
    log = shard.open(1, **{**COMPACTED, "delete_retention_ms": 5000})
    put(shard, log, (b"a", b"1"), (b"b", b"1"))
    put(shard, log, (b"a", None), (b"c", b"1"))
    log.roll()
    compact(shard, log)
    assert last_values(whole(shard, log)) == {b"a": None, b"b": b"1", b"c": b"1"}
    noted = next(header for header in headers_of(shard, log) if header.attributes & 0x40)
    assert noted.base_timestamp - shard.reactor.wall_ms() <= 5000
    times = {record.key: record.timestamp for record in whole(shard, log)}
    assert times == {b"a": NOW_MS + 2, b"b": NOW_MS + 1, b"c": NOW_MS + 3}

    put(shard, log, (b"d", b"1"))
    log.roll()
    compact(shard, log)
    assert last_values(whole(shard, log))[b"a"] is None

    shard.reactor.advance(5_000_000)
    put(shard, log, (b"e", b"1"))
    log.roll()
    compact(shard, log)
    assert last_values(whole(shard, log)) == {b"b": b"1", b"c": b"1", b"d": b"1", b"e": b"1"}


def test_a_known_producer_keeps_the_header_of_its_last_batch() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    put(shard, log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    put(shard, log, (b"a", b"2"), producer_id=7, producer_epoch=0, base_sequence=1)
    put(shard, log, (b"a", b"3"), producer_id=8, producer_epoch=0, base_sequence=0)
    put(shard, log, (b"a", b"4"))
    log.owner.active_producers = lambda: {7: 1}
    log.roll()
    compact(shard, log)
    assert [
        (one.producer_id, one.base_sequence, one.base_offset, one.record_count) for one in headers_of(shard, log)
    ] == [
        (7, 1, 1, 0),
        (-1, -1, 3, 1),
    ]
    assert last_values(whole(shard, log)) == {b"a": b"4"}


def test_more_keys_than_memory_take_several_passes() -> None:
    shard = compacted_shard(log_cleaner_dedupe_buffer_size=24 * 14)
    log = shard.open(1, **COMPACTED)
    wanted = overwrite(shard, log, 6, keys=40)
    log.roll()
    compact(shard, log)
    assert shard.stats.counter("log_cleaner_runs").value > 5
    found = whole(shard, log)
    assert last_values(found) == wanted
    assert len(found) == len(wanted)


def test_a_damaged_batch_makes_the_partition_uncleanable_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 10)
    log.roll()
    shard.call(shard.storage.checkpoint)
    victim = log.segments()[1]
    before = files_of(shard, log)
    shard.disk.flip(victim.path, victim.bytes - 1)
    shard.run(lambda: shard.storage.stats.gauge("log_cleaner_uncleanable_partitions").value == 1)
    shard.run(lambda: False, limit_us=1_000_000)
    assert files_of(shard, log) == before
    assert log.files.clean_offset == 0


def test_a_segment_that_lost_its_end_does_not_hold_up_the_cleaner(capfd: pytest.CaptureFixture[str]) -> None:
    shard = compacted_shard()
    log, other = shard.open(1, **COMPACTED), shard.open(2, **COMPACTED)
    for one in (log, other):
        overwrite(shard, one, 6)
        one.roll()
    shard.call(shard.storage.checkpoint)
    victim = log.segments()[1]
    shard.disk.open(victim.path).truncate(victim.bytes - 100)
    shard.run(lambda: other.files.clean_offset > 0 and shard.storage.compaction._uncleanable == {1}, 60_000_000)
    assert f"{victim.path}: the file ends at byte {victim.bytes - 100}" in capfd.readouterr().err
    assert not log.files.clean_offset


def test_what_is_compacted_survives_stops_and_crashes() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    wanted = overwrite(shard, log, 12)
    log.roll()
    compact(shard, log)
    end, clean = log.next_offset, log.files.clean_offset
    shard.stop()
    again = compacted_shard(disk=shard.disk)
    log = again.open(1, **COMPACTED)
    assert (log.next_offset, log.files.clean_offset) == (end, clean)
    assert last_values(whole(again, log)) == wanted
    put(again, log, (b"key1", b"new"))
    again.disk.crash(torn=False)
    last = compacted_shard(disk=again.disk)
    log = last.open(1, **COMPACTED)
    assert (log.next_offset, log.files.clean_offset) == (end + 1, clean)
    assert last_values(whole(last, log)) == {**wanted, b"key1": b"new"}


def test_what_producers_may_ask_again_is_known_after_a_crash_though_its_records_are_gone() -> None:
    """Of his five batches the last keeps its header; the others are remembered by the snapshot that came first."""
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    producers = ProducerState(3_600_000, ProducerBudget(100))
    replay_producers(log, producers, NOW_MS)
    log.owner.producer_snapshot = producers.snapshot
    log.owner.active_producers = producers.last_offsets
    for sequence in range(5):
        offset = put(shard, log, (b"a", b"%d" % sequence), producer_id=7, producer_epoch=0, base_sequence=sequence)
        producers.record(7, 0, sequence, 1, offset, NOW_MS, NOW_MS)
    log.roll()
    compact(shard, log)
    assert [one.base_sequence for one in headers_of(shard, log)] == [4]
    shard.disk.crash(torn=False)
    again = compacted_shard(disk=shard.disk)
    log = again.open(1, **COMPACTED)
    found = ProducerState(3_600_000, ProducerBudget(100))
    replay_producers(log, found, NOW_MS)
    assert found.snapshot() == producers.snapshot()


def test_the_end_is_known_without_any_index() -> None:
    """Recovery after indexes were lost: a compacted segment says itself where it ends."""
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    wanted = overwrite(shard, log, 12)
    log.roll()
    compact(shard, log)
    end = log.next_offset
    shard.run(lambda: len(files_of(shard, log)) < 5)
    shard.call(shard.storage.checkpoint)
    for name in shard.disk.list(log.directory):
        if name.endswith(".index"):
            shard.disk.unlink(f"{log.directory}/{name}")
    shard.disk.crash(torn=False)
    again = new_shard(disk=shard.disk)
    log = again.open(1, **COMPACTED)
    assert log.next_offset == end
    assert last_values(whole(again, log)) == wanted


@pytest.mark.parametrize("first", ["trim", "name"])
def test_a_trim_during_compaction_is_honoured(first: str) -> None:
    """Whichever comes first: the note of the trim on the disk, or the new segment's name."""
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    wanted = overwrite(shard, log, 12)
    log.roll()
    settle(shard)
    target = log.next_offset - 10
    while not log.files.replacing:
        if not shard.step():
            shard.reactor.sleep(shard.reactor.now_us() + 10**9)
    lane = shard.processes._lanes[-1]
    held = [lane.popleft() for _ in range(len(lane))] if first == "trim" else []
    shard.call(log.trim_prefix, target)
    lane.extend(held)
    compact(shard, log)
    assert log.start_offset == target
    assert log.segments()[0].end_offset > target
    assert last_values(whole(shard, log)) == wanted
    shard.disk.crash(torn=False)
    assert not recover_locally(shard.disk).faults


def test_a_log_is_deleted_though_compaction_waits_for_a_checkpoint_that_does_not_end() -> None:
    """As on a full disk, where the deletion is what makes room."""
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 6)
    log.roll()
    syncs = shard.processes._lanes[SYNCS_LANE]
    while not (shard.storage.compaction.is_busy and syncs):
        if not shard.step():
            shard.reactor.sleep(shard.reactor.now_us() + 10**9)
    held = [syncs.popleft() for _ in range(len(syncs))]
    shard.call(shard.storage.delete_log, log)
    with pytest.raises(FileNotFoundError):
        shard.disk.list(log.directory)
    syncs.extend(held)
    shard.run(lambda: False, limit_us=1_000_000)
    assert not shard.storage.compaction.is_busy


@pytest.mark.parametrize("what", ["unreadable", "missing"])
def test_a_log_of_which_a_file_cannot_be_read_does_not_keep_others_from_being_compacted(
    what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shard = compacted_shard()
    log, other = shard.open(1, **COMPACTED), shard.open(2, **COMPACTED)
    overwrite(shard, other, 6)
    other.roll()
    compact(shard, other)
    overwrite(shard, log, 12)
    overwrite(shard, other, 1)
    for one in (log, other):
        one.roll()
    shard.call(shard.storage.checkpoint)
    victim = log.segments()[1].path
    if what == "missing":
        shard.disk.unlink(victim)
    else:
        shard.disk.fail = lambda kind, path: errno.EIO if (kind, path) == ("read", victim) else 0
    shard.run(lambda: not shard.storage.compaction.stretch(other).dirty_bytes, 10_000_000)
    assert not shard.storage.compaction.stretch(other).dirty_bytes
    shard.run(lambda: False, 10_000_000)
    said = [line for line in capfd.readouterr().err.splitlines() if "not compacted" in line]
    assert len(said) == 1
    assert "topic1/0] not compacted until the next start: " in said[0]


def test_a_damaged_log_that_is_deleted_while_it_is_compacted_is_not_counted() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 6)
    log.roll()
    shard.call(shard.storage.checkpoint)
    shard.disk.flip(log.segments()[1].path, 100)
    while not shard.processes._lanes[CLEANER_LANE]:
        shard.step() or shard.reactor.sleep(shard.reactor.now_us() + 10**9)
    shard.call(shard.storage.delete_log, log)
    assert shard.storage.stats.gauge("log_cleaner_uncleanable_partitions").value == 0


@pytest.mark.parametrize("end", ["deleted", "stopped"])
def test_a_log_is_deleted_and_a_shard_stops_though_compaction_waits_for_a_sync(end: str) -> None:
    shard = compacted_shard()
    log, other = shard.open(1, **COMPACTED), shard.open(2)
    overwrite(shard, log, 6)
    log.roll()
    settle(shard)
    asked: list[int] = []

    def active() -> dict[int, int]:
        asked.append(put(shard, other, (b"key", b"value"), durable=False))
        shard.processes.hang(WRITER_LANE, 2_000_000)
        return {}

    log.owner.active_producers = active
    shard.run(lambda: bool(asked))
    assert shard.storage.compaction.is_busy
    if end == "stopped":
        shard.stop()
        return
    shard.call(shard.storage.delete_log, log)
    shard.run(lambda: False, limit_us=3_000_000)
    assert not shard.storage.compaction.is_busy


@pytest.mark.parametrize("delay_ms", [0, 10**9])
def test_reads_that_were_asked_before_a_file_was_replaced_are_answered(delay_ms: int) -> None:
    """From the old file while it is there, from the new one when it is not: nobody is told that offsets are gone."""
    shard = compacted_shard()
    log = shard.open(1, **{**COMPACTED, "file_delete_delay_ms": delay_ms})
    wanted = overwrite(shard, log, 3)
    log.roll()
    shard.call(shard.storage.checkpoint)
    for segment in log.files.segments.all()[:-1]:
        assert log.cache.oldest is not None
        while (oldest := log.cache.oldest) is not None and oldest.segment is segment:
            log.cache.drop_oldest()
            shard.storage.memory.give_back(oldest)
    answers: list[Any] = []
    log.read_cold(3, log.next_offset, 1, True, answers.append)
    log.offset_for_timestamp(NOW_MS + 4, log.next_offset, answers.append)
    log.max_timestamp(log.next_offset, answers.append)
    reads = shard.processes._lanes[READS_LANE]
    held = [reads.popleft() for _ in range(len(reads))]
    assert len(held) == 3
    compact(shard, log)
    if not delay_ms:
        shard.run(lambda: len(files_of(shard, log)) == len(log.segments()) - 1)
    reads.extend(held)
    shard.run(lambda: len(answers) == 3)
    read = next(one for one in answers if not isinstance(one, tuple))
    assert not isinstance(read, Exception), read
    header = parse_header(bytes(read))
    read.release()
    assert header.last_offset >= 3
    found = sorted(one[0] for one in answers if isinstance(one, tuple))
    first = min(record.offset for record in whole(shard, log) if record.offset >= 4) if not delay_ms else 4
    assert found == [first, log.next_offset - 1]
    assert last_values(whole(shard, log)) == wanted


def test_what_was_trimmed_when_the_crash_came_is_not_compacted_but_removed() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    put(shard, log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    settle(shard)
    shard.call(shard.storage.checkpoint)
    segments = shard.processes._lanes[SEGMENTS_LANE]
    log.trim_prefix(2)
    while not segments:
        assert shard.step()
    segments.clear()  # the crash comes before the files are removed
    shard.disk.crash(torn=False)
    again = compacted_shard(disk=shard.disk)
    log = again.open(1, **COMPACTED)
    assert (log.start_offset, log.next_offset) == (2, 2)
    put(again, log, (b"c", b"1"))
    log.roll()
    compact(again, log)
    again.run(lambda: not any(name.startswith("00000000000000000000.") for name in files_of(again, log)))
    assert log.segments()[0].base_offset == 2
    assert last_values(whole(again, log)) == {b"c": b"1"}


def test_nothing_is_read_while_the_write_ahead_log_still_needs_it() -> None:
    """A change of files that is under way keeps older frames: recovery would replay them into what compaction made."""
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 4)
    log.roll()
    change = shard.storage.checkpointer.changes.wait()
    put(shard, log, (b"a", b"1"))
    log.roll()
    settle(shard)
    end, before = log.next_offset, log.files.clean_offset
    shard.run(lambda: False, limit_us=2_000_000)
    assert log.files.clean_offset == before
    shard.storage.checkpointer.changes.made(change)
    compact(shard, log)
    assert log.files.clean_offset == end


def test_nothing_is_served_from_memory_that_compaction_took_out_even_behind_a_trim() -> None:
    shard = compacted_shard()
    log = shard.open(1, **{**COMPACTED, "segment_bytes": 1 << 20})
    put(shard, log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    put(shard, log, (b"a", b"2"), (b"b", b"2"))
    put(shard, log, (b"a", b"3"))
    log.roll()
    shard.call(log.trim_prefix, 2)
    compact(shard, log)
    assert [(record.offset, record.value) for record in whole(shard, log)] == [(3, b"2"), (4, b"3")]


def test_a_log_that_is_deleted_during_compaction_leaves_nothing() -> None:
    for steps in range(5, 200, 7):
        shard = compacted_shard(steps)
        log = shard.open(1, **COMPACTED)
        overwrite(shard, log, 6)
        log.roll()
        settle(shard)
        for _ in range(steps):
            shard.step() or shard.reactor.sleep(shard.reactor.now_us() + 10**9)
        shard.call(shard.storage.delete_log, log)
        shard.run(lambda: False, limit_us=3_000_000)
        with pytest.raises(FileNotFoundError):
            shard.disk.list(log.directory)
        shard.stop()


def test_nothing_is_taken_out_for_a_producers_later_batch_before_that_is_durable() -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 12)
    log.roll()
    settle(shard)
    asked: list[int] = []

    def active() -> dict[int, int]:
        if not asked:
            asked.append(put(shard, log, (b"key", b"later"), durable=False))
            shard.processes.hang(WRITER_LANE, 20_000_000)
        return {}

    log.owner.active_producers = active
    shard.run(lambda: bool(asked))
    shard.run(lambda: False, 10_000_000)
    assert log.durable_offset == asked[0]
    assert not [name for name in shard.disk.list(log.directory) if ".1." in name or "cleaned" in name]
    shard.run(lambda: any(".1." in name for name in shard.disk.list(log.directory)))
    assert log.durable_offset > asked[0]
