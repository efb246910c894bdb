"""A chain of fragments that reads as one contiguous buffer.

::

    IoBuf ── [fragment a, 40..512] ── [fragment b, 0..131072] ── [fragment a', 0..17]

``append`` transfers one reference to the chain; ``release`` gives all of them back. ``share`` makes a second chain over
the same bytes: it copies nothing and raises the counts. ``copy`` returns new bytes. The bytes of a shared chain must
not be changed: there is no copy on write.

A chain belongs to one shard and one thread. Positions count from the front of the chain, which ``trim_front`` moves.
Reading or sharing beyond the end raises ``EndOfBuffer`` and changes nothing. After ``release`` the chain is empty and
can be filled again. ``Arena.live_fragments`` shows chains that were not released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf.fragment import Piece


class EndOfBuffer(Rejected):
    """A read beyond the end of the buffer."""


class IoBuf:
    """A sequence of byte ranges of fragments, read as one buffer. ``parts`` are the ranges, ``views`` the bytes."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[tuple[Piece, int, int]] = []  # (fragment, start, end); no range is empty
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @classmethod
    def sharing(cls, parts: Sequence[tuple[Piece, int, int]], size: int) -> IoBuf:
        """A new chain over these parts, ``size`` bytes in all. It adds a reference to each fragment."""
        shared = cls()
        shared._parts = [(fragment.share(), start, end) for fragment, start, end in parts]
        shared._size = size
        return shared

    def append(self, fragment: Piece, start: int, end: int) -> None:
        """Append bytes [start, end) of ``fragment``. The chain takes over one of the caller's references."""
        if start >= end:
            if start > end:
                raise AssertionError(f"a part from {start} to {end}")
            fragment.release()
            return
        self._parts.append((fragment, start, end))
        self._size += end - start

    def append_buf(self, other: IoBuf) -> None:
        """Move all parts of ``other`` to the end of this chain. ``other`` is empty afterwards."""
        self._parts.extend(other._parts)
        self._size += other._size
        other._parts = []
        other._size = 0

    @property
    def parts(self) -> list[tuple[Piece, int, int]]:
        """(fragment, start, end) in order. The list is the chain's own: the caller must not change it."""
        return self._parts

    def views(self) -> list[memoryview]:
        """The bytes in order, one view per part, for a vectored send or write. Valid until ``release`` or
        ``trim_front``.
        """
        return [fragment.view[start:end] for fragment, start, end in self._parts]

    def share(self, position: int, size: int) -> IoBuf:
        """A new chain over bytes [position, position + size). Nothing is copied; the caller releases the new chain."""
        if position < 0 or size < 0 or position + size > self._size:
            raise EndOfBuffer(f"bytes {position} to {position + size} of {self._size}")
        shared = IoBuf()
        if not size:
            return shared
        remaining = size
        for fragment, start, end in self._parts:
            length = end - start
            if position >= length:
                position -= length
                continue
            first = start + position
            taken = min(end - first, remaining)
            shared._parts.append((fragment.share(), first, first + taken))
            remaining -= taken
            if not remaining:
                break
            position = 0
        shared._size = size
        return shared

    def copy(self, position: int, size: int) -> bytes:
        """A copy of bytes [position, position + size)."""
        if position < 0 or size < 0 or position + size > self._size:
            raise EndOfBuffer(f"bytes {position} to {position + size} of {self._size}")
        pieces: list[memoryview] = []
        remaining = size
        for fragment, start, end in self._parts:
            if not remaining:
                break
            length = end - start
            if position >= length:
                position -= length
                continue
            first = start + position
            taken = min(end - first, remaining)
            pieces.append(fragment.view[first : first + taken])
            remaining -= taken
            position = 0
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def __bytes__(self) -> bytes:
        return self.copy(0, self._size)

    def trim_front(self, size: int) -> None:
        """Drop the first ``size`` bytes. Fragments that end within them are released."""
        if size < 0 or size > self._size:
            raise EndOfBuffer(f"{size} bytes to trim, {self._size} there")
        parts = self._parts
        self._size -= size
        passed = 0
        for fragment, start, end in parts:
            length = end - start
            if size < length:
                if size:
                    parts[passed] = (fragment, start + size, end)
                break
            size -= length
            passed += 1
            fragment.release()
        del parts[:passed]

    def release(self) -> None:
        """Give every reference back. The chain is empty afterwards; a second call has no effect."""
        parts = self._parts
        self._parts = []
        self._size = 0
        for fragment, _, _ in parts:
            fragment.release()

    def __repr__(self) -> str:
        return f"IoBuf({self._size} bytes in {len(self._parts)} parts)"
