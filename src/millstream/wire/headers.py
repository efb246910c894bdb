"""Headers of requests and responses, which stand before a body.

The API key is at a fixed place of a request header. API key and version decide the version of the header: 2, with
tagged fields, for flexible requests, otherwise 1. The client id is never compact. A response header is the correlation
id, and an empty tagged section if the response is flexible. ApiVersions is always answered with the plain header,
because the client does not know the broker's versions yet.

``parse_request_header`` is on the path of every request. Of an unknown API or version it parses the known fields (key,
version, correlation id, client id), so that the edge can answer UNSUPPORTED_VERSION. Invalid bytes raise
``ProtocolError``.
"""

import struct
from typing import Final

import msgspec

from millstream.wire.apis import APIS
from millstream.wire.decoding import skip_tags
from millstream.wire.errors import EncodeError, ProtocolError
from millstream.wire.schema import Piece
from millstream.wire.varint import read_uvarint

API_VERSIONS_KEY: Final = 18

HEADER_TAGS_MAX: Final = 1024
"""Maximum number of tagged fields in a request header. Kafka has defined none that a client would send."""

_START = struct.Struct(">hhih")
_unpack_start = _START.unpack_from
_pack_start = _START.pack

_FLEXIBLE_FROM: Final = {api.key: api.flexible for api in APIS.values()}
_FLEXIBLE_ANSWER_FROM: Final = _FLEXIBLE_FROM | {API_VERSIONS_KEY: 1 << 16}


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """Header of a request. Its body starts at ``body_pos``."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_pos: int


def parse_request_header(buf: Piece, pos: int, end: int) -> RequestHeader:
    """Parse the header of the request in ``buf[pos:end]``, which starts after the frame's size.

    Raises:
        ProtocolError: the bytes end early, or the client id is not UTF-8.
    """
    try:
        api_key, api_version, correlation_id, size = _unpack_start(buf, pos)
        pos += 10
        client_id: str | None = None
        if size > 0:
            stop = pos + size
            client_id = str(buf[pos:stop], "utf-8")
            pos = stop
        elif size == 0:
            client_id = ""
        if pos > end:
            raise ProtocolError("request header ends early")
        if api_version >= _FLEXIBLE_FROM.get(api_key, 1 << 16):
            pos = skip_header_tags(memoryview(buf)[:end], pos)
    except (struct.error, IndexError) as error:
        raise ProtocolError("request header ends early") from error
    except UnicodeDecodeError as error:
        raise ProtocolError("client id is not UTF-8") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, pos)


def skip_header_tags(frame: memoryview, pos: int) -> int:
    """Skip the tagged fields of a request header, of which none is used, and return the position after them.

    Raises:
        ProtocolError: there are more than ``HEADER_TAGS_MAX``, or they exceed the frame.
    """
    try:
        count, pos = read_uvarint(frame, pos)
        if count > HEADER_TAGS_MAX:
            raise ProtocolError(f"{count} tagged fields in the request header")
        pos = skip_tags(frame, count, pos)
    except IndexError as error:
        raise ProtocolError("request header ends early") from error
    if pos > len(frame):
        raise ProtocolError("request header ends early")
    return pos


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request, without the frame's size.

    Raises:
        EncodeError: a number or the client id is out of range.
    """
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    tags = b"\0" if version >= _FLEXIBLE_FROM.get(api_key, 1 << 16) else b""
    try:
        return _pack_start(api_key, version, correlation_id, size) + name + tags
    except struct.error as error:
        raise EncodeError(f"request header: {error}") from error


def response_header_bytes(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header of a response, without the frame's size: version 1 for flexible responses, otherwise 0."""
    start = correlation_id.to_bytes(4, "big", signed=True)
    return start + b"\0" if version >= _FLEXIBLE_ANSWER_FROM.get(api_key, 1 << 16) else start


def response_header_version(api_key: int, version: int) -> int:
    """1 if the response header has a tagged section, otherwise 0."""
    return 1 if version >= _FLEXIBLE_ANSWER_FROM.get(api_key, 1 << 16) else 0


def flexible_from(api_key: int) -> int:
    """First flexible version of an API's requests; above every version if no version has it."""
    return _FLEXIBLE_FROM.get(api_key, 1 << 16)
