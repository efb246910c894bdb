"""What a start finds and mends: torn tails, damaged frames, lost indexes, clean stops, other shard counts."""

import contextlib
import errno
import random

import pytest
from storage_support import (
    SEGMENT,
    WAL,
    append,
    fill,
    kill,
    new_shard,
    read_everything,
    reopened,
    settle,
)

from millstream.errors import Corruption
from millstream.storage.disk import exists, read_file
from sim.engine.disk import PowerFailure, SimDisk
from sim.engine.local_storage import DATA_DIR, LocalShard, Stopped, place_of, recover_locally


def crash(shard: LocalShard, *, torn: bool = False) -> SimDisk:
    """The power fails."""
    shard.disk.crash(torn=torn)
    return shard.disk


def kinds(report) -> list[str]:
    return [repair.kind for repair in report.repairs]


def test_nothing_is_recovered_from_nothing() -> None:
    report = recover_locally(SimDisk(random.Random(1)))
    assert (report.clean, report.records, report.repairs, report.faults) == (True, 0, (), ())


def test_acked_batches_are_there_after_a_crash_that_kept_no_unsynced_byte() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 30)
    report = recover_locally(crash(shard))
    assert (report.clean, report.records, report.logs) == (False, 30, 1)
    assert kinds(report) == ["wal_replayed"]
    shard, log = reopened(shard.disk, report)
    assert read_everything(shard, log) == b"".join(written)


def test_a_topic_keeps_its_name_when_the_crash_came_before_its_first_segment() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 3)
    disk = crash(shard)
    recover_locally(disk)
    place = place_of(1)
    label = f"{place.directory.rpartition('/')[0]}/topic"
    assert bytes(read_file(disk, label)).decode() == place.name.rpartition("/")[0] + "\n"


@pytest.mark.parametrize("failed", [False, True], ids=["not synced", "sync failed"])
def test_a_log_stays_whole_when_the_power_fails_while_an_unsynced_frame_is_replayed(failed: bool) -> None:
    for seed in range(8, 20):
        for point in range(3, 8):
            disk = SimDisk(random.Random(seed))
            shard = new_shard(disk=disk)
            log = shard.open(1)
            fill(shard, log, 1)
            shard.call(shard.storage.checkpoint)
            append(log, 1, 3000)
            disk.fail = failing if failed else ending
            with pytest.raises((PowerFailure, Stopped)):
                settle(shard)
            disk.fail = lambda kind, path: 0
            disk.crash_at = disk.operations + point
            with contextlib.suppress(PowerFailure):
                recover_locally(disk)
            disk.crash(torn=True)
            report = recover_locally(disk)
            assert not report.faults
            _, log = reopened(disk, report)
            assert log.next_offset in (1, 2)


def failing(kind: str, path: str) -> int:
    return errno.EIO if (kind, path) == ("sync", WAL) else 0


def ending(kind: str, path: str) -> int:
    """Only the process ends, not the machine."""
    if (kind, path) == ("sync", WAL):
        raise PowerFailure
    return 0


def test_a_second_crash_during_recovery_changes_nothing() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 30)
    disk = crash(shard)
    steps = 0
    for operation in range(1, 40):
        disk.crash_at = disk.operations + operation
        try:
            recover_locally(disk)
        except PowerFailure:
            disk.crash(torn=operation % 2 == 0)
            steps += 1
    disk.crash_at = -1
    assert steps > 5
    shard, log = reopened(disk, recover_locally(disk))
    assert read_everything(shard, log) == b"".join(written)


def test_a_torn_frame_is_cut_with_one_line() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 10)
    append(log, 1, 3000)
    settle(shard)
    disk = kill(shard)
    end = len(bytes(disk._file(WAL).content).rstrip(b"\0"))
    for position in range(end - 3000, end - 2000):
        disk.flip(WAL, position)
    report = recover_locally(disk)
    assert kinds(report) == ["torn_wal", "wal_replayed"]
    assert report.faults == ()
    shard, log = reopened(disk, report)
    assert read_everything(shard, log) == b"".join(written)


def _damage_record(disk: SimDisk, batch: bytes, *, segment_too: bool = False) -> None:
    """Spoil the payload of a batch in the write-ahead log, and its copy in the segment."""
    for path in (WAL, SEGMENT + ".log") if segment_too else (WAL,):
        position = bytes(disk._file(path).content).index(batch)
        disk.flip(path, position + len(batch) - 3)


