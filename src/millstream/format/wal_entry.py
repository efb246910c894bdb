"""What one entry of a log in the object store has: batches of many partitions, each found and checked on its own.

::

    0        4          8      8 + length
    │ length │ CRC-32C │ head │ batches of the first part │ batches of the second part │ …        little-endian

The head is MessagePack: a list of `EntryPart`. Its checksum covers the length and the head. Each part has the checksum
of its batches, so that one part can be read with one ranged request. Batches are as in a segment file: whole, with
their offsets and leader epochs.

In the store an entry is the payload of a sealed file (`format.sealed`), whose header is in front of it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.model.quantities import FilePosition, Offset
from millstream.model.shared import SharedPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

SEALED_HEADER_BYTES: Final = 16
"""Of `format.sealed`, in front of the payload of an object."""

_PREFIX: Final = struct.Struct("<II")


class EntryPart(msgspec.Struct, frozen=True, array_like=True):
    """The batches of one partition in an entry; none if only the start of its log has moved. Fields are only ever added
    at the end.
    """

    partition: SharedPartition
    base_offset: Offset
    end_offset: Offset
    """Exclusive."""

    start_offset: Offset
    """Where the log of the partition starts: nothing below it is to come back."""

    size_bytes: int
    crc: int


class FoundPart(msgspec.Struct, frozen=True):
    """A part of an entry, and where its batches are in the object."""

    part: EntryPart
    position: FilePosition


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[EntryPart]).decode


def encode_entry(parts: Sequence[EntryPart], batches: Sequence[Buffer]) -> bytes:
    """The payload of an entry; ``batches`` are those of each part."""
    head = _encode(parts)
    length = len(head).to_bytes(4, "little")
    return b"".join((length, crc32c(head, crc32c(length)).to_bytes(4, "little"), head, *batches))


def head_bytes(start: Buffer) -> int:
    """How many bytes of an object the sealed header and the head take; ``start`` are its first 24 at least."""
    if len(start) < SEALED_HEADER_BYTES + _PREFIX.size:
        raise Corruption("an entry of a log that is too short")
    length, _ = _PREFIX.unpack_from(start, SEALED_HEADER_BYTES)
    return SEALED_HEADER_BYTES + _PREFIX.size + length


def decode_head(start: Buffer) -> list[FoundPart]:
    """The parts of an entry. ``start`` are the first `head_bytes` of its object. Raises Corruption."""
    end = head_bytes(start)
    view = memoryview(start)
    head = bytes(view[SEALED_HEADER_BYTES + _PREFIX.size : end])
    _, crc = _PREFIX.unpack_from(start, SEALED_HEADER_BYTES)
    length = bytes(view[SEALED_HEADER_BYTES : SEALED_HEADER_BYTES + 4])
    if len(view) < end or crc32c(head, crc32c(length)) != crc:
        raise Corruption("the head of an entry of a log does not match its checksum")
    try:
        parts = _decode(head)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the head of an entry of a log cannot be read: {error}") from error
    found: list[FoundPart] = []
    for part in parts:
        found.append(FoundPart(part, FilePosition(end)))
        end += part.size_bytes
    return found


def check_part(part: EntryPart, data: Buffer) -> None:
    """Raise Corruption unless ``data`` are the batches of the part."""
    if len(data) != part.size_bytes or crc32c(data) != part.crc:
        raise Corruption(f"the offsets {part.base_offset} to {part.end_offset} of an entry of a log are damaged")
