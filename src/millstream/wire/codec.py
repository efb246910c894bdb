"""Encodes and decodes Kafka messages.

A function for an (API, version) pair is generated, compiled and kept on first use (about a millisecond each).
``warm_up`` does that for chosen pairs before a broker forks or serves. ``generated_source`` returns the generated text.
This module handles bodies only: headers are in ``wire.headers``, whole frames in ``wire.frames``.

Decoders read ``buf[pos:end]`` and, except for requests, refuse trailing bytes. They accept any bytes and raise only
``ProtocolError``. A ``records`` field is a ``memoryview`` into ``buf``; everything else is copied. Encoders raise
``EncodeError`` for a value that the version cannot carry, and omit fields that the version does not have.

All functions are synchronous, keep no state but the compiled functions, and may be called in any process.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, TypeVar

from millstream.wire.apis import API_VERSIONS, APIS, api_name
from millstream.wire.codegen import Source
from millstream.wire.decoding import decoder_source
from millstream.wire.encoding import encoder_source
from millstream.wire.errors import EncodeError, UnsupportedVersion
from millstream.wire.headers import (
    RequestHeader,
    encode_request_header,
    flexible_from,
    parse_request_header,
    response_header_bytes,
    response_header_version,
)
from millstream.wire.schema import Embedded, Message, Piece, Request, Response

__all__ = [
    "API_VERSIONS",
    "Decoder",
    "Encoder",
    "RequestHeader",
    "api_name",
    "decode_message",
    "decode_request",
    "decode_response",
    "encode_message",
    "encode_request",
    "encode_request_header",
    "encode_response",
    "encode_response_vectored",
    "flexible_from",
    "generated_source",
    "message_decoder",
    "message_encoder",
    "parse_request_header",
    "request_decoder",
    "response_header_bytes",
    "response_header_version",
    "warm_up",
]

Decoder: TypeAlias = Callable[[Piece, int, int], Any]
"""``decode(buf, pos, end) -> Message``"""
Encoder: TypeAlias = Callable[[Any, bytearray], bytearray]
"""``encode(message, out) -> out``; the body is appended to ``out``"""
_VectoredEncoder: TypeAlias = Callable[[Any, bytearray, list[Piece]], bytearray]

_M = TypeVar("_M", bound=Message)

_request_decoders: dict[int, Decoder] = {}
_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_vectored: dict[tuple[type[Message], int], _VectoredEncoder] = {}

_BAD_VALUE = (struct.error, TypeError, AttributeError, UnicodeEncodeError, OverflowError)


def decode_request(api_key: int, version: int, buf: Piece, pos: int, end: int) -> Request:
    """Decode the body of a request.

    Raises:
        UnsupportedVersion: the API or the version is not declared.
        ProtocolError: the bytes are not such a request.
    """
    decode = _request_decoders.get(api_key << 16 | version)
    if decode is None:
        decode = request_decoder(api_key, version)
    return decode(buf, pos, end)


def decode_response(api_key: int, version: int, buf: Piece, pos: int, end: int) -> Response:
    """Decode the body of a response; errors as in ``decode_request``."""
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersion(f"{api_name(api_key)} is not declared")
    return message_decoder(api.response, version)(buf, pos, end)


def decode_message(cls: type[_M], version: int, buf: Piece, pos: int = 0, end: int | None = None) -> _M:
    """Decode any declared message; ``end`` defaults to all of ``buf``."""
    return message_decoder(cls, version)(buf, pos, len(buf) if end is None else end)


def encode_request(message: Request, version: int) -> bytearray:
    """Encode the body of a request."""
    return encode_message(message, version)


def encode_response(message: Response, version: int) -> bytearray:
    """Encode the body of a response into one buffer. Record batches are copied into it."""
    return encode_message(message, version)


def encode_message(message: Message, version: int, out: bytearray | None = None) -> bytearray:
    """Append the encoded message to ``out``, or to a new bytearray, and return it.

    Raises:
        EncodeError: a value does not fit its field; the content of ``out`` is then undefined.
        UnsupportedVersion: the version is not declared.
    """
    encode = _encoders.get((type(message), version))
    if encode is None:
        encode = message_encoder(type(message), version)
    try:
        return encode(message, bytearray() if out is None else out)
    except _BAD_VALUE as error:
        raise EncodeError(f"{type(message).__name__} v{version}: {error}") from error


def encode_response_vectored(message: Response, version: int, head: bytes = b"") -> list[Piece]:
    """Encode for a vectored send: ``head`` and the body, as buffers in order.

    Buffers of record batches are passed through, except small ones, which are copied. The caller keeps their memory
    alive until the last byte is sent. The first buffer is always a bytearray that starts with ``head``.
    """
    key = (type(message), version)
    encode = _vectored.get(key)
    if encode is None:
        encode = _vectored[key] = _compile(type(message), version, "encode_vectored")
    parts: list[Piece] = []
    try:
        last = encode(message, bytearray(head), parts)
    except _BAD_VALUE as error:
        raise EncodeError(f"{type(message).__name__} v{version}: {error}") from error
    if last:
        parts.append(last)
    return parts


def request_decoder(api_key: int, version: int) -> Decoder:
    """The function behind ``decode_request`` for one pair, for a caller that keeps it."""
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersion(f"{api_name(api_key)} is not declared")
    decode = message_decoder(api.request, version)
    _request_decoders[api_key << 16 | version] = decode
    return decode


def message_decoder(cls: type[Message], version: int) -> Decoder:
    """The compiled decoder of one message at one version."""
    decode = _decoders.get((cls, version))
    if decode is None:
        decode = _decoders[cls, version] = _compile(cls, version, "decode")
    return decode


def message_encoder(cls: type[Message], version: int) -> Encoder:
    """The compiled encoder of one message at one version. It raises plain errors instead of ``EncodeError``."""
    encode = _encoders.get((cls, version))
    if encode is None:
        encode = _encoders[cls, version] = _compile(cls, version, "encode")
    return encode


def warm_up(pairs: Iterable[tuple[int, int]]) -> None:
    """Compile the request decoder and the response encoder of these (API key, version) pairs now."""
    for api_key, version in pairs:
        request_decoder(api_key, version)
        message_encoder(APIS[api_key].response, version)


def generated_source(cls: type[Message], version: int, what: Literal["decode", "encode", "encode_vectored"]) -> str:
    """The generated Python source for a message."""
    return _source(cls, version, what).text()


def _source(cls: type[Message], version: int, what: Literal["decode", "encode", "encode_vectored"]) -> Source:
    low, high = cls.VERSIONS
    if not low <= version <= high:
        raise UnsupportedVersion(f"{cls.__name__} v{version} is not declared, {low} to {high} are")
    if what == "decode":
        # Kafka ignores bytes after a request, and librdkafka 2.16 sends such bytes: its Metadata request for all
        # topics has three bytes too many.
        return decoder_source(cls, version, lenient=issubclass(cls, Embedded | Request))
    return encoder_source(cls, version, what == "encode_vectored")


def _compile(cls: type[Message], version: int, what: Literal["decode", "encode", "encode_vectored"]) -> Any:
    function = "decode" if what == "decode" else "encode"
    return _source(cls, version, what).compile(function, f"millstream.wire {cls.__name__} v{version} {what}")
