"""The disk that forgets: what a crash takes back, and what it may not."""

import errno
import os
import random

import pytest

from millstream.storage.disk import read_file, replace_file
from millstream.testing.disk import FAULT_DIR_VARIABLE, FaultDisk, Faults, Rule, apply_crash


@pytest.fixture
def faults(tmp_path, monkeypatch):
    faults = Faults(tmp_path / "faults")
    monkeypatch.setenv(FAULT_DIR_VARIABLE, str(faults.directory))
    return faults


@pytest.fixture
def disk(faults):
    return FaultDisk()


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return str(path)


def crash(faults, torn=False, seed=1):
    return apply_crash(faults.directory, random.Random(seed), torn=torn)


def write(disk, path, data, position=0, sync=False, create=True):
    file = disk.open(path, create=create)
    file.pwritev([data], position)
    if sync:
        file.sync()
    file.close()


def test_what_was_synced_stays_and_the_rest_goes(disk, faults, data):
    path = f"{data}/log"
    write(disk, path, b"a" * 1000, sync=True)
    disk.sync_directory(data)
    write(disk, path, b"b" * 1000, position=1000)
    write(disk, path, b"c" * 10, position=5)
    assert crash(faults) == 2
    assert read_file(disk, path) == b"a" * 1000


def test_a_file_whose_name_was_not_synced_is_gone(disk, faults, data):
    write(disk, f"{data}/log", b"x", sync=True)
    crash(faults)
    assert disk.list(data) == []


def test_a_replaced_file_is_the_old_or_the_new_one(disk, faults, data):
    path = f"{data}/state"
    replace_file(disk, path, b"old")
    assert crash(faults) == 0
    assert read_file(disk, path) == b"old"
    file = disk.open(f"{path}.tmp", create=True)
    file.pwritev([b"new"], 0)
    file.sync()
    file.close()
    disk.rename(f"{path}.tmp", path)
    crash(faults)
    assert read_file(disk, path) == b"old"
    replace_file(disk, path, b"newer")
    crash(faults)
    assert read_file(disk, path) == b"newer"


def test_an_unsynced_write_under_an_earlier_name_is_taken_back_under_the_later_one(disk, faults, data):
    write(disk, f"{data}/a", b"good", sync=True)
    disk.sync_directory(data)
    write(disk, f"{data}/a", b"evil", create=False)
    disk.rename(f"{data}/a", f"{data}/b")
    disk.sync_directory(data)
    crash(faults)
    assert disk.list(data) == ["b"]
    assert read_file(disk, f"{data}/b") == b"good"


def test_removed_and_cut_files_come_back(disk, faults, data):
    write(disk, f"{data}/a", b"keep me", sync=True)
    write(disk, f"{data}/b", b"0123456789", sync=True)
    disk.sync_all(data)
    disk.unlink(f"{data}/a")
    file = disk.open(f"{data}/b")
    file.truncate(3)
    file.close()
    crash(faults)
    assert read_file(disk, f"{data}/a") == b"keep me"
    assert read_file(disk, f"{data}/b") == b"0123456789"


def test_torn_writes_keep_whole_sectors_only_and_never_touch_what_was_synced(disk, faults, data):
    path = f"{data}/log"
    seen = set()
    for seed in range(40):
        write(disk, path, b"a" * 4096, sync=True)
        disk.sync_all(data)
        write(disk, path, b"b" * 8192, position=4096)
        crash(faults, torn=True, seed=seed)
        content = bytes(read_file(disk, path))
        assert content[:4096] == b"a" * 4096
        for start in range(4096, len(content), 512):
            assert set(content[start : start + 512]) <= {0} or set(content[start : start + 512]) == {ord("b")}
        seen.add(len(content))
        os.unlink(path)
        disk.open(path, create=True).close()
        disk.sync_all(data)
    assert len(seen) > 3, "tearing takes different shapes"


def test_a_sync_that_lies_makes_nothing_durable(disk, faults, data):
    path = f"{data}/0.wal"
    disk.open(path, create=True).close()
    disk.sync_directory(data)
    faults.inject(Rule("sync", ".wal", lie=True))
    write(disk, path, b"lost", sync=True)
    crash(faults)
    assert read_file(disk, path) == b""


def test_errors_are_injected_by_operation_and_path(disk, faults, data):
    faults.inject(Rule("write", "log", error=errno.ENOSPC), Rule("free", error=errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as caught:
        write(disk, f"{data}/log", b"x")
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes(data) == 0
    write(disk, f"{data}/other", b"x")
    faults.inject()
    write(disk, f"{data}/log", b"x")
    assert disk.free_bytes(data) > 0
