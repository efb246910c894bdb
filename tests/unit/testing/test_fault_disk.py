"""The disk that takes back what was not synced agrees with a simple one in memory, and keeps nothing it should not."""

import errno
import os
import random
import sys
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.storage.disk import SystemDisk
from millstream.testing.disk import FAULT_DIR_VARIABLE, FaultDisk, Faults, Rule, _read, apply_crash
from sim.engine.disk import SimDisk


def fault_disk(directory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULT_DIR_VARIABLE, str(directory))
        return FaultDisk()


@pytest.fixture
def world(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    made = SimpleNamespace(disk=fault_disk(tmp_path / "faults"), data=data, faults=tmp_path / "faults", files=[])
    yield made
    for file in made.files:
        file.close()
    made.disk.close()


def crash(world, torn=False, seed=0):
    return apply_crash(world.faults, random.Random(seed), torn=torn)


def opened(world, name, *, create=False):
    """A file that is closed when the test ends."""
    file = world.disk.open(str(world.data / name), create=create)
    world.files.append(file)
    return file


def written(world, name, data, *, sync=True, sync_names=True):
    file = opened(world, name, create=True)
    file.pwritev([data], 0)
    if sync:
        file.sync()
    if sync_names:
        world.disk.sync_directory(str(world.data))
    return file


def test_what_was_synced_stays_and_what_was_not_goes(world):
    file = written(world, "a", b"durable")
    file.pwritev([b"DUR"], 0)
    file.pwritev([b" and more"], 7)
    assert (world.data / "a").read_bytes() == b"DURable and more"
    assert crash(world) == 2
    assert (world.data / "a").read_bytes() == b"durable"


def test_a_truncation_that_was_not_synced_is_taken_back(world):
    written(world, "a", b"0123456789").truncate(4)
    crash(world)
    assert (world.data / "a").read_bytes() == b"0123456789"


def test_a_name_needs_its_directory_synced(world):
    written(world, "a", b"x", sync_names=False)
    written(world, "b", b"y")  # syncs the directory, and with it both names
    written(world, "c", b"z", sync_names=False)
    crash(world)
    assert sorted(os.listdir(world.data)) == ["a", "b"]


def test_a_replacement_that_was_not_synced_gives_the_old_file_back(world):
    written(world, "a", b"old")
    written(world, "a.tmp", b"new")
    world.disk.rename(str(world.data / "a.tmp"), str(world.data / "a"))
    crash(world)
    assert (world.data / "a").read_bytes() == b"old"
    assert (world.data / "a.tmp").read_bytes() == b"new"


def test_a_removal_that_was_not_synced_is_taken_back_with_its_bytes(world):
    file = written(world, "a", b"kept")
    file.pwritev([b"GONE"], 0)
    world.disk.unlink(str(world.data / "a"))
    crash(world)
    assert (world.data / "a").read_bytes() == b"kept"


def test_a_second_crash_begins_where_the_first_ended(world):
    written(world, "a", b"one").pwritev([b"two"], 0)
    crash(world)
    world.disk.close()
    world.disk = fault_disk(world.faults)
    written(world, "a", b"uno").pwritev([b"due"], 0)
    crash(world)
    assert (world.data / "a").read_bytes() == b"uno"


def test_torn_keeps_sectors_one_by_one(world):
    kept = set()
    for seed in range(30):
        file = written(world, "a", bytes(4096))
        file.pwritev([b"\1" * 4096], 0)
        crash(world, torn=True, seed=seed)
        content = (world.data / "a").read_bytes()
        assert len(content) == 4096
        sectors = [content[start : start + 512] for start in range(0, 4096, 512)]
        assert set(sectors) <= {bytes(512), b"\1" * 512}
        kept.add(sum(sector != bytes(512) for sector in sectors))
    assert 0 in kept, "sometimes nothing reached the disk"
    assert kept & set(range(1, 8)), "sometimes a part did"


def test_sync_all_makes_bytes_and_names_durable(world):
    opened(world, "a", create=True).pwritev([b"all"], 0)
    world.disk.sync_all(str(world.data))
    crash(world)
    assert (world.data / "a").read_bytes() == b"all"


def test_threads_share_the_count_and_the_journal(world):
    """A worker has a thread for each lane: no number twice, no record torn."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=written, args=(world, name, b"x")) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    (journal,) = world.faults.glob("journal-*")
    changes = list(_read(journal.read_bytes()))
    assert len({change.number for change in changes}) == len(changes) == 4 * 8
    assert crash(world) == 0


def test_a_rule_fails_what_it_names_and_nothing_else(world):
    file = written(world, "a.log", b"x")
    faults = Faults(world.faults)
    faults.inject(Rule("sync", ".log", error=errno.EIO), Rule("name", ".tmp", error=errno.ENOSPC))
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.pwritev([b"y"], 0)
    with pytest.raises(OSError, match="No space left"):
        opened(world, "b.tmp", create=True)
    written(world, "b", b"z")
    faults.inject()
    file.sync()
    faults.close()


NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.integers(0, 1500), st.binary(min_size=1, max_size=900)),
        st.tuples(st.just("sync"), NAMES),
        st.tuples(st.just("truncate"), NAMES, st.integers(0, 1500)),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES),
        st.tuples(st.just("sync_directory")),
        st.tuples(st.just("sync_all")),
    ),
    max_size=25,
)


def act(disk, root, step):
    """One step, or nothing where it does not apply."""
    verb, *rest = step
    path = f"{root}/{rest[0]}" if rest else root
    names = set(disk.list(root))
    match verb:
        case "write":
            with closing(disk.open(path, create=True)) as file:
                file.pwritev([rest[2]], rest[1])
        case "sync" if rest[0] in names:
            with closing(disk.open(path)) as file:
                file.sync()
        case "truncate" if rest[0] in names:
            with closing(disk.open(path)) as file:
                file.truncate(rest[1])
        case "rename" if rest[0] in names and rest[0] != rest[1]:
            disk.rename(path, f"{root}/{rest[1]}")
        case "unlink" if rest[0] in names:
            disk.unlink(path)
        case "sync_directory":
            disk.sync_directory(root)
        case "sync_all":
            disk.sync_all(root)


def content(disk, root):
    found = {}
    for name in disk.list(root):
        file = disk.open(f"{root}/{name}")
        data = bytearray(file.size())
        if data:
            file.preadv([data], 0)
        found[name] = bytes(data)
        file.close()
    return found


@settings(max_examples=150)
@given(STEPS)
@example(  # the sync of a new file says nothing of one that had its name before
    [("write", "b", 0, b"1"), ("rename", "b", "a"), ("sync_directory",), ("write", "b", 0, b"2"), ("sync", "b")]
)
@example(  # what was done to a file that is gone is not taken back in one that has its name now
    [
        *[("write", "a", 0, b"1"), ("sync", "a"), ("truncate", "a", 0), ("unlink", "a")],
        *[("write", "a", 0, b"2"), ("sync_directory",)],
    ]
)
def test_it_agrees_with_the_simple_disk_in_memory(tmp_path_factory, steps):
    base = tmp_path_factory.mktemp("faults")
    root = str(base / "data")
    os.mkdir(root)
    real, simple = fault_disk(base / "journal"), SimDisk(random.Random(0))
    simple.make_directory("/data")
    simple.sync_all("/data")
    with closing(real):
        for step in steps:
            act(real, root, step)
            act(simple, "/data", step)
        assert content(real, root) == content(simple, "/data")
    apply_crash(base / "journal", random.Random(0), torn=False)
    simple.crash(torn=False)
    assert content(SystemDisk(), root) == content(simple, "/data")
