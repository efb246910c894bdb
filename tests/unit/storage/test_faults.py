"""Disks that fail or are full: a shard stops with the reason, or refuses, tries again and recovers by itself."""

import errno
import random

import pytest
from compaction_support import COMPACTED, compact, compacted_shard, last_values, overwrite, records_of
from storage_support import FAULTS, append, fill, new_shard, read_everything, settle

from millstream.format.names import segment_name
from millstream.iobuf import ArenaFull
from millstream.shard.process import EXIT_CHILD, EXIT_STORAGE, ExitStatus
from millstream.storage.disk import exists
from millstream.storage.maintenance.checkpoint import SNAPSHOT_BYTES, _LogCapture
from millstream.storage.messages.commands import Checkpoint, Checkpointed, Cut, Done, Failed, Remove, Write
from millstream.storage.processes.worker import Worker
from sim.engine.disk import SimDisk
from sim.engine.local_storage import DATA_DIR, MIB, LocalShard, Stopped, place_of, recover_locally

LOG = f"{place_of(1).directory}/{segment_name(0)}"
"""The first segment of the first group's log."""


def failing(kind: str, part: str, code: int):
    return lambda what, path: code if what == kind and part in path else 0


def test_a_failed_wal_sync_stops_the_shard_and_acks_nothing() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 10)
    acked: list[int] = []
    log.owner.on_durable = acked.append
    shard.disk.fail = failing("sync", ".wal", errno.EIO)
    append(log)
    with pytest.raises(Stopped, match="frame could not be synced: Input/output error") as stopped:
        settle(shard)
    assert stopped.value.code == EXIT_STORAGE
    assert acked == []
    assert shard.stats.counter("storage_faults", kind="sync_error").value == 1
    shard.disk.fail = lambda kind, path: 0
    shard.disk.crash(torn=True)
    report = recover_locally(shard.disk)
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(1)).startswith(b"".join(written))


def test_a_failed_wal_write_stops_the_shard() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 1)
    shard.disk.fail = failing("write", ".wal", errno.EIO)
    append(log)
    with pytest.raises(Stopped, match="frame could not be written"):
        settle(shard)


def test_a_failed_segment_sync_stops_the_shard_and_the_wal_is_kept() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 10)
    shard.disk.fail = failing("sync", ".log", errno.EIO)
    with pytest.raises(Stopped, match=r"\.log could not be synced: Input/output error"):
        shard.call(shard.storage.checkpoint)
    shard.disk.fail = lambda kind, path: 0
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(1)) == b"".join(written)


def test_a_segment_that_cannot_be_written_stops_the_shard() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 10)
    shard.disk.fail = failing("write", ".log", errno.EIO)
    with pytest.raises(Stopped, match="could not be written: Input/output error"):
        shard.call(shard.storage.checkpoint)


def test_a_helper_that_ends_stops_the_shard_by_name() -> None:
    shard = new_shard()
    with pytest.raises(Stopped, match="writer 0 was killed by SIGKILL") as stopped:
        shard.storage._stop.process_ended("writer 0", ExitStatus(137, 9))
    assert stopped.value.code == EXIT_CHILD


def test_a_full_disk_refuses_producers_keeps_the_rest_going_and_recovers_by_itself(
    capfd: pytest.CaptureFixture[str],
) -> None:
    shard = new_shard(settings={"wal_bytes": MIB, "wal_file_bytes": 128 * 1024, "checkpoint_bytes": 1 << 40})
    user, internal = shard.open(1), shard.open(2)
    written = fill(shard, user, 100, 900)
    shard.disk.fail = failing("write", "topics", errno.ENOSPC)
    user.behind.write(user.ends.durable_position)
    shard.run(lambda: not shard.storage.accepts_writes)
    expected = fill(shard, internal, 20, 100)
    assert bytes(user.read(0, 100, 1 << 20, True)) == b"".join(written)
    assert bytes(internal.read(0, 20, 1 << 20, True)) == b"".join(expected)
    for _ in range(3):
        shard.reactor.sleep(shard.reactor.now_us() + 2_000_000)
        shard.run(lambda: not shard.processes.steps())
    assert not shard.storage.accepts_writes
    shard.disk.fail = lambda kind, path: 0
    shard.run(lambda: shard.storage.accepts_writes, limit_us=10_000_000)
    assert shard.storage.accepts_writes
    written.append(append(user, 1, 900))
    settle(shard)
    shard.call(shard.storage.checkpoint)
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(1)) == b"".join(written)
    assert read_everything(shard, shard.open(2)) == b"".join(expected)
    lines = [line for line in capfd.readouterr().err.splitlines() if "repaired" not in line]
    assert [("disk full" in line, "space again" in line) for line in lines] == [(True, False), (False, True)]


