"""Frames of the write-ahead log: past the page cache where that can be, and no less durable where it cannot."""

import errno
import os
import random
from pathlib import Path

import pytest
from storage_support import WAL, append, new_shard, read_everything, settle

from millstream.format.wal_scan import scan
from millstream.storage.disk import DIRECT_BLOCK_BYTES, SystemDisk, read_file, write_all
from millstream.storage.processes.writer import TickWriter
from millstream.storage.staging import STAGING_BYTES, Staging
from sim.engine.disk import SimDisk, SimFile

SIZES = (10, 3000, 700, STAGING_BYTES + 999, 5, 2 * STAGING_BYTES, 61)
LARGE = {"wal_file_bytes": 8 << 20, "wal_bytes": 32 << 20}


class RefusingDisk(SimDisk):
    """Takes so many direct writes, then says that there is no such thing."""

    def __init__(self, takes: int) -> None:
        super().__init__(random.Random(1))
        self.takes = takes
        self.taken = self.opened = 0

    def open_direct(self, path: str) -> SimFile:
        self.opened += 1
        file = super().open_direct(path)
        write = file.pwritev

        def pwritev(buffers, position):
            if self.taken == self.takes:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            self.taken += 1
            return write(buffers, position)

        file.pwritev = pwritev
        return file


def write_and_recover(disk: SimDisk, *, direct: bool = True) -> None:
    """Some ticks, a power failure, and a recovery that finds everything, each frame whole."""
    shard = new_shard(disk=disk, settings=LARGE)
    shard.processes.tick_writer = TickWriter(disk, os.path.dirname(WAL), 0, shard.arena.view, direct=direct)
    log = shard.open(1)
    for size in SIZES:
        append(log, 1, size)
        settle(shard)
    expected = read_everything(shard, log)
    found = scan(memoryview(read_file(disk, WAL)))
    assert [frame.bad for frame in found.frames if not frame.mended] == [frozenset()] * len(SIZES)
    disk.crash(torn=False)
    again = new_shard(disk=disk, settings=LARGE)
    assert read_everything(again, again.open(1)) == expected


def with_blocks(block_bytes: int) -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.direct_block_bytes = block_bytes
    return disk


@pytest.mark.parametrize("block_bytes", [512, 4096, 0])
def test_what_is_durable_is_recovered_whatever_the_blocks_of_the_disk(block_bytes: int) -> None:
    write_and_recover(with_blocks(block_bytes))


@pytest.mark.parametrize("takes", [0, 1, 3, 4, 6])
def test_a_disk_that_refuses_later_gets_the_whole_frame_through_the_page_cache(takes: int) -> None:
    disk = RefusingDisk(takes)
    write_and_recover(disk)
    assert disk.taken == takes


def test_without_direct_io_no_file_is_opened_for_it() -> None:
    disk = RefusingDisk(100)
    write_and_recover(disk, direct=False)
    assert disk.opened == 0


def test_an_error_that_is_not_about_direct_writes_is_told() -> None:
    disk = with_blocks(512)
    shard = new_shard(disk=disk)
    log = shard.open(1)
    append(log, 1, 10)
    settle(shard)
    failures: list[str] = []
    shard.storage.fail = lambda fault, reason: failures.append(reason)
    disk.fail = lambda kind, path: errno.EIO if kind == "write" and path == WAL else 0
    append(log, 1, 10)
    shard.run(lambda: bool(failures))
    assert "could not be written: Input/output error" in failures[0]


def test_a_real_file_takes_sectors_past_the_page_cache_or_says_that_it_cannot(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    disk = SystemDisk()
    disk.open(path, create=True).close()
    try:
        file = disk.open_direct(path)
    except OSError as error:
        assert error.errno == errno.EINVAL
        return
    with pytest.raises(OSError, match="Invalid argument"):
        file.pwritev([b"x"], 1)
    (piece,) = Staging().pieces([b"y" * DIRECT_BLOCK_BYTES])
    assert write_all(file, [piece], DIRECT_BLOCK_BYTES) == DIRECT_BLOCK_BYTES
    file.sync()
    file.close()
    assert Path(path).read_bytes() == bytes(DIRECT_BLOCK_BYTES) + b"y" * DIRECT_BLOCK_BYTES
