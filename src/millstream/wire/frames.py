"""Whole frames in one call: an int32 size, a header, a body.

The size counts the bytes after it. The body is encoded directly after the header in the same buffer, and the size is
set last, so nothing is copied twice. ``EncodeError`` and ``UnsupportedVersion`` come from the codec.
"""

import struct
from typing import Final

from millstream.wire.codec import encode_message
from millstream.wire.headers import encode_request_header, response_header_bytes
from millstream.wire.schema import Request, Response

SIZE_BYTES: Final = 4
"""Size of a frame's length prefix."""

_pack_size_into = struct.Struct(">i").pack_into


def response_frame(message: Response, version: int, correlation_id: int) -> bytearray:
    """A whole response in one buffer: size, header, body."""
    head = bytearray(b"\0\0\0\0" + response_header_bytes(message.API_KEY, version, correlation_id))
    return _sized(encode_message(message, version, head))


def request_frame(message: Request, version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """A whole request in one buffer: size, header, body."""
    head = bytearray(b"\0\0\0\0" + encode_request_header(message.API_KEY, version, correlation_id, client_id))
    return _sized(encode_message(message, version, head))


def _sized(frame: bytearray) -> bytearray:
    _pack_size_into(frame, 0, len(frame) - SIZE_BYTES)
    return frame