def test_below_the_reserve_producers_are_refused_before_the_disk_is_full() -> None:
    shard = new_shard(settings={"storage_reserve_bytes": 1 * MIB})
    log = shard.open(1)
    used = (1 << 40) - shard.disk.free_bytes("")
    shard.disk.capacity_bytes = used + 3 * MIB
    while shard.storage.accepts_writes and log.next_offset < 4000:
        fill(shard, log, 20, 5000)
        shard.run(lambda: not shard.processes.steps() and not shard.reactor.ready)
        shard.reactor.sleep(shard.reactor.now_us() + 1_100_000)
    assert not shard.storage.accepts_writes
    assert shard.stats.gauge("storage_read_only").value == 1
    shard.disk.capacity_bytes = None
    shard.run(lambda: shard.storage.accepts_writes, limit_us=5_000_000)
    assert shard.storage.accepts_writes


@pytest.mark.parametrize("then", ["space", "crash"])
def test_a_disk_without_room_for_what_is_overwritten_makes_appends_wait(then: str, capfd) -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 10)
    acked: list[int] = []
    log.owner.on_durable = acked.append
    shard.disk.copies = True
    shard.disk.capacity_bytes = (1 << 40) - shard.disk.free_bytes("") + 100  # a frame begins, and finds no more
    written += [append(log, 1, 900) for _ in range(3)]
    shard.run(lambda: not shard.storage.accepts_writes)
    shard.run(lambda: False, 5_000_000)
    assert acked == []
    assert read_everything(shard, log).startswith(b"".join(written[:10]))
    shard.disk.capacity_bytes = None
    if then == "space":
        shard.run(lambda: shard.storage.accepts_writes, 10_000_000)
        assert shard.storage.accepts_writes
        assert acked[-1] == log.next_offset
        assert capfd.readouterr().err.count("disk full") == 1
    shard.disk.crash(torn=True)
    report = recover_locally(shard.disk)
    assert report.faults == ()
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    kept = written if then == "space" else written[:10]
    assert read_everything(shard, shard.open(1)) == b"".join(kept)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_by_a_disk_that_is_full_at_any_moment(seed: int, copies: bool) -> None:
    """Space comes and goes while segments roll and checkpoints run; then the power fails."""
    rng = random.Random(seed)
    shard = new_shard(seed, settings={"checkpoint_bytes": 50_000})
    shard.disk.copies = copies
    logs = [shard.open(n, segment_bytes=20_000) for n in (1, 2, 3)]
    written: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    acked = {1: 0, 2: 0, 3: 0}
    for log in logs:
        log.owner.on_durable = lambda end, group=log.group: acked.__setitem__(group, end)
    for _ in range(400):
        if rng.random() < 0.05:
            used = (1 << 40) - shard.disk.free_bytes("") if shard.disk.capacity_bytes is None else 0
            shard.disk.capacity_bytes = None if used == 0 else used + rng.randint(0, 60_000)
        log = rng.choice(logs)
        try:
            written[log.group].append(append(log, 1, rng.choice([50, 900, 4000])))
        except ArenaFull:
            pass  # refused, and nothing happened
        for _ in range(rng.randint(0, 5)):
            if not shard.step():
                shard.reactor.sleep(shard.reactor.now_us() + 1_000_000)
    shard.disk.capacity_bytes = None
    shard.disk.crash(torn=True)
    report = recover_locally(shard.disk, segment_bytes=20_000)
    assert report.faults == ()
    shard = LocalShard(shard.disk, rng, clean=report.clean)
    for group in written:
        log = shard.open(group, segment_bytes=20_000)
        assert log.next_offset >= acked[group]
        assert read_everything(shard, log) == b"".join(written[group][: log.next_offset])


