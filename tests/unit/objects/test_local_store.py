"""A directory as an object store holds the contract of a store."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time

import pytest
from store_suite import KEY, StoreSuite, keys, read

from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.objects.errors import Conflict, Denied
from millstream.objects.local import LocalStore
from millstream.objects.store import ABSENT, ObjectKey
from millstream.testing.disk import FAULT_DIR_VARIABLE, FaultDisk, Faults, Rule, apply_crash


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(str(tmp_path / "some" / "bucket"))


@pytest.fixture
def faults(tmp_path):
    faults = Faults(tmp_path / "faults")
    yield faults
    faults.close()


@pytest.fixture
def disk(faults, monkeypatch):
    monkeypatch.setenv(FAULT_DIR_VARIABLE, str(faults.directory))
    disk = FaultDisk()
    yield disk
    disk.close()


def test_objects_are_plain_files(tmp_path):
    store = LocalStore(str(tmp_path))
    store.put(ObjectKey("a/b.log"), [b"12", b"34"])
    assert (tmp_path / "a" / "b.log").read_bytes() == b"1234"
    assert os.listdir(tmp_path / ".uploads") == []
    store.delete([ObjectKey("a/b.log")])
    assert not (tmp_path / "a").exists()


def test_versions_differ_although_the_clock_stands(tmp_path):
    """Same size, and inodes that the file system uses again: the modification time must decide."""
    store = LocalStore(str(tmp_path))
    versions = [store.put(KEY, [b"same"]) for _ in range(50)]
    assert len(set(versions)) == 50
    os.utime(tmp_path / KEY, ns=(2**62, 2**62))  # the clock was far ahead
    ahead = store.head(KEY)
    assert ahead is not None
    later = [store.put(KEY, [b"same"]) for _ in range(3)]
    assert len({ahead.version, *later}) == 4


def test_a_key_that_is_a_folder_is_refused(tmp_path):
    store = LocalStore(str(tmp_path))
    store.put(ObjectKey("a/b"), [b"1"])
    for key in ("a", "a/b/c"):
        with pytest.raises(Rejected, match="folder"):
            store.put(ObjectKey(key), [b"2"])
    assert keys(store) == ["a/b"]


@pytest.mark.parametrize("seed", range(30))
def test_a_power_failure_leaves_the_old_object_or_the_new_one(tmp_path, disk, faults, seed):
    rng = random.Random(seed)
    root = tmp_path / "bucket"
    acked: dict[str, bytes] = {}
    tried: dict[str, set[bytes]] = {}
    for _life in range(4):
        store = LocalStore(str(root), disk)
        for _ in range(rng.randrange(1, 6)):
            key = f"{rng.choice('abc')}/{rng.choice('xy')}"
            data = rng.randbytes(rng.randrange(3000))
            store.put(ObjectKey(key), [data])
            acked[key] = data
            if rng.random() < 0.2:
                store.delete([ObjectKey(key)])
                del acked[key]
        # One more put breaks off at a random operation, which an error stands for, and then the power fails.
        key, data = "a/x", rng.randbytes(rng.randrange(1, 3000))
        where = rng.choice([".uploads", "/a", ""])
        faults.inject(Rule(rng.choice(["write", "sync", "name"]), where, errno.EIO))
        try:
            store.put(ObjectKey(key), [data])
            acked[key] = data
        except (OutcomeUnknown, Unavailable) as error:
            tried[key] = {acked.get(key, b"absent")} | ({data} if isinstance(error, OutcomeUnknown) else set())
        faults.inject()
        apply_crash(faults.directory, rng)
        store = LocalStore(str(root), disk)
        for key, data in list(acked.items()):
            info = store.head(ObjectKey(key))
            found = read(store, ObjectKey(key)) if info else b"absent"
            assert found in tried.get(key, {data}), f"seed {seed}: {key}"
        for key in tried:
            info = store.head(ObjectKey(key))
            if info is None:
                acked.pop(key, None)
            else:
                acked[key] = read(store, ObjectKey(key))
                assert acked[key] in tried[key], f"seed {seed}: {key}"
        tried.clear()
        assert set(keys(store)) == set(acked), f"seed {seed}"


@pytest.mark.parametrize("number,kind", [(errno.ENOSPC, Unavailable), (errno.EIO, Unavailable)])
def test_a_failed_upload_changes_nothing_and_leaves_no_file(tmp_path, disk, faults, number, kind):
    store = LocalStore(str(tmp_path / "bucket"), disk)
    store.put(KEY, [b"before"])
    for op in ("write", "sync", "open"):
        faults.inject(Rule(op, ".uploads", number))
        with pytest.raises(kind, match="could not be uploaded"):
            store.put(KEY, [b"after"])
    faults.inject()
    assert read(store, KEY) == b"before"
    assert os.listdir(tmp_path / "bucket" / ".uploads") == []


def test_a_failure_from_the_rename_on_is_an_unknown_outcome(tmp_path, disk, faults):
    store = LocalStore(str(tmp_path / "bucket"), disk)
    store.put(KEY, [b"before"])
    faults.inject(Rule("sync", "/topics", errno.EIO))
    with pytest.raises(OutcomeUnknown, match=r"file://.*Input/output error"):
        store.put(KEY, [b"after"])
    faults.inject()
    assert read(store, KEY) == b"after"


def test_the_error_of_a_full_disk_says_what_to_do(tmp_path, disk, faults):
    store = LocalStore(str(tmp_path / "bucket"), disk)
    faults.inject(Rule("write", "", errno.ENOSPC))
    with pytest.raises(Unavailable, match="Free space"):
        store.put(KEY, [b"data"])


def test_a_failed_read_is_unavailable(tmp_path, disk, faults):
    store = LocalStore(str(tmp_path / "bucket"), disk)
    store.put(KEY, [b"data"])
    faults.inject(Rule("read", "", errno.EIO))
    with pytest.raises(Unavailable, match="could not be read"):
        read(store, KEY)


def test_a_directory_without_permission_is_denied(tmp_path, disk, faults):
    faults.inject(Rule("name", "", errno.EACCES))
    with pytest.raises(Denied, match="permission"):
        LocalStore(str(tmp_path / "bucket"), disk)


def test_uploads_that_a_crash_broke_off_are_removed_when_they_are_a_day_old(tmp_path):
    LocalStore(str(tmp_path))
    now = time.time()
    for name, age_s in (("old", 86_500), ("new", 80_000)):
        path = tmp_path / ".uploads" / name
        path.write_bytes(b"rest")
        os.utime(path, (now - age_s, now - age_s))
    store = LocalStore(str(tmp_path))
    assert os.listdir(tmp_path / ".uploads") == ["new"]
    assert keys(store) == []


def test_writers_of_several_processes_do_not_lose_an_update(tmp_path):
    """Each process adds 40 to a counter in one object by compare-and-set."""
    script = """
