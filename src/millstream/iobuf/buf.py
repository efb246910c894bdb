"""A chain of fragments that reads as one run of bytes.

::

    IoBuf ── [fragment a, 40..512] ── [fragment b, 0..131072] ── [fragment a', 0..17]

`append` hands one reference over to the chain; `release` gives all of them back. `share` makes a second chain over
the same bytes (nothing is copied, counts go up); `copy` makes bytes of its own. Bytes of a shared chain must not be
changed by anyone: there is no copy on write.

A chain belongs to one shard and lives in one thread. Positions are relative to the chain's front, which `trim_front`
moves. Reading or sharing beyond the end raises `EndOfBuffer`; nothing is touched then. After `release` the chain is
empty and may be filled again; forgetting to release is what `Arena.live_fragments` finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.iobuf.reader import EndOfBuffer, Reader

if TYPE_CHECKING:
    from millstream.iobuf.fragment import Piece


class IoBuf:
    """See the module. Iterate parts through `parts`, bytes through `views`."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[tuple[Piece, int, int]] = []  # (fragment, start, end), never empty ranges
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, fragment: Piece, start: int, end: int) -> None:
        """Bytes [start, end) of `fragment` join the end; the chain takes over one of the caller's references."""
        if start >= end:
            if start > end:
                raise AssertionError(f"a part from {start} to {end}")
            fragment.release()
            return
        self._parts.append((fragment, start, end))
        self._size += end - start

    def append_buf(self, other: IoBuf) -> None:
        """All parts of `other` join the end; `other` is empty afterwards."""
        self._parts.extend(other._parts)
        self._size += other._size
        other._parts = []
        other._size = 0

    @property
    def parts(self) -> list[tuple[Piece, int, int]]:
        """(fragment, start, end) in order. Not a copy: look, do not change."""
        return self._parts

    def views(self) -> list[memoryview]:
        """The bytes in order, one view a part: what a vectored send or write takes. Valid until `release` or
        `trim_front`.
        """
        return [fragment.view[start:end] for fragment, start, end in self._parts]

    def share(self, position: int, size: int) -> IoBuf:
        """A chain over bytes [position, position + size) of this one. No byte moves; each has to be released."""
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
        """Bytes [position, position + size), copied out."""
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
        """Forget the first `size` bytes; fragments that are passed completely are released."""
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
        """Give every reference back; the chain is empty afterwards. Safe to call twice."""
        parts = self._parts
        self._parts = []
        self._size = 0
        for fragment, _, _ in parts:
            fragment.release()

    def reader(self, position: int = 0) -> Reader:
        """A cursor from `position` on. The chain must not be trimmed or released while it is read."""
        return Reader(self, position)

    def __repr__(self) -> str:
        return f"IoBuf({self._size} bytes in {len(self._parts)} parts)"