def test_damage_in_the_durable_wal_is_mended_from_the_segment_where_the_batch_was_written_behind() -> None:
    shard = new_shard()
    log, other = shard.open(1), shard.open(2)
    written = fill(shard, log, 20)
    fill(shard, other, 5)
    log.behind.write(log.ends.durable_position)
    shard.run(lambda: log.ends.written_position == log.ends.durable_position)
    disk = kill(shard)
    _damage_record(disk, written[7])
    report = recover_locally(disk)
    assert report.faults == ()
    assert any(
        "offsets 7 to 7 are damaged in the write-ahead log; the segment has them" in one.message
        for one in report.repairs
    )
    shard, log = reopened(disk, report)
    assert read_everything(shard, log) == b"".join(written)


def test_damage_that_nothing_mends_fences_that_log_only_and_cuts_nothing() -> None:
    shard = new_shard()
    log, other = shard.open(1), shard.open(2)
    written = fill(shard, log, 20)
    expected = fill(shard, other, 20)
    disk = kill(shard)
    _damage_record(disk, written[7], segment_too=True)
    report = recover_locally(disk)
    assert len(report.faults) == 1
    assert "topic1/0: offsets 7 to 7 are damaged in the write-ahead log, and no segment has them" in report.faults[0]
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    with pytest.raises(Corruption, match="offsets 7 to 7"):
        shard.open(1)
    assert read_everything(shard, shard.open(2)) == b"".join(expected)
    assert bytes(read_file(disk, SEGMENT + ".log")).startswith(b"".join(written[:7]))
    assert bytes(read_file(disk, f"{place_of(1).directory}/00000000000000000008.quarantined")) == b"".join(written[8:])
    shard.stop()
    report = recover_locally(disk)
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    with pytest.raises(Corruption, match="offsets 7 to 7"):
        shard.open(1)


def test_unreadable_frames_fence_the_logs_that_may_have_lost_by_them() -> None:
    """Log 1 goes on after the hole, so nothing of it was in there; nobody can say so of log 2."""
    shard = new_shard()
    log, other = shard.open(1), shard.open(2)
    written = fill(shard, log, 3)
    fill(shard, other, 3)
    append(other, 1, 10)
    settle(shard)
    position = shard.storage.wal.files.position
    append(shard.open(3), 1, 10)
    settle(shard)
    end = shard.storage.wal.files.position
    written += fill(shard, log, 2)
    disk = kill(shard)
    for at in range(position, end):  # no single page hides a frame
        disk.flip(WAL, at)
    report = recover_locally(disk)
    assert any("cannot be read; logs whose last records were there may end early" in fault for fault in report.faults)
    assert sum(fault.startswith("topic2/0: frames ") for fault in report.faults) == 1
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    assert read_everything(shard, shard.open(1)) == b"".join(written)
    with pytest.raises(Corruption, match="may have held records of this log"):
        shard.open(2)


def test_a_lost_wal_file_is_reported() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 100, 1000)
    disk = kill(shard)
    disk.unlink(WAL)
    report = recover_locally(disk)
    assert any("were durable and cannot be read" in fault for fault in report.faults)


def test_a_missing_epochs_file_is_derived_again(capfd: pytest.CaptureFixture[str]) -> None:
    shard = new_shard()
    log = shard.open(1)
    for epoch in (0, 2, 5):
        fill(shard, log, 5, epoch=epoch)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    disk.unlink(f"{place_of(1).directory}/epochs")
    report = recover_locally(disk)
    _, log = reopened(disk, report)
    assert log.leader_epochs == [(0, 0), (2, 5), (5, 10)]
    assert "epochs was missing" in capfd.readouterr().err


def test_a_damaged_epochs_file_fences_the_log() -> None:
    shard = new_shard()
    fill(shard, shard.open(1), 5)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    disk.flip(f"{place_of(1).directory}/epochs", 20)
    with pytest.raises(Corruption, match="epochs"):
        reopened(disk, recover_locally(disk))


def test_a_hole_between_segments_fences_the_log() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000)
    fill(shard, log, 20, 900)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    disk.unlink(log.segments()[2].path)
    with pytest.raises(Corruption, match="are in no segment"):
        reopened(disk, recover_locally(disk))


