"""Page-aligned memory by which bytes that lie anywhere reach a disk past the page cache, which takes only blocks."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from millstream.storage.disk import Buffer

STAGING_BYTES: Final = 1024 * 1024
"""What is written at once: the disk's own speed, and little of the processor's cache."""


class Staging:
    """For one thread. Memory is taken when it is first used."""

    __slots__ = ("_view",)

    def __init__(self) -> None:
        self._view: memoryview | None = None

    def pieces(self, buffers: Iterable[Buffer]) -> Iterator[memoryview]:
        """The bytes of ``buffers``, one after the other, in pieces of ``STAGING_BYTES`` and a last one of what is left.

        A piece is valid until the next one is requested.
        """
        if self._view is None:
            self._view = memoryview(mmap.mmap(-1, STAGING_BYTES))
        staging = self._view
        filled = 0
        for buffer in buffers:
            count = len(buffer)
            if filled + count < STAGING_BYTES:
                staging[filled : filled + count] = buffer
                filled += count
                continue
            rest = memoryview(buffer)
            while rest:
                count = min(len(rest), STAGING_BYTES - filled)
                staging[filled : filled + count] = rest[:count]
                filled += count
                rest = rest[count:]
                if filled == STAGING_BYTES:
                    yield staging
                    filled = 0
        if filled:
            yield staging[:filled]
