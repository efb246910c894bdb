"""Segment bytes on their way from the arena to the disk: large runs go past the page cache, the rest through it.

Bulk traffic is read from the log cache while it is new; a second copy of it in the page cache costs more than the write
itself, pushes out what others read, and comes back as a burst at the next sync. So from ``DIRECT_BYTES_MIN`` on, the
whole blocks of a write go to the disk with O_DIRECT, from where they lie in the arena if they are blocks there too (the
log cache aligns large batches), else by way of a staging buffer. The ends that do not fill a block, and small writes,
go through the page cache. The two never share a page, so the kernel has nothing to reconcile.

A direct write is no more durable than another: the checkpoint's sync still has to follow. Where a file system does not
do direct writes (EINVAL on the first), all bytes go through the page cache from then on. Other errors are raised as
OSError; what was written before them stays.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from millstream.storage.disk import DIRECT_BLOCK_BYTES, pieces, without, write_all
from millstream.storage.segments.run_sums import RunSums
from millstream.storage.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.storage.disk import File

DIRECT_BYTES_MIN: Final = 32 * 1024
"""A direct write of 128 KiB costs as much as one through the page cache, 31 µs; one of 512 KiB 12 µs per 128 KiB. What
goes through it comes back at the next checkpoint: 128 logs with less than 512 KiB each were 30–50 MB to be written at
once, and writes to the write-ahead log waited for 15–35 ms behind them; now it is 2 MB.
"""

_PIECE_BYTES: Final = 128 * 1024
"""Written to the page cache at once. For calls of MiBs the kernel takes pages of MiBs, which on machines that hand
free memory back are memory that the host has to find first: 240–330 µs instead of 31–35 per 128 KiB, measured.
"""


class BulkWriter:
    """Writes bytes of ``arena``, for one thread; from ``direct_bytes_min`` on past the page cache, never with None."""

    def __init__(self, arena: memoryview, direct_bytes_min: int | None) -> None:
        self._arena = arena
        self._direct_bytes_min = direct_bytes_min
        self._staging = Staging()
        self.sums = RunSums(arena)
        """Checksums of what was written to segments."""

    def write(self, file: File, spans: Sequence[int], position: int) -> int:
        """Write the arena's bytes from start to end, start to end, … at ``position``; returns how many."""
        total = sum(spans[1::2]) - sum(spans[::2])
        head = -position % DIRECT_BLOCK_BYTES
        least = self._direct_bytes_min
        if least is None or total < max(least, head + DIRECT_BLOCK_BYTES):
            return self._through_cache(file, spans, position)
        body = (total - head) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
        first, rest = _split(spans, head)
        blocks, last = _split(rest, body)
        written = self._through_cache(file, first, position)
        written += self._past_cache(file, blocks, position + written)
        return written + self._through_cache(file, last, position + written)

    def write_block(self, file: File, view: memoryview, position: int) -> None:
        """Write bytes of any size that start on a page, in memory and in the file."""
        whole = 0 if self._direct_bytes_min is None else len(view) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
        if whole:
            self._write_blocks(file, [view[:whole]], position)
        if whole < len(view):
            write_all(file, [view[whole:]], position + whole)

    def _through_cache(self, file: File, spans: Sequence[int], position: int) -> int:
        """Write some ``_PIECE_BYTES`` a call."""
        begin = position
        for piece in pieces(self._views(spans), _PIECE_BYTES):
            position += write_all(file, piece, position)
        return position - begin

    def _past_cache(self, file: File, spans: Sequence[int], position: int) -> int:
        """Write whole blocks."""
        views = self._views(spans)
        if not any(place % DIRECT_BLOCK_BYTES for place in spans):
            return self._write_blocks(file, views, position)
        begin = position
        for piece in self._staging.pieces(views):
            position += self._write_blocks(file, [piece], position)
        return position - begin

    def _views(self, spans: Sequence[int]) -> list[memoryview]:
        ends = iter(spans)
        return [self._arena[start:end] for start, end in zip(ends, ends, strict=True)]

    def _write_blocks(self, file: File, views: list[memoryview], position: int) -> int:
        done = 0
        try:
            done = file.write_direct(views, position)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct_bytes_min = None
        # What a direct write left over need not be whole blocks.
        return done + write_all(file, without(views, done), position + done)


def _split(spans: Sequence[int], size: int) -> tuple[list[int], list[int]]:
    """The first ``size`` bytes of the spans, and the others."""
    first: list[int] = []
    rest: list[int] = []
    ends = iter(spans)
    for start, end in zip(ends, ends, strict=True):
        middle = min(end, start + size)
        size -= middle - start
        if middle > start:
            first += (start, middle)
        if end > middle:
            rest += (middle, end)
    return first, rest