def test_a_segment_that_lost_durable_bytes_fences_the_log() -> None:
    shard = new_shard()
    fill(shard, shard.open(1), 20)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    disk.open(SEGMENT + ".log").truncate(3000)
    with pytest.raises(Corruption, match="were synced"):
        reopened(disk, recover_locally(disk))


def test_after_a_clean_stop_no_log_file_and_no_wal_file_is_read() -> None:
    shard = new_shard()
    logs = [shard.open(n) for n in range(1, 51)]
    for log in logs:
        fill(shard, log, 3)
        log.owner.producer_snapshot = lambda: b"producers"
    shard.stop()
    disk = shard.disk
    read: list[str] = []
    disk.fail = lambda kind, path: read.append(path) or 0 if kind == "read" else 0
    report = recover_locally(disk)
    assert report.clean
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    logs = [shard.open(n) for n in range(1, 51)]
    assert [log.next_offset for log in logs] == [3] * 50
    assert logs[7].files.snapshots.newest == (3, b"producers")
    assert {path.rpartition("/")[2] for path in read} <= {"state", "state.copy", "opened"}


def test_what_a_clean_stop_noted_is_not_believed_after_the_crash_that_follows() -> None:
    shard = new_shard()
    fill(shard, shard.open(1), 3)
    shard.stop()
    shard, log = reopened(shard.disk, recover_locally(shard.disk))
    fill(shard, log, 3)
    report = recover_locally(crash(shard))
    assert not report.clean
    assert reopened(shard.disk, report)[1].next_offset == 6


def test_a_segment_that_changed_size_by_hand_is_looked_at_after_a_clean_stop() -> None:
    shard = new_shard()
    fill(shard, shard.open(1), 20)
    shard.stop()
    report = recover_locally(shard.disk)
    shard.disk.open(SEGMENT + ".log").truncate(3000)
    with pytest.raises(Corruption, match="were synced"):
        reopened(shard.disk, report)


def test_any_number_of_shards_finds_what_another_number_left() -> None:
    disk = SimDisk(random.Random(1))
    recover_locally(disk, shards=3)
    shards = [LocalShard(disk, random.Random(n), shard_id=n) for n in range(3)]
    written = {}
    for group in range(1, 10):
        shard = shards[group % 3]
        written[group] = fill(shard, shard.open(group), 10)
    disk.crash(torn=True)
    report = recover_locally(disk, shards=1)
    assert sorted(name for name in disk.list(f"{DATA_DIR}/wal")) == ["0"]
    shard = LocalShard(disk, random.Random(9), clean=report.clean)
    for group in range(1, 10):
        assert read_everything(shard, shard.open(group)) == b"".join(written[group])
    shard.stop()
    report = recover_locally(disk, shards=2)
    assert report.clean
    second = LocalShard(disk, random.Random(9), shard_id=1, clean=report.clean)
    assert second.open(4).next_offset == 10


def test_the_term_of_a_start_is_larger_after_each_crash_on_every_shard_and_never_falls() -> None:
    disk = SimDisk(random.Random(1))

    def terms(shards: int) -> list[int]:
        clean = recover_locally(disk, shards=shards).clean
        started = [LocalShard(disk, random.Random(n), shard_id=n, clean=clean) for n in range(shards)]
        for shard in started:
            fill(shard, shard.open(shard.context.id), 1)
            shard.call(shard.storage.checkpoint)
        if not crashes:
            for shard in started:
                shard.stop()
        disk.crash(torn=True)
        return [shard.storage.term for shard in started]

    crashes = True
    assert terms(shards=1) == [0]
    assert terms(shards=1) == [1]
    crashes = False
    assert terms(shards=3) == [2, 2, 2]
    assert terms(shards=2) == [2, 2]
    crashes = True
    assert terms(shards=1) == [2]
    assert terms(shards=2) == [3, 3]


def test_a_crash_at_any_point_of_starts_with_more_and_fewer_shards_is_recovered_from() -> None:
    shard = LocalShard(SimDisk(random.Random(5)), random.Random(0))
    fill(shard, shard.open(3), 5)
    disk = crash(shard)
    rng = random.Random(7)
    cut = 0
    for _ in range(300):
        disk.crash_at = disk.operations + rng.randrange(60)
        try:
            recover_locally(disk, shards=rng.randint(1, 3))
        except PowerFailure:
            cut += 1
        disk.crash_at = -1
        disk.crash(torn=True)
    report = recover_locally(disk)
    assert cut > 100 and not report.faults
    assert LocalShard(disk, random.Random(1), clean=report.clean).open(3).next_offset == 5


