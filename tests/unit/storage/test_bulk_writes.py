"""Large writes past the page cache: every byte arrives where it belongs, whatever the alignment and the file system."""

from __future__ import annotations

import errno
import mmap
import random
from typing import TYPE_CHECKING

import pytest

from millstream.storage.disk import DIRECT_BLOCK_BYTES, SystemDisk, SystemFile, read_file
from millstream.storage.segments.bulk_writes import BulkWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ARENA_BYTES = 4 * 1024 * 1024
LEAST = 64 * 1024


@pytest.fixture
def arena() -> memoryview:
    view = memoryview(mmap.mmap(-1, ARENA_BYTES))
    view[:] = random.Random(1).randbytes(ARENA_BYTES)
    return view


class Watched(SystemFile):
    """Counts what goes past the page cache; refuses it or takes part of it when told to."""

    def __init__(self, path: str) -> None:
        file = SystemDisk().open(path, create=True)
        assert isinstance(file, SystemFile)
        super().__init__(path, file._fd)
        self.direct = 0
        self.at_most = ARENA_BYTES
        self.error = 0

    def write_direct(self, buffers: Sequence[memoryview], position: int) -> int:
        if self.error:
            raise OSError(self.error, "told to", self.path)
        whole = b"".join(buffers)[: self.at_most]
        self.direct += self.pwritev([whole], position)
        return len(whole)


def cut_up(rng: random.Random, sizes: Sequence[int]) -> list[int]:
    spans: list[int] = []
    for size in sizes:
        start = rng.randrange(ARENA_BYTES - size)
        spans += (start, start + size)
    return spans


def content(arena: memoryview, spans: Sequence[int]) -> bytes:
    return b"".join(arena[start:end] for start, end in zip(spans[::2], spans[1::2], strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_pieces_of_any_size_at_any_place_arrive_in_order(tmp_path: Path, arena: memoryview, seed: int) -> None:
    rng = random.Random(seed)
    path = str(tmp_path / "segment")
    file = SystemDisk().open(path, create=True)
    writer = BulkWriter(arena, LEAST)
    expected = b""
    for _ in range(6):
        choices = (61, 4096, 29_525, 131_072, rng.randrange(1, 200_000))
        sizes = rng.choices(choices, k=rng.randrange(1, 12))
        spans = cut_up(rng, sizes)
        assert writer.write(file, spans, len(expected)) == sum(sizes)
        expected += content(arena, spans)
    file.close()
    assert bytes(read_file(SystemDisk(), path)) == expected


def test_whole_blocks_of_a_large_write_go_past_the_page_cache_from_where_they_lie(
    tmp_path: Path, arena: memoryview
) -> None:
    file = Watched(str(tmp_path / "segment"))
    spans = [1000, 131_072, 262_144, 393_216, 524_288, 524_388]
    assert BulkWriter(arena, LEAST).write(file, spans, 1000) == 261_244
    assert file.direct == 2 * 131_072 - DIRECT_BLOCK_BYTES
    assert bytes(read_file(SystemDisk(), file.path))[1000:] == content(arena, spans)
    file.close()


def test_a_small_write_and_one_that_is_told_to_go_through_the_page_cache(tmp_path: Path, arena: memoryview) -> None:
    file = Watched(str(tmp_path / "segment"))
    BulkWriter(arena, LEAST).write(file, [0, LEAST - 1], 0)
    BulkWriter(arena, None).write(file, [0, 1_000_000], LEAST - 1)
    assert file.direct == 0
    assert file.size() == LEAST - 1 + 1_000_000
    file.close()


def test_a_file_system_without_direct_writes_is_asked_once(tmp_path: Path, arena: memoryview) -> None:
    file = Watched(str(tmp_path / "segment"))
    writer = BulkWriter(arena, LEAST)
    file.error = errno.EINVAL
    writer.write(file, [0, 500_000], 0)
    file.error = 0
    writer.write(file, [500_000, 900_000], 500_000)
    assert file.direct == 0
    assert bytes(read_file(SystemDisk(), file.path)) == bytes(arena[:900_000])
    file.close()


def test_what_a_direct_write_does_not_take_follows_through_the_page_cache(tmp_path: Path, arena: memoryview) -> None:
    file = Watched(str(tmp_path / "segment"))
    file.at_most = 10_240
    BulkWriter(arena, LEAST).write(file, [4096, 500_000, 700_001, 900_000], 0)
    assert bytes(read_file(SystemDisk(), file.path)) == content(arena, [4096, 500_000, 700_001, 900_000])
    file.close()


def test_a_full_disk_is_an_error(tmp_path: Path, arena: memoryview) -> None:
    file = Watched(str(tmp_path / "segment"))
    file.error = errno.ENOSPC
    with pytest.raises(OSError, match="told to"):
        BulkWriter(arena, LEAST).write(file, [0, 500_000], 0)
    file.close()
