"""A cursor over a chain that reads integers, varints, strings and sub-chains in Kafka's encodings, across fragments.

Every read checks its bounds first: a length beyond the end raises ``EndOfBuffer``, and nothing is allocated for it. A
value inside one fragment is unpacked in place; a value across fragments is gathered first. Strings must be UTF-8
(``Rejected`` otherwise). The cursor borrows the chain and holds no reference.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from millstream.errors import Rejected

if TYPE_CHECKING:
    from millstream.iobuf.buf import IoBuf

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_MAX_UVARINT_BYTES = 5


class EndOfBuffer(Rejected):
    """A read beyond the end of the buffer."""


class Reader:
    """A read position in a chain. ``position`` counts from the chain's front, ``remaining`` to its end (bytes)."""

    __slots__ = ("_buf", "_end", "_next_part", "_pos", "_view", "position")

    def __init__(self, buf: IoBuf, position: int = 0) -> None:
        if position < 0 or position > len(buf):
            raise EndOfBuffer(f"position {position} of {len(buf)}")
        self._buf = buf
        self.position = 0
        self._next_part = 0
        self._view = memoryview(b"")
        self._pos = 0
        self._end = 0
        self.skip(position)

    @property
    def remaining(self) -> int:
        return len(self._buf) - self.position

    def _need(self, size: int) -> None:
        if size < 0 or size > len(self._buf) - self.position:
            raise EndOfBuffer(f"{size} bytes wanted at {self.position}, {self.remaining} there")

    def _load(self) -> None:
        """Continue with the next part."""
        fragment, start, end = self._buf.parts[self._next_part]
        self._next_part += 1
        self._view = fragment.view
        self._pos = start
        self._end = end

    def skip(self, size: int) -> None:
        self._need(size)
        self.position += size
        while size:
            if self._pos == self._end:
                self._load()
            step = min(size, self._end - self._pos)
            self._pos += step
            size -= step

    def bytes_(self, size: int) -> bytes:
        """The next ``size`` bytes, copied."""
        self._need(size)
        if size <= self._end - self._pos:
            data = bytes(self._view[self._pos : self._pos + size])
            self._pos += size
            self.position += size
            return data
        data = self._buf.copy(self.position, size)
        self.skip(size)
        return data

    def share(self, size: int) -> IoBuf:
        """The next ``size`` bytes as a chain of their own. Nothing is copied; the caller releases it."""
        self._need(size)
        shared = self._buf.share(self.position, size)
        self.skip(size)
        return shared

    def _unpack(self, form: struct.Struct) -> int:
        size = form.size
        position = self._pos
        if position + size <= self._end:
            self._pos = position + size
            self.position += size
            return form.unpack_from(self._view, position)[0]
        return form.unpack(self.bytes_(size))[0]

    def int8(self) -> int:
        value = self.uint8()
        return value - 256 if value > 127 else value

    def uint8(self) -> int:
        if self._pos == self._end:
            self._need(1)
            self._load()
        value = self._view[self._pos]
        self._pos += 1
        self.position += 1
        return value

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def uint32(self) -> int:
        return self._unpack(_UINT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def uvarint(self) -> int:
        """Unsigned LEB128 of at most 32 bits, as Kafka's flexible versions use for lengths."""
        value = 0
        for index in range(_MAX_UVARINT_BYTES):
            byte = self.uint8()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise Rejected(f"a varint of more than 32 bits before byte {self.position}")

    def _text(self, size: int) -> str:
        try:
            return self.bytes_(size).decode()
        except UnicodeDecodeError:
            raise Rejected(f"a string before byte {self.position} is not UTF-8") from None

    def string(self) -> str | None:
        """int16 length (−1: null) and UTF-8 text."""
        size = self.int16()
        return None if size == -1 else self._text(size)

    def compact_string(self) -> str | None:
        """Unsigned varint length + 1 (0: null) and UTF-8 text."""
        size = self.uvarint()
        return None if size == 0 else self._text(size - 1)

    def data(self) -> IoBuf | None:
        """int32 length (−1: null) and bytes, shared."""
        size = self.int32()
        return None if size == -1 else self.share(size)

    def compact_data(self) -> IoBuf | None:
        """Unsigned varint length + 1 (0: null) and bytes, shared."""
        size = self.uvarint()
        return None if size == 0 else self.share(size - 1)
