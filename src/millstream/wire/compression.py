"""Kafka's four compression codecs, both ways, with a bound on the decompressed size.

=====  ======  ================================================================================================
codec  name    layout
=====  ======  ================================================================================================
0      none    the records
1      gzip    RFC 1952, up to 64 members
2      snappy  blocks in xerial's framing (magic, version, then int32 length and raw snappy each), or one raw block
3      lz4     LZ4 frame, independent blocks (Kafka's Java reader takes no others)
4      zstd    RFC 8878, any number of frames
=====  ======  ================================================================================================

``decompress`` never returns or holds more than ``limit`` bytes of output. A few hundred bytes can claim to be
gigabytes, so a claimed size is trusted only up to a small multiple of the input; beyond that, output is produced and
counted step by step. Invalid input raises ``BatchError`` with CORRUPT_MESSAGE, and output over the limit with
MESSAGE_TOO_LARGE.

The broker stores batches as producers compressed them. It calls this module only where it must read the records, in
helper processes and tools. Zstd contexts are kept per thread, because they cannot be shared.
"""

import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam
import lz4.frame
import zstandard

from millstream.model.error_code import ErrorCode
from millstream.wire.errors import BatchError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Number of a codec, in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Numbers of the codecs by their ``compression.type`` names."""

DECOMPRESSED_MAX: Final = 128 << 20
"""Default limit of the decompressed records of one batch. Kafka's default limit of a whole request is 100 MiB."""

_STEP: Final = 256 << 10
_TRUSTED_RATIO: Final = 16
_SNAPPY_RATIO: Final = 24  # three bytes encode at most 64 (a copy)
GZIP_MEMBERS_MAX: Final = 64
"""Maximum number of members in a gzip stream. Producers write one. Reading another copies the rest of the stream."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK: Final = 32 << 10
_ZSTD_WINDOW_MAX: Final = 1 << 27

_local = threading.local()


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress ``data``. ``level`` None is the codec's default level (snappy has only that).

    Raises:
        ValueError: the codec is unknown.
    """
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        squeezer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, 31)
        return squeezer.compress(data) + squeezer.flush()
    if codec == Codec.SNAPPY:
        return _xerial(data)
    if codec == Codec.LZ4:
        return lz4.frame.compress(
            data,
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
    if codec == Codec.ZSTD:
        return _zstd_compressor(3 if level is None else level).compress(data)
    raise ValueError(f"codec {codec}")


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSED_MAX) -> bytes:
    """Decompress to at most ``limit`` bytes.

    Raises:
        BatchError: invalid input (CORRUPT_MESSAGE), more output than the limit (MESSAGE_TOO_LARGE), or an unknown
            codec.
    """
    if codec == Codec.NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return bytes(data)
    expand = _EXPAND.get(codec)
    if expand is None:
        raise BatchError(f"codec {codec} is unknown", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    try:
        return expand(data, limit)
    except (zlib.error, cramjam.DecompressionError, RuntimeError, EOFError, ValueError, zstandard.ZstdError) as error:
        raise BatchError(f"{Codec(codec).name.lower()}: {error}") from error


def _too_large(limit: int) -> BatchError:
    return BatchError(f"more than {limit} bytes when decompressed", ErrorCode.MESSAGE_TOO_LARGE)


def _gzip(data: Buffer, limit: int) -> bytes:
    parts: list[bytes] = []
    room = limit
    rest: Buffer = data
    while rest:
        if len(parts) == GZIP_MEMBERS_MAX:
            raise EOFError(f"more than {GZIP_MEMBERS_MAX} members")
        inflater = zlib.decompressobj(31)
        part = inflater.decompress(rest, room + 1)
        if len(part) > room:
            raise _too_large(limit)
        if not inflater.eof:
            raise EOFError("ends early")
        room -= len(part)
        parts.append(part)
        rest = inflater.unused_data
    if not parts:
        raise EOFError("empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(view, limit, limit)
    parts: list[bytes] = []
    room = limit
    at = len(_XERIAL_HEADER)
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        stop = at + 4 + size
        if stop > len(view):
            raise EOFError("ends early")
        part = _snappy_block(view[at + 4 : stop], room, limit)
        room -= len(part)
        parts.append(part)
        at = stop
    if at > len(view):
        raise EOFError("ends early")
    return b"".join(parts)


def _snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > len(block) * _SNAPPY_RATIO:
        raise EOFError(f"{len(block)} bytes claim to be {claimed}")
    if claimed > room:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))


def _lz4(data: Buffer, limit: int) -> bytes:
    inflater = lz4.frame.LZ4FrameDecompressor()
    parts: list[bytes] = []
    room = limit
    step = max(_STEP, len(data) * 4)
    rest: Buffer = data
    while True:
        part = inflater.decompress(rest, max_length=min(room + 1, step))
        if len(part) > room:
            raise _too_large(limit)
        room -= len(part)
        parts.append(part)
        rest = b""
        if inflater.eof:
            break
        if inflater.needs_input or not part:
            raise EOFError("ends early")
    if inflater.unused_data:
        raise EOFError("trailing bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    known = zstandard.frame_content_size(view)
    if known > limit:
        raise _too_large(limit)
    if _zstd_frame_end(view, 0) == len(view) and 0 <= known <= _STEP + len(view) * _TRUSTED_RATIO:
        return _zstd_decompressor().decompress(view)
    at = 0
    while at < len(view):
        at = _zstd_frame_end(view, at)
    parts: list[bytes] = []
    room = limit
    with _zstd_decompressor().stream_reader(view, read_across_frames=True) as reader:
        while part := reader.read(min(room + 1, _STEP)):
            if len(part) > room:
                raise _too_large(limit)
            room -= len(part)
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_frame_end(view: memoryview, at: int) -> int:
    """End of the frame at ``at``, found through its block headers. The stream reader would take a truncation for the
    end.
    """
    head = view[at : at + 18]
    if bytes(head[1:4]) == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:  # a skippable frame
        at += 8 + int.from_bytes(head[4:8], "little")
    else:
        at += zstandard.frame_header_size(head)
        last = False
        while not last:
            block = int.from_bytes(view[at : at + 3], "little")
            last = bool(block & 1)
            at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
            if at > len(view):
                break
        at += 4 if zstandard.get_frame_parameters(head).has_checksum else 0
    if at > len(view):
        raise EOFError("ends early")
    return at


def _zstd_compressor(level: int) -> zstandard.ZstdCompressor:
    kept: dict[int, zstandard.ZstdCompressor] = _local.__dict__.setdefault("compressors", {})
    compressor = kept.get(level)
    if compressor is None:
        compressor = kept[level] = zstandard.ZstdCompressor(level=level)
    return compressor


def _zstd_decompressor() -> zstandard.ZstdDecompressor:
    decompressor: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    return decompressor


_EXPAND: Final[dict[int, Callable[[Buffer, int], bytes]]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
