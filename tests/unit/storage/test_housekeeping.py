"""Retention by age and size, sealing by age, and what both leave behind after a crash."""

import pytest
from storage_support import append, fill, new_shard, settle

from sim.engine.disk import PowerFailure
from sim.engine.local_storage import LocalShard, recover_locally

DAY_MS = 86_400_000


def look(shard: LocalShard) -> None:
    """One round over all logs."""
    for _ in shard.storage.housekeeping.look_at_all():
        pass
    settle(shard)
    shard.run(lambda: not shard.processes.steps() and not shard.reactor.ready)


def test_retention_by_size_keeps_at_least_what_is_asked() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000, retention_bytes=7000)
    fill(shard, log, 40, 900, timestamp=shard.reactor.wall_ms())
    look(shard)
    assert 7000 <= log.size_bytes < 7000 + 3000
    assert log.start_offset == log.segments()[0].base_offset == 30
    names = shard.disk.list(log.directory)
    assert min(name for name in names if name.endswith(".log")) == "00000000000000000030.log"
    assert shard.stats.counter("retention_deleted_bytes").value == 30 * 961


def test_retention_by_age_follows_the_largest_timestamp_and_takes_the_active_segment_too() -> None:
    shard = new_shard()
    now = shard.reactor.wall_ms()
    log = shard.open(1, segment_bytes=3000, retention_ms=DAY_MS)
    fill(shard, log, 10, 900, timestamp=now - 2 * DAY_MS)
    look(shard)
    assert (log.start_offset, log.next_offset, log.size_bytes) == (10, 10, 0)
    fill(shard, log, 4, 900, timestamp=now)
    look(shard)
    assert log.start_offset == 10


def test_records_without_timestamps_are_as_young_as_their_segments_last_batch() -> None:
    shard = new_shard()
    log = shard.open(1, retention_ms=60_000, segment_ms=100_000)
    append(log, 1, 10, timestamp=-1)
    settle(shard)
    shard.run(lambda: False, limit_us=80_000_000)
    append(log, 1, 10, timestamp=-1)
    settle(shard)
    look(shard)
    assert log.start_offset == 0
    shard.run(lambda: False, limit_us=70_000_000)  # sealed by age
    look(shard)
    assert log.start_offset == 0
    shard.run(lambda: False, limit_us=20_000_000)
    look(shard)
    assert log.start_offset == log.next_offset == 2


def test_whoever_reads_is_told_of_a_new_start_once_and_not_of_rounds_that_remove_nothing() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000, retention_bytes=7000)
    told = []
    log.owner.on_trimmed = lambda: told.append(log.start_offset)
    fill(shard, log, 40, 900, timestamp=shard.reactor.wall_ms())
    look(shard)
    look(shard)
    assert told == [30]


@pytest.mark.parametrize("config", [{"cleanup_policy": ("compact",)}, {"retention_ms": -1}])
def test_what_may_not_go_stays(config: dict) -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000, **{"retention_bytes": -1, "retention_ms": 1, **config})
    fill(shard, log, 10, 900, timestamp=1000)
    look(shard)
    assert log.start_offset == 0


def test_nothing_goes_that_is_not_durable() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=2000, retention_ms=1)
    for _ in range(10):
        append(log, 1, 900, timestamp=1000)
    for _ in shard.storage.housekeeping.look_at_all():
        pass
    assert log.start_offset == 0
    settle(shard)
    look(shard)
    assert log.start_offset == 10


def test_a_segment_is_sealed_when_it_is_old_and_not_before() -> None:
    shard = new_shard()
    log = shard.open(1, segment_ms=60_000)
    fill(shard, log, 3)
    begun = shard.reactor.wall_ms()
    shard.run(lambda: len(log.segments()) > 1, limit_us=3_600_000_000)
    assert 60_000 <= shard.reactor.wall_ms() - begun <= 61_000
    assert [(one.base_offset, one.sealed) for one in log.segments()] == [(0, True), (3, False)]
    shard.run(limit_us=1_000_000)
    assert len(log.segments()) == 2  # an empty segment does not grow old


def test_however_many_segments_come_and_go_only_the_open_one_is_remembered_and_sealed_in_time() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000, segment_ms=60_000, retention_bytes=3000)
    fill(shard, log, 200, 900, timestamp=shard.reactor.wall_ms())
    look(shard)
    shard.run(lambda: False, limit_us=40_000_000)
    fill(shard, log, 4, 900, timestamp=shard.reactor.wall_ms())
    assert log.start_offset > 150
    assert len(shard.storage.housekeeping._due) == 1
    begun, open_base = shard.reactor.wall_ms(), log.segments()[-1].base_offset
    shard.run(lambda: log.segments()[-1].base_offset > open_base, limit_us=3_600_000_000)
    assert 55_000 <= shard.reactor.wall_ms() - begun <= 61_000


def test_of_logs_that_are_deleted_nothing_is_remembered() -> None:
    shard = new_shard()
    stays = shard.open(1)
    append(stays)
    for group in range(2, 150):
        log = shard.open(group)
        append(log)
        settle(shard)
        shard.call(shard.storage.delete_log, log)
    housekeeping = shard.storage.housekeeping
    assert list(housekeeping._looks) == [1]
    assert len(housekeeping._due) < 70
    shard.run(lambda: stays.files.segments.active.base_offset == 1, (stays.sizes.segment_ms + 1000) * 1000)
    assert stays.files.segments.active.base_offset == 1


def test_a_shorter_segment_ms_holds_for_the_segment_that_is_open() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 3)
    log.configure(shard.config(segment_ms=5_000))
    shard.run(lambda: len(log.segments()) > 1, limit_us=20_000_000)
    assert len(log.segments()) == 2


def test_retention_survives_a_crash_at_any_step() -> None:
    for step in range(1, 40):
        shard = new_shard(step)
        log = shard.open(1, segment_bytes=3000, retention_bytes=7000)
        fill(shard, log, 40, 900, timestamp=shard.reactor.wall_ms())
        shard.call(shard.storage.checkpoint)
        disk = shard.disk
        disk.crash_at = disk.operations + step
        try:
            look(shard)
            shard.call(shard.storage.checkpoint)
        except PowerFailure:
            pass
        disk.crash(torn=True)
        report = recover_locally(disk, segment_bytes=3000)
        assert report.faults == ()
        log = LocalShard(disk, shard.rng, clean=report.clean).open(1, segment_bytes=3000)
        assert log.start_offset in (0, 30), step
        assert log.next_offset == 40


def test_the_size_of_all_logs_is_known_seconds_after_a_write() -> None:
    shard = new_shard()
    log = shard.open(1)
    append(log, 1, 500)
    settle(shard)
    shard.reactor.advance(6_000_000)
    settle(shard)
    size = shard.storage.stats.gauge("log_size_bytes")
    shard.run(lambda: size.value == log.size_bytes)
    assert size.value > 500


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_a_segment_is_sealed_at_its_age_when_the_clock_was_set_by_a_day(jump_ms: int) -> None:
    shard = new_shard()
    log = shard.open(1, segment_ms=60_000)
    fill(shard, log, 3)
    begun = shard.reactor.now_us()
    shard.reactor.jump_ms = jump_ms
    fill(shard, log, 3)
    shard.run(lambda: len(log.segments()) > 1, limit_us=3_600_000_000)
    assert 60_000_000 <= shard.reactor.now_us() - begun <= 61_000_000