@pytest.mark.parametrize(("refused", "code"), [("rename", errno.EIO), ("sync_directory", errno.ENOSPC)])
def test_a_topic_directory_that_cannot_be_removed_is_said_and_removed_a_second_later(
    refused: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 5)
    shard.call(shard.storage.checkpoint)
    topic = place_of(1).directory.removesuffix("/0")
    asked: list[str] = []

    def fail_once(kind: str, path: str) -> int:
        if kind == refused and topic in path:
            asked.append(path)
        return code if len(asked) == 1 else 0

    shard.disk.fail = fail_once
    begun = shard.reactor.now_us()
    shard.call(shard.storage.delete_log, log)
    assert 1_000_000 <= shard.reactor.now_us() - begun < 2_000_000
    assert shard.disk.list(f"{DATA_DIR}/topics") == []
    assert capfd.readouterr().err.count("could not be removed: ") == 1
    shard.stop()
    assert recover_locally(shard.disk).clean


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "when it was given up"])
def test_what_a_deletion_leaves_when_the_shard_stops_is_removed_by_the_next_start(
    waits: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    shard = new_shard()
    log, other = shard.open(1), shard.open(2)
    fill(shard, log, 5)
    written = fill(shard, other, 5)
    shard.call(shard.storage.checkpoint)
    topic = place_of(1).directory.removesuffix("/0")
    shard.disk.fail = failing("sync_directory", topic, errno.EIO)
    if waits:
        shard.call(shard.storage.delete_log, log)
        assert f"{topic}/0 is deleted by the next start" in capfd.readouterr().err
    else:
        shard.storage.delete_log(log, lambda: None)
    shard.stop()
    shard.disk.fail = lambda kind, path: 0
    assert f"{topic}/0.deleted" in [f"{topic}/{name}" for name in shard.disk.list(topic)]
    report = recover_locally(shard.disk, deleted={1})
    assert not report.clean
    assert topic not in [f"{DATA_DIR}/topics/{name}" for name in shard.disk.list(f"{DATA_DIR}/topics")]
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(2)) == b"".join(written)


def test_a_full_disk_without_a_file_for_the_write_ahead_log_is_not_worn_out_by_checkpoints() -> None:
    disk = SimDisk(random.Random(1))
    recover_locally(disk)
    disk.capacity_bytes = 1000
    shard = LocalShard(disk, random.Random(1))
    log = shard.open(1)
    append(log)
    disk.crash_at = disk.operations + 300  # it looks once a second, and more than that is an error
    shard.run(lambda: False, 10_000_000)
    assert not shard.storage.accepts_writes
    disk.crash_at = -1
    disk.capacity_bytes = None
    shard.run(lambda: shard.storage.accepts_writes, 10_000_000)
    assert shard.storage.accepts_writes
    assert log.durable_offset == log.next_offset


def test_producers_are_let_in_again_though_what_could_not_be_written_was_deleted() -> None:
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 10)
    shard.disk.fail = failing("write", ".log", errno.ENOSPC)
    shard.storage.checkpoint(lambda: None)
    shard.run(lambda: not shard.storage.accepts_writes, 10_000_000)
    assert not shard.storage.accepts_writes
    log.trim_prefix(log.next_offset, lambda: None)
    shard.run(lambda: False, 3_000_000)
    shard.disk.fail = lambda kind, path: 0
    shard.run(lambda: shard.storage.accepts_writes, 10_000_000)
    assert shard.storage.accepts_writes


def test_names_that_a_full_disk_did_not_sync_are_synced_by_the_next_checkpoint() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 5)
    shard.call(shard.storage.checkpoint)
    log.roll()
    written += fill(shard, log, 5)
    refused: list[str] = []

    def fail(kind: str, path: str) -> int:
        if kind != "sync_directory" or "topics" not in path or refused:
            return 0
        refused.append(path)
        return errno.ENOSPC

    shard.disk.fail = fail
    shard.call(shard.storage.checkpoint)
    assert refused
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(1)) == b"".join(written)


@pytest.mark.parametrize("cut", [False, True])
def test_no_snapshot_is_left_behind_by_a_checkpoint_that_found_the_disk_full(cut: bool) -> None:
    """One that is not known any more would be believed once the log, which was cut, has grown past it again."""
    shard = new_shard()
    log = shard.open(1)
    log.owner.producer_snapshot = lambda: b"as of %d" % log.next_offset
    shard.storage.checkpointer.snapshot_bytes = 1

    def snapshots() -> list[str]:
        return [name for name in shard.disk.list(log.directory) if name.endswith(".producers")]

    for _ in range(2):
        fill(shard, log, 5)
        shard.call(shard.storage.checkpoint)
    fill(shard, log, 5)
    shard.disk.fail = failing("write", ".producers", errno.ENOSPC)
    shard.storage.checkpointer.request()
    shard.run(lambda: not shard.storage.accepts_writes)
    shard.disk.fail = lambda kind, path: 0
    if cut:
        shard.call(log.truncate_suffix, 3)
        shard.run(lambda: not snapshots())
        assert snapshots() == []
    shard.call(shard.storage.checkpoint)
    assert snapshots() == [f"{offset:020}.producers" for offset in ([3] if cut else [10, 15])]


