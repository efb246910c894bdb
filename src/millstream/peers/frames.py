"""Frames between brokers: a bounded head, a body of lent bytes, and checksums over both.

::

    frame  │ header 24 │ head (messages, see ``items``) │ body (record batches, in the order of the messages) │

    header │ magic 4 │ kind 1 │ zero 3 │ head bytes 4 │ body bytes 4 │ CRC-32C of the body 4 │
           │ CRC-32C of the 20 bytes before and of the head 4 │

One frame carries all messages of one turn from a shard to one shard of a peer, for all Raft groups together. The body
is never joined: a frame is a list of buffers for ``sendmsg``, and the record batches in it are views that the log cache
lends until the kernel has taken them. The receiver reserves memory for the whole body before it reads it.

**Bad input.** A header with another magic, an unknown kind, a length above its bound or a wrong checksum is
``Corruption``: nothing after it can be trusted, so the connection is closed. A body whose checksum does not match is
``Corruption`` before any of its messages is decoded. Nothing is allocated for a length that was not checked.

All integers are little-endian.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"MSP1"

HEADER_BYTES: Final = 24

HEAD_BYTES_MAX: Final = 1 << 20
"""Enough for the heartbeats of 20,000 groups; a sender starts another frame before this."""

BODY_BYTES_MAX: Final = 128 << 20
"""Of the format. A connection has a lower bound of its own, the memory that a frame may reserve."""

HELLO_BYTES_MAX: Final = 64 << 10
"""Head of the first frame, whose sender is not known yet."""

_HEADER: Final = struct.Struct("<4sBxxxIII")
_CRC: Final = struct.Struct("<I")


class FrameKind(IntEnum):
    """Kind of a frame. The first frame of a connection, and no other, is a hello."""

    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    PROBE = 4
    PROBE_ANSWER = 5
    TURN = 6


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """A header whose bounds were checked. ``head_crc`` covers it and the head (`check_head`)."""

    kind: FrameKind
    head_bytes: int
    body_bytes: int
    body_crc: int
    head_crc: int


def encode_frame(kind: FrameKind, head: Sequence[bytes | bytearray], body: Iterable[Buffer] = ()) -> list[Buffer]:
    """The buffers of a frame, to be sent in order. The first holds header and head, the others are those of ``body``.

    The caller keeps the memory behind ``body`` until they are sent.
    """
    lent = list(body)
    body_bytes = 0
    body_crc = 0
    for buffer in lent:
        body_bytes += len(buffer)
        body_crc = crc32c(buffer, body_crc)
    joined = b"".join(head)
    assert len(joined) <= HEAD_BYTES_MAX, f"a frame's head of {len(joined)} bytes"
    assert body_bytes <= BODY_BYTES_MAX, f"a frame's body of {body_bytes} bytes"
    fixed = _HEADER.pack(MAGIC, kind, len(joined), body_bytes, body_crc)
    first = b"".join((fixed, _CRC.pack(crc32c(joined, crc32c(fixed))), joined))
    return [first, *lent]


def decode_header(data: Buffer, body_bytes_max: int = BODY_BYTES_MAX) -> FrameHeader:
    """The header in the first `HEADER_BYTES` of ``data``.

    Raises:
        Corruption: it is no header of this format, or claims more than a frame may have.
    """
    magic, kind, head_bytes, body_bytes, body_crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Corruption(f"a frame begins with {bytes(magic).hex()}, expected {MAGIC.hex()}")
    if kind not in _KINDS:
        raise Corruption(f"a frame of unknown kind {kind}")
    head_bytes_max = HEAD_BYTES_MAX if kind == FrameKind.TURN else HELLO_BYTES_MAX
    if head_bytes > head_bytes_max:
        raise Corruption(f"a frame claims a head of {head_bytes} bytes, the bound is {head_bytes_max}")
    body_bytes_max = body_bytes_max if kind == FrameKind.TURN else 0
    if body_bytes > body_bytes_max:
        raise Corruption(f"a frame claims a body of {body_bytes} bytes, the bound is {body_bytes_max}")
    (head_crc,) = _CRC.unpack_from(data, _HEADER.size)
    return FrameHeader(FrameKind(kind), head_bytes, body_bytes, body_crc, head_crc)


def check_head(header: FrameHeader, data: Buffer) -> memoryview:
    """The head after the header in ``data``, which holds both.

    Raises:
        Corruption: the checksum does not match.
    """
    view = memoryview(data)
    head = view[HEADER_BYTES : HEADER_BYTES + header.head_bytes]
    if crc32c(head, crc32c(view[: _HEADER.size])) != header.head_crc:
        raise Corruption("the head of a frame does not match its checksum")
    return head


def check_body(header: FrameHeader, body: Iterable[Buffer]) -> None:
    """Raise ``Corruption`` unless the bytes of ``body`` are those that the header sums."""
    body_crc = 0
    for buffer in body:
        body_crc = crc32c(buffer, body_crc)
    if body_crc != header.body_crc:
        raise Corruption("the body of a frame does not match its checksum")


_KINDS: Final = frozenset(FrameKind)
