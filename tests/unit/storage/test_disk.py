"""The production disk, its small verbs, and the cache of descriptors."""

import contextlib
import errno
import mmap
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import (
    DIRECT_BLOCK_BYTES,
    FileCache,
    SystemDisk,
    load_disk,
    make_directories,
    read_at,
    read_file,
    replace_file,
    write_all,
)
from sim.engine.disk import SimDisk


class ShortFile:
    """Takes at most seven bytes a call."""

    path = "short"

    def __init__(self, most: int = 7) -> None:
        self.data = bytearray()
        self.most = most

    def pwritev(self, buffers, position):
        whole = b"".join(bytes(b) for b in buffers)[: self.most]
        self.data[position : position + len(whole)] = whole
        return len(whole)


def open_below(directory: Path) -> int:
    """How many descriptors of this process are of files in a directory."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that the list itself was read from
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(link.startswith(f"{os.path.realpath(directory)}/") for link in links)


def test_write_all_finishes_short_writes_across_buffers() -> None:
    file = ShortFile()
    assert write_all(file, [b"abc", b"", memoryview(b"defgh" * 4), b"z"], 0) == 24
    assert bytes(file.data) == b"abc" + b"defgh" * 4 + b"z"


def test_write_all_reports_a_file_that_takes_nothing() -> None:
    with pytest.raises(OSError, match="takes no more") as caught:
        write_all(ShortFile(0), [b"abc"], 0)
    assert caught.value.errno == errno.EIO


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    disk = SystemDisk()
    file = disk.open(f"{tmp_path}/many", create=True)
    assert write_all(file, [bytes([n % 251]) for n in range(3000)], 10) == 3000
    assert read_at(file, 10, 5000) == bytes(n % 251 for n in range(3000))
    file.close()


def test_replace_file_leaves_no_temporary_behind(tmp_path: Path) -> None:
    disk = SystemDisk()
    replace_file(disk, f"{tmp_path}/state", b"one")
    replace_file(disk, f"{tmp_path}/state", b"second")
    assert read_file(disk, f"{tmp_path}/state") == b"second"
    assert disk.list(str(tmp_path)) == ["state"]


def test_make_directories_names_what_must_be_synced(tmp_path: Path) -> None:
    disk = SystemDisk()
    root = str(tmp_path)
    assert make_directories(disk, f"{root}/a/b/c") == [root, f"{root}/a", f"{root}/a/b"]
    assert make_directories(disk, f"{root}/a/b/c") == []
    assert make_directories(disk, f"{root}/a/b/d") == [f"{root}/a/b"]


def test_a_directory_whose_sync_failed_is_synced_by_the_next_attempt() -> None:
    disk = SimDisk(random.Random(1))
    make_directories(disk, "/data/topics/t/0")  # an attempt whose syncs failed
    make_directories_durably(disk, "/data/topics/t/0", 4)
    disk.crash(torn=False)
    assert disk.list("/data/topics/t") == ["0"]


def test_opening_what_is_not_there_does_not_create_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SystemDisk().open(f"{tmp_path}/none")


def test_sync_all_reports_no_error_on_a_real_directory(tmp_path: Path) -> None:
    SystemDisk().sync_all(str(tmp_path))
    assert SystemDisk().free_bytes(str(tmp_path)) > 0


def test_a_watched_file_system_is_synced_through_the_descriptor_from_then(tmp_path: Path, monkeypatch) -> None:
    """Linux tells an error of writing back once to those that open a descriptor later, and to each that was open."""
    disk = SystemDisk()
    disk.watch(str(tmp_path))
    opened: list[str] = []
    monkeypatch.setattr(os, "open", lambda path, *_: opened.append(path))
    disk.sync_all(str(tmp_path))
    assert opened == []


@pytest.mark.parametrize("watched", [False, True])
def test_sync_all_reaches_a_directory_that_is_on_another_file_system(tmp_path: Path, monkeypatch, watched) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        os.symlink(other, tmp_path / "topics")
        (tmp_path / "wal").mkdir()
        disk = SystemDisk()
        if watched:
            disk.watch(str(tmp_path))
        synced: list[int] = []

        def syncfs(fd: int) -> int:
            synced.append(os.fstat(fd).st_dev)
            return 0

        monkeypatch.setattr("millstream.storage.disk._libc", lambda: SimpleNamespace(syncfs=syncfs))
        disk.sync_all(str(tmp_path))
        assert sorted(synced) == sorted({os.stat(tmp_path).st_dev, os.stat(other).st_dev})


def test_files_written_past_the_page_cache_hold_one_descriptor_each(tmp_path: Path) -> None:
    block = memoryview(mmap.mmap(-1, DIRECT_BLOCK_BYTES))
    files = [SystemDisk().open(f"{tmp_path}/{n}", create=True) for n in range(4)]
    for file in files:
        assert file.write_direct([block], 0) == DIRECT_BLOCK_BYTES
    assert open_below(tmp_path) == len(files)
    for file in files:
        file.close()


def test_much_is_handed_to_the_disk_in_pieces_until_it_takes_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [1 << 19, 1 << 19, 4096, 1 << 20, 1 << 21, 4096]
    blocks = [memoryview(mmap.mmap(-1, size)) for size in sizes]
    for number, block in enumerate(blocks, 1):
        block[:] = bytes([number]) * len(block)
    handed: list[int] = []
    pwritev = os.pwritev

    def note(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        handed.append(sum(map(len, buffers)))
        return pwritev(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", note)
    file = SystemDisk().open(f"{tmp_path}/file", create=True)
    assert file.write_direct(blocks, 4096) == sum(sizes)
    assert handed == [1 << 20, 4096, 1 << 20, 1 << 21, 4096]
    assert read_at(file, 4096, sum(sizes)) == b"".join(blocks)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, position: 4096)
    assert file.write_direct(blocks, 0) == 4096
    file.close()


def test_load_disk_finds_a_factory_by_name() -> None:
    assert isinstance(load_disk(""), SystemDisk)
    assert isinstance(load_disk("millstream.storage.disk:SystemDisk"), SystemDisk)


def test_the_cache_closes_the_longest_unused_and_never_one_in_use(tmp_path: Path) -> None:
    cache = FileCache(SystemDisk(), limit=3)
    paths = [f"{tmp_path}/{n}" for n in range(6)]
    held = cache.acquire(paths[0], create=True)
    for path in paths[1:]:
        cache.release(cache.acquire(path, create=True))
    assert len(cache) == 3
    held.pwritev([b"still open"], 0)
    files = [cache.acquire(path) for path in paths]
    assert files[0] is held
    assert len(cache) == 6
    for file in files:
        cache.release(file)
    cache.release(held)
    cache.acquire(paths[5])
    assert open_below(tmp_path) == len(cache)
    cache.close()
    assert open_below(tmp_path) == 0


def test_a_forgotten_file_is_closed_by_its_last_user_and_its_name_means_a_new_one(tmp_path: Path) -> None:
    cache = FileCache(SystemDisk())
    path = f"{tmp_path}/f"
    old = cache.acquire(path, create=True)
    os.unlink(path)
    cache.forget(path)
    new = cache.acquire(path, create=True)
    new.pwritev([b"new"], 0)
    assert old.size() == 0
    cache.release(old)
    with pytest.raises(OSError, match="Bad file descriptor"):
        old.size()
    assert new.size() == 3
    cache.release(new)
    cache.close()