import sys
from millstream.objects.errors import Conflict
from millstream.objects.local import LocalStore
store = LocalStore(sys.argv[1])
for _ in range(40):
    while True:
        info = store.head("counter")
        try:
            count = int(bytes(store.get("counter", 0, info.size_bytes)))
            store.put("counter", [str(count + 1).zfill(6).encode()], info.version)
            break
        except Conflict:
            pass
"""
    store = LocalStore(str(tmp_path))
    store.put(ObjectKey("counter"), [b"000000"], ABSENT)
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert read(store, ObjectKey("counter")) == b"000120"


def test_a_conflict_says_which_version_was_expected(tmp_path):
    store = LocalStore(str(tmp_path))
    version = store.put(KEY, [b"1"])
    with pytest.raises(Conflict, match="exists already"):
        store.put(KEY, [b"2"], ABSENT)
    store.delete([KEY])
    with pytest.raises(Conflict, match=f"is gone, and version {version} was expected"):
        store.put(KEY, [b"2"], version)


def test_a_listing_survives_removals(tmp_path):
    store = LocalStore(str(tmp_path))
    for number in range(20):
        store.put(ObjectKey(f"{number % 4}/{number}"), [b"."])
    listed = store.list()
    first = next(listed)
    store.delete([ObjectKey(f"{number % 4}/{number}") for number in range(20) if number % 4])
    rest = [info.key for info in listed]
    assert first.key == "0/0"
    assert all(key.startswith("0/") for key in rest)
    assert len(rest) == 4
