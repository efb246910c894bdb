"""Removes records from a Kafka batch (format 2) without changing the others: the byte level of compaction.

Offsets never change: a batch keeps its base offset and its last offset delta, even if it becomes empty, and every
remaining record keeps its bytes. Records are rewritten only the first time that a tombstone survives: the batch then
stores its *delete horizon* in the place of its base timestamp (attribute bit 6), and the timestamps of its records are
relative to that from then on (KIP-534). A compressed batch is decompressed, filtered, and compressed with the same
codec.

``walk_records`` decodes of each record only its place, its key, and whether it has a value. Invalid bytes raise
``BatchError``. Checksums of batches are not verified here; new batches get one.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.model.error_code import ErrorCode
from millstream.wire.compression import DECOMPRESSED_MAX, compress, decompress
from millstream.wire.errors import BatchError, ProtocolError
from millstream.wire.records import (
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    OVERHEAD_BYTES,
    BatchHeader,
)
from millstream.wire.varint import read_varlong, varlong

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

_CRC_AT: Final = 17


class RawRecord(NamedTuple):
    """One record in a batch's decompressed bytes, as far as compaction needs it."""

    start: int
    """First byte of the record, which is its length."""

    end: int
    offset_delta: int
    timestamp_delta: int
    rest: int
    """First byte after the timestamp delta."""

    key: bytes | None
    has_value: bool


def records_of(header: BatchHeader, batch: memoryview, limit: int = DECOMPRESSED_MAX) -> bytes:
    """The decompressed records of a batch, at most ``limit`` bytes. BatchError for invalid bytes."""
    if not header.record_count:
        return b""
    return decompress(header.codec, batch[HEADER_BYTES : header.size], limit)


def walk_records(data: bytes | memoryview, header: BatchHeader) -> Iterator[RawRecord]:
    """The records in a batch's decompressed bytes.

    Raises:
        BatchError: there are not ``record_count`` records, or their offsets do not increase, or a timestamp is out of
            range. All of that is possible, because producers' batches are stored unread.
    """
    at = 0
    last_delta = -1
    size = len(data)
    try:
        for _ in range(header.record_count):
            length, body = read_varlong(data, at)
            end = body + length
            timestamp_delta, rest = read_varlong(data, body + 1)
            offset_delta, pos = read_varlong(data, rest)
            key_size, pos = read_varlong(data, pos)
            key = None
            if key_size >= 0:
                key = bytes(data[pos : pos + key_size])
                pos += key_size
            value_size, pos = read_varlong(data, pos)
            if length < 0 or end > size or pos + max(value_size, 0) >= end or not last_delta < offset_delta:
                raise ProtocolError("fields do not fit the record")
            if not INT64_MIN <= header.base_timestamp + timestamp_delta <= INT64_MAX:
                raise ProtocolError("a timestamp beyond 64 bits")
            last_delta = offset_delta
            yield RawRecord(at, end, offset_delta, timestamp_delta, rest, key, value_size >= 0)
            at = end
    except (IndexError, ProtocolError) as error:
        raise BatchError(f"record at byte {at}: {error}", ErrorCode.INVALID_RECORD) from error
    if at != size or last_delta > header.last_offset_delta:
        raise BatchError("the records do not fill the batch", ErrorCode.INVALID_RECORD)


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Time from which the batch's tombstones may be removed; None if it is not set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def filtered(
    header: BatchHeader,
    batch: memoryview,
    stays: Callable[[RawRecord], bool],
    horizon: Callable[[bool], int | None],
) -> tuple[memoryview | bytes | None, int]:
    """The remaining batch, and its number of records: the original if nothing changes, None if no record remains.

    Args:
        header: header of the batch.
        batch: the whole batch.
        stays: whether a record survives.
        horizon: called with whether a tombstone survives; returns the delete horizon to set now, or None.

    Raises:
        BatchError: the records contradict the header.
    """
    data = records_of(header, batch)
    kept = [record for record in walk_records(data, header) if stays(record)]
    if not kept:
        return None, 0
    noted = horizon(any(not record.has_value for record in kept))
    if noted is None and len(kept) == header.record_count:
        return batch, len(kept)
    attributes, base, latest = header.attributes, header.base_timestamp, header.max_timestamp
    if not attributes & LOG_APPEND_TIME:
        latest = base + max(record.timestamp_delta for record in kept)
    if noted is None:
        view = memoryview(data)
        out = b"".join(view[record.start : record.end] for record in kept)
    else:
        out = b"".join(_moved(data, record, base - noted) for record in kept)
        attributes |= DELETE_HORIZON
        base = noted
    payload = compress(attributes & CODEC_MASK, out)
    return _batch(header, attributes, base, latest, len(kept), payload), len(kept)


def emptied(header: BatchHeader) -> bytes:
    """The header alone, which keeps the producer's state and the end offset."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return _batch(header, attributes, header.max_timestamp, header.max_timestamp, 0, b"")


def _moved(data: bytes, record: RawRecord, by: int) -> bytes:
    """The record with its timestamp relative to another base."""
    _, body = read_varlong(data, record.start)
    delta = record.timestamp_delta + by
    if not INT64_MIN <= delta <= INT64_MAX:
        raise BatchError("a record too far in time from the rest", ErrorCode.INVALID_RECORD)
    content = data[body : body + 1] + varlong(delta) + data[record.rest : record.end]
    return varlong(len(content)) + content


def _batch(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    batch = bytearray(
        HEADER.pack(
            header.base_offset,
            HEADER_BYTES - OVERHEAD_BYTES + len(payload),
            header.leader_epoch,
            MAGIC,
            0,
            attributes,
            header.last_offset_delta,
            base_timestamp,
            max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            count,
        )
    )
    batch += payload
    batch[_CRC_AT : _CRC_AT + 4] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)
