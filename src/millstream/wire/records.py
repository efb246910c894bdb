"""The records in a batch: reading them, and building batches.

For tools, coordinators and clients. A broker passes batches on unread (``wire.batch``, whose names are re-exported
here). Keys, values and headers are copies. Decompression is bounded (``wire.compression``), and every length is checked
against the remaining bytes. Invalid bytes raise ``BatchError``.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from millstream.model.error_code import ErrorCode
from millstream.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    OVERHEAD_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    batch_crc_ok,
    check_batch,
    checksum,
    iter_batches,
    parse_header,
    unpack_header,
)
from millstream.wire.compression import DECOMPRESSED_MAX, compress, decompress
from millstream.wire.errors import BatchError, ProtocolError
from millstream.wire.varint import read_varlong, varlong

__all__ = [
    "ABORT",
    "BatchHeader",
    "Buffer",
    "CODEC_MASK",
    "COMMIT",
    "CONTROL",
    "CRC_START",
    "DELETE_HORIZON",
    "HEADER",
    "HEADER_BYTES",
    "Headers",
    "LOG_APPEND_TIME",
    "MAGIC",
    "NewRecord",
    "OVERHEAD_BYTES",
    "RECORD_BYTES_MIN",
    "Record",
    "TRANSACTIONAL",
    "batch_crc_ok",
    "build_batch",
    "check_batch",
    "checksum",
    "control_record",
    "iter_batches",
    "iter_records",
    "marker_of",
    "parse_header",
    "unpack_header",
]

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
NewRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp in ms."""

ABORT: Final = 0
COMMIT: Final = 1

_CONTROL_KEY_BYTES: Final = 4
_CONTROL_VALUE_BYTES: Final = 6
_INT64: Final = 1 << 63
_pack_crc_into = struct.Struct(">I").pack_into
_pack_control_key = struct.Struct(">hh").pack
_pack_control_value = struct.Struct(">hi").pack


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. ``timestamp`` is in ms since 1970. Headers keep their order and may repeat a name."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def iter_records(batch: Buffer, limit: int = DECOMPRESSED_MAX) -> Iterator[Record]:
    """The records of one batch; keys, values and headers are copies.

    The batch is decompressed at the first step, to at most ``limit`` bytes. The checksum is not verified.

    Raises:
        BatchError: the batch or a record in it is invalid.
    """
    batch = memoryview(batch)
    header = parse_header(batch)
    if header.size > len(batch):
        raise BatchError("batch ends early")
    data = decompress(header.codec, batch[HEADER_BYTES : header.size], limit)
    if header.record_count < 0 or header.record_count * RECORD_BYTES_MIN > len(data):
        raise BatchError(f"{header.record_count} records in {len(data)} bytes", ErrorCode.INVALID_RECORD)
    pos = 0
    try:
        for _ in range(header.record_count):
            record, pos = _record(data, pos, header)
            yield record
    except (IndexError, ProtocolError, UnicodeDecodeError) as error:
        raise BatchError(f"record at byte {pos}: {error}", ErrorCode.INVALID_RECORD) from error
    if pos != len(data):
        raise BatchError(f"{len(data) - pos} bytes after the last record", ErrorCode.INVALID_RECORD)


def _record(data: bytes, pos: int, header: BatchHeader) -> tuple[Record, int]:
    """The record at ``pos``, and the position after it."""
    size, pos = read_varlong(data, pos)
    end = pos + size
    if size < RECORD_BYTES_MIN - 1 or end > len(data):
        raise ProtocolError(f"{size} bytes claimed, {len(data) - pos} left")
    timestamp_delta, pos = read_varlong(data, pos + 1)
    offset_delta, pos = read_varlong(data, pos)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise ProtocolError(f"offset delta {offset_delta} of {header.last_offset_delta}")
    key, pos = _nullable(data, pos, end)
    value, pos = _nullable(data, pos, end)
    count, pos = read_varlong(data, pos)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if count:
        if not 0 < count * 2 <= end - pos:
            raise ProtocolError(f"{count} headers in {end - pos} bytes")
        # two bytes or more each on the wire, so the list is never over-allocated
        pairs: list[tuple[str, bytes | None]] = [("", None)] * count
        for place in range(count):
            name, pos = _nullable(data, pos, end)
            if name is None:
                raise ProtocolError("a header without a name")
            content, pos = _nullable(data, pos, end)
            pairs[place] = (name.decode(), content)
        headers = tuple(pairs)
    if pos != end:
        raise ProtocolError("fields do not fill the record")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    if not -_INT64 <= timestamp < _INT64:
        timestamp = (timestamp + _INT64) % (2 * _INT64) - _INT64  # wraps around like in Kafka's clients
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), pos


def _nullable(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    """Bytes after their length; length -1 is null."""
    size, pos = read_varlong(data, pos)
    if size < 0:
        if size != -1:
            raise ProtocolError(f"length {size}")
        return None, pos
    stop = pos + size
    if stop > end:
        raise ProtocolError(f"{size} bytes claimed, {end - pos} left")
    return data[pos:stop], stop


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    compression: int = 0,
    compression_level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """Build one batch. Offsets are dense from ``base_offset`` on.

    ``log_append_time`` (ms) stamps the batch as a broker does for topics with LogAppendTime.

    Raises:
        ValueError: there are no records, the codec is unknown, or a number is out of range.
    """
    out = bytearray()
    base_timestamp = max_timestamp = -1
    count = 0
    for key, value, headers, timestamp in records:
        if not count:
            base_timestamp = max_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        _append_record(out, count, timestamp - base_timestamp, key, value, headers)
        count += 1
    if not count:
        raise ValueError("a batch has at least one record")
    attributes = compression | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time
    payload = compress(compression, out, compression_level) if compression else out
    length = HEADER_BYTES - OVERHEAD_BYTES + len(payload)
    try:
        batch = bytearray(
            HEADER.pack(
                base_offset,
                length,
                leader_epoch,
                MAGIC,
                0,
                attributes,
                count - 1,
                base_timestamp,
                max_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                count,
            )
        )
    except struct.error as error:
        raise ValueError(f"batch header: {error}") from error
    batch += payload
    _pack_crc_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def _append_record(
    out: bytearray, delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    body = bytearray(1)
    body += varlong(timestamp_delta) + varlong(delta)
    _append_nullable(body, key)
    _append_nullable(body, value)
    body += varlong(len(headers))
    for name, content in headers:
        _append_nullable(body, name.encode())
        _append_nullable(body, content)
    out += varlong(len(body))
    out += body


def _append_nullable(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # zig-zag of -1
    else:
        out += varlong(len(data))
        out += data


def control_record(kind: int, coordinator_epoch: int, timestamp: int) -> NewRecord:
    """An end-of-transaction marker (``ABORT`` or ``COMMIT``), for ``build_batch`` with ``control``."""
    return _pack_control_key(0, kind), _pack_control_value(0, coordinator_epoch), (), timestamp


def marker_of(batch: Buffer) -> tuple[int, int]:
    """What the control batch in ``batch`` says: ``ABORT`` or ``COMMIT``, or another number for what ends no
    transaction, and the epoch of the coordinator that wrote it. -1 for what cannot be read.
    """
    try:
        record = next(iter_records(batch))
    except (BatchError, StopIteration):
        return -1, -1
    key, value = record.key or b"", record.value or b""
    kind = int.from_bytes(key[2:4], "big", signed=True) if len(key) >= _CONTROL_KEY_BYTES else -1
    return kind, int.from_bytes(value[2:6], "big", signed=True) if len(value) >= _CONTROL_VALUE_BYTES else -1