def test_a_segment_that_a_cut_made_active_again_is_not_taken_for_a_sealed_one() -> None:
    """A checkpoint had marked it and takes its marks back: what it knew of the segment is not so any more."""
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 5)
    log.roll()
    fill(shard, log, 1)
    capture = _LogCapture(log, SNAPSHOT_BYTES)
    assert [one.base_offset for one in capture.rolled] == [0]
    shard.call(log.truncate_suffix, 3)
    capture.give_back()
    assert log.files.rolled == []
    written[3:] = fill(shard, log, 1)
    shard.call(shard.storage.checkpoint)
    shard.disk.crash(torn=False)
    report = recover_locally(shard.disk)
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(1)) == b"".join(written)


def test_a_sync_of_everything_that_finds_a_full_disk_is_final() -> None:
    """What segments got meanwhile may be gone, and no later sync would say so."""
    disk = SimDisk(random.Random(1))
    recover_locally(disk)
    worker = Worker(disk, DATA_DIR, memoryview(bytes(100)), None, FAULTS)
    directories = [place_of(group).directory for group in range(1, 21)]
    for directory in directories:
        worker.carry_out(Write(1, f"{directory}/{segment_name(0)}", 0, [0, 50], []))
    syncs: list[str] = []

    def fail(kind: str, path: str) -> int:
        if kind == "sync_all":
            syncs.append(path)
        return errno.ENOSPC if kind == "sync_all" and len(syncs) == 2 else 0

    disk.fail = fail
    reply = worker.carry_out(Checkpoint(1, [], [(f"{directory}/epochs", b"") for directory in directories], []))
    assert isinstance(reply, Checkpointed)
    assert (reply.errno, reply.synced) == (errno.ENOSPC, False)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_orderly_stop_ends_though_what_there_is_cannot_be_noted(
    code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 5)
    shard.disk.fail = lambda kind, path: code if kind == "write" and shard.storage.wal.closed else 0
    shard.stop()
    assert "what is in the logs could not be noted" in capfd.readouterr().err
    shard.disk.fail = lambda kind, path: 0
    report = recover_locally(shard.disk)
    assert not report.clean
    shard = LocalShard(shard.disk, shard.rng, clean=report.clean)
    assert read_everything(shard, shard.open(1)) == b"".join(written)


def test_a_shard_that_has_stopped_looks_for_space_and_begins_checkpoints_no_more() -> None:
    """Its process goes on until every shard has stopped, and there is no worker to send anything to."""
    shard = new_shard()
    log = shard.open(1)
    fill(shard, log, 5)
    shard.storage.space.accepts_writes = False
    shard.stop()
    sent: list[object] = []
    shard.storage.worker.send = sent.append
    shard.storage.dirty_logs[log] = None
    shard.run(lambda: False, 120_000_000)
    assert sent == []


@pytest.mark.parametrize("change", [Remove(7, [LOG]), Cut(7, LOG, 0, 20)], ids=["remove", "cut"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_files_are_removed_and_cut_once_a_full_disk_has_room_for_it(
    code: int, change: Remove | Cut, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = SimDisk(random.Random(1))
    recover_locally(disk)
    waits: list[float] = []
    worker = Worker(disk, DATA_DIR, memoryview(bytes(100)), None, FAULTS, wait=waits.append)
    worker.carry_out(Write(1, LOG, 0, [0, 50], []))
    disk.fail = lambda kind, _: code if kind in ("unlink", "truncate") and len(waits) < 3 else 0
    reply = worker.carry_out(change)
    if code == errno.EIO:
        assert isinstance(reply, Failed)
        assert not waits
        return
    assert reply == Done(7)
    assert waits == [1.0] * 3
    assert capfd.readouterr().err.count("; that is tried again") == 1
    if isinstance(change, Cut):
        assert disk.size(LOG) == 20
    else:
        assert not exists(disk, LOG)


def test_a_compacted_segment_is_put_in_place_once_a_full_disk_has_room_for_its_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    shard = compacted_shard()
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 10)
    log.roll()
    settle(shard)
    before = last_values(records_of(shard, log))
    renamed: list[str] = []
    refused: list[str] = []

    def fail(kind: str, path: str) -> int:
        if kind == "rename" and ".log" in path:
            renamed.append(path)
        if kind != "sync_directory" or not renamed or len(refused) == 3:
            return 0
        refused.append(path)
        return errno.ENOSPC

    shard.disk.fail = fail
    compact(shard, log)
    assert refused == [log.directory] * 3
    assert capfd.readouterr().err.count("could not be synced: No space left on device; that is tried again") == 1
    assert last_values(records_of(shard, log)) == before
