"""The state of a write-ahead log is kept twice: one damaged file is mended from the other, two are no start."""

import errno
import random

import pytest
from storage_support import append, fill, new_shard, read_everything, settle

from millstream.errors import Corruption
from millstream.format.wal import WalState, decode_wal_state, encode_wal_state
from millstream.storage.disk import read_file, replace_file
from millstream.storage.verification.log import CORRUPT, MENDED, Progress
from millstream.storage.verification.wal import verify_wal
from millstream.storage.wal.state import read_wal_state, write_wal_state
from sim.engine.disk import KEPT, LOST, TORN, SimDisk
from sim.engine.local_storage import DATA_DIR, LocalShard, recover_locally

DIRECTORY = f"{DATA_DIR}/wal/0"
FILES = (f"{DIRECTORY}/state", f"{DIRECTORY}/state.copy")
OLD, NEW = WalState(5, 1 << 32), WalState(9, 2 << 32)


def empty_directory():
    disk = SimDisk(random.Random(1))
    for directory in (DATA_DIR, f"{DATA_DIR}/wal", DIRECTORY):
        disk.make_directory(directory)
    disk.sync_all("")
    return disk


def wal_findings(disk):
    progress = Progress()
    verify_wal(disk, DATA_DIR, progress, str)
    return [(one.severity, one.file) for one in progress.findings]


def moved_to_another_shard():
    """A log whose first half went through the write-ahead log of shard 0, and the second through that of shard 1."""
    disk = SimDisk(random.Random(1))
    shard = new_shard(disk=disk)
    written = fill(shard, shard.open(1), 5)
    disk.crash(torn=False)
    report = recover_locally(disk, shards=2)
    LocalShard(disk, random.Random(2), shard_id=0, clean=report.clean)
    other = LocalShard(disk, random.Random(3), shard_id=1, clean=report.clean)
    log = other.open(1)
    written += fill(other, log, 5)
    other.call(other.storage.checkpoint)
    disk.crash(torn=False)
    return disk, written


@pytest.mark.parametrize("how", ["damaged", "unreadable"])
@pytest.mark.parametrize("damaged", FILES)
def test_a_damaged_file_is_mended_from_the_other_one_and_nothing_is_cut(damaged, how):
    disk, written = moved_to_another_shard()
    if how == "damaged":
        disk.flip(damaged, 20)
    else:
        disk.fail = lambda kind, path: errno.EIO if kind == "read" and path == damaged else 0
    assert wal_findings(disk) == [(MENDED, damaged)]
    report = recover_locally(disk, shards=2)
    assert not report.faults
    (repair,) = [one for one in report.repairs if one.kind == "other"]
    assert repair.message.startswith(f"{damaged} is damaged (")
    disk.fail = lambda kind, path: 0
    assert wal_findings(disk) == []
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    log = shard.open(1)
    assert read_everything(shard, log) == b"".join(written)


def test_two_damaged_files_are_no_start_and_nothing_is_touched():
    disk, _ = moved_to_another_shard()
    for path in FILES:
        disk.flip(path, 20)
    before = {path: bytes(read_file(disk, path)) for path, _ in disk.files()}
    assert wal_findings(disk)[0] == (CORRUPT, DIRECTORY)
    with pytest.raises(Corruption, match=r"nothing says which frames in \S+/wal/0 are in the segments already"):
        recover_locally(disk, shards=2)
    assert {path: bytes(read_file(disk, path)) for path, _ in disk.files()} == before


def test_without_the_directory_whose_state_is_lost_everything_up_to_the_last_checkpoint_is_there():
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 5)
    shard.call(shard.storage.checkpoint)
    append(log, 1, 500)
    settle(shard)
    disk = shard.disk
    disk.crash(torn=True)
    for path in FILES:
        disk.flip(path, 20)
    disk.rename(DIRECTORY, f"{DIRECTORY}.aside")
    report = recover_locally(disk)
    assert not report.faults
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    log = shard.open(1)
    assert read_everything(shard, log)[: sum(map(len, written))] == b"".join(written)


def test_a_directory_with_one_file_starts_and_has_two_afterwards():
    shard = new_shard()
    log = shard.open(1)
    written = fill(shard, log, 5)
    disk = shard.disk
    disk.crash(torn=False)
    disk.unlink(FILES[1])
    assert wal_findings(disk) == []
    report = recover_locally(disk)
    assert [one.kind for one in report.repairs] == ["wal_replayed"]
    assert read_file(disk, FILES[0]) == read_file(disk, FILES[1])
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    assert read_everything(shard, shard.open(1)) == b"".join(written)


def test_a_checkpoint_and_a_stop_leave_two_files_that_say_the_same():
    shard = new_shard()
    fill(shard, shard.open(1), 5)
    shard.call(shard.storage.checkpoint)
    states = {bytes(read_file(shard.disk, path)) for path in FILES}
    assert len(states) == 1
    assert decode_wal_state(states.pop()).next_sequence > 1
    shard.stop()
    states = {bytes(read_file(shard.disk, path)) for path in FILES}
    assert len(states) == 1
    assert decode_wal_state(states.pop()).clean


@pytest.mark.parametrize("left", [LOST, TORN, KEPT])
def test_a_crash_at_any_point_of_replacing_leaves_the_old_or_the_new_and_never_none(left):
    points = 0
    found = set()

    def look(kind, path):
        nonlocal points
        points += 1
        state, damaged = read_wal_state(disk.crashed(random.Random(points), left), DIRECTORY)
        assert not damaged
        found.add(state)

    disk = empty_directory()
    write_wal_state(disk, DIRECTORY, OLD)
    disk.before = look
    write_wal_state(disk, DIRECTORY, NEW)
    disk.before = None
    assert points >= 8
    assert OLD in found <= {OLD, NEW}
    assert read_wal_state(disk.crashed(random.Random(1), LOST), DIRECTORY) == (NEW, {})


@pytest.mark.parametrize(
    ("one", "other", "counts"),
    [
        (OLD, NEW, NEW),
        (NEW, OLD, NEW),
        # What a stop left is not believed once a start wrote over one of the two.
        (WalState(9, 2 << 32, clean=True, logs=b"x"), NEW, NEW),
        (NEW, WalState(9, 2 << 32, clean=True, logs=b"x"), NEW),
    ],
)
def test_the_newer_of_two_files_counts(one, other, counts):
    disk = empty_directory()
    for path, state in zip(FILES, (one, other), strict=True):
        replace_file(disk, path, encode_wal_state(state))
    assert read_wal_state(disk, DIRECTORY) == (counts, {})