def test_a_group_that_the_controller_no_longer_knows_is_left_alone() -> None:
    shard = new_shard()
    fill(shard, shard.open(1), 5)
    fill(shard, shard.open(2), 5)
    disk = crash(shard)
    report = recover_locally(disk, deleted={1})
    assert report.logs == 1
    assert disk.list(f"{DATA_DIR}/topics") == [f"{2:032x}"]


def test_a_deletion_that_the_crash_cut_short_is_finished() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 5)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    disk.rename(place_of(1).directory, place_of(1).directory + ".deleted")
    recover_locally(disk, deleted={1})
    assert disk.list(f"{DATA_DIR}/topics") == []


def test_producer_snapshots_of_batches_that_a_crash_took_are_not_used() -> None:
    shard = new_shard()
    log = shard.open(1)
    log.owner.producer_snapshot = lambda: b"as of %d" % log.next_offset
    fill(shard, log, 100, 1000)
    append(log, 1, 1000)  # appended, never durable
    shard.call(shard.storage.checkpoint)
    names = disk_names(shard)
    assert "00000000000000000101.producers" in names
    disk = crash(shard)
    disk.fail = lambda kind, path: 0
    report = recover_locally(disk)
    shard, log = reopened(disk, report)
    if log.next_offset == 100:
        assert log.files.snapshots.newest is None
        assert "00000000000000000101.producers" not in disk_names(shard)


def disk_names(shard: LocalShard) -> list[str]:
    return shard.disk.list(place_of(1).directory)


def test_headers_are_replayed_from_an_offset_on_over_all_segments() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=9000)
    fill(shard, log, 60, 900)
    shard.stop()
    _, log = reopened(shard.disk, recover_locally(shard.disk), segment_bytes=9000)
    seen: list[int] = []
    log.replay_headers(23, lambda header: seen.append(header[0]))
    assert seen == list(range(23, 60))


def test_the_start_offset_survives_in_the_wal_and_in_the_epochs_file() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000)
    written = fill(shard, log, 20, 900)
    shard.call(log.trim_prefix, 7)
    report = recover_locally(crash(shard))
    shard, log = reopened(shard.disk, report, segment_bytes=3000)
    assert (log.start_offset, log.next_offset) == (7, 20)
    fill(shard, log, 1)
    shard.call(shard.storage.checkpoint)
    shard, log = reopened(shard.disk, recover_locally(crash(shard)), segment_bytes=3000)
    assert log.start_offset == 7
    assert read_everything(shard, log).startswith(written[7])


def test_a_log_trimmed_to_its_end_goes_on_where_it_was() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 10)
    shard.call(log.trim_prefix, 10)
    shard.call(shard.storage.checkpoint)
    assert [one.base_offset for one in log.segments()] == [10]
    shard, log = reopened(shard.disk, recover_locally(crash(shard)))
    assert (log.start_offset, log.next_offset) == (10, 10)
    append(log)
    settle(shard)
    assert log.durable_offset == 11


def test_a_start_that_was_torn_with_what_it_stands_behind_is_void() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 5)
    shard.call(shard.storage.checkpoint)
    written += fill(shard, log, 1)
    append(log, 1, 3000)
    log.trim_prefix(log.next_offset)  # as write.caching allows
    settle(shard)
    shard.disk.damage(WAL, shard.storage.wal.files.position - 2048, bytes(512))
    report = recover_locally(crash(shard))
    assert report.faults == ()
    shard, log = reopened(shard.disk, report)
    assert (log.start_offset, log.next_offset) == (0, 6)
    assert read_everything(shard, log) == b"".join(written)


def test_a_file_beside_the_topics_is_left_alone() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 5)
    shard.call(shard.storage.checkpoint)
    shard.disk.open(f"{DATA_DIR}/topics/notes", create=True)
    report = recover_locally(kill(shard))
    assert exists(shard.disk, f"{DATA_DIR}/topics/notes")
    shard, log = reopened(shard.disk, report)
    assert read_everything(shard, log) == b"".join(written)
