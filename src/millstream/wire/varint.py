"""Kafka's variable-length integers: seven bits per byte, lowest first.

``uvarint`` (lengths and tags of messages) is unsigned and at most 32 bits; ``varint`` and ``varlong`` (inside records)
are zig-zag encoded. Readers return the value and the position after it. At the end of the buffer they raise
``IndexError``, which every public entry converts, and for a number that is longer than its type ``ProtocolError``.
"""

from collections.abc import Sequence

from millstream.wire.errors import ProtocolError

UVARINT_MAX = (1 << 32) - 1


def read_uvarint(buf: Sequence[int], pos: int) -> tuple[int, int]:
    """Read an unsigned 32-bit number of one to five bytes."""
    byte = buf[pos]
    if byte < 0x80:
        return byte, pos + 1
    return uvarint_rest(buf, byte, pos + 1)


def uvarint_rest(buf: Sequence[int], first: int, pos: int) -> tuple[int, int]:
    """Read the rest of a number whose ``first`` byte, at ``pos - 1``, has the continuation bit."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ProtocolError("number of more than five bytes")
    if value > UVARINT_MAX:
        raise ProtocolError("number of more than 32 bits")
    return value, pos


def read_varlong(buf: Sequence[int], pos: int) -> tuple[int, int]:
    """Read a zig-zag number of up to 64 bits."""
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    value = byte & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ProtocolError("number of more than ten bytes")
    if value >> 64:
        raise ProtocolError("number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), pos


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned number.

    Raises:
        ValueError: the number is negative.
    """
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varlong(value: int) -> bytes:
    """The bytes of a signed number of up to 64 bits."""
    return uvarint((value << 1) ^ (value >> 63))
