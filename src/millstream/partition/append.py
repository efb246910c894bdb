"""Append one producer batch to a partition: check it, give it offsets, hand it to the group.

The broker looks at the batch's 61-byte header and its checksum, never at a record. What is checked, in this order,
and what a client is told when it does not hold:

===========================================  =====================================
exactly one batch, whole, of format 2        INVALID_RECORD (CORRUPT_MESSAGE: a
                                             format or length that cannot be)
no larger than ``max.message.bytes``         MESSAGE_TOO_LARGE
CRC-32C over everything behind the epoch     CORRUPT_MESSAGE
count matches the offset deltas; a codec      INVALID_RECORD
that exists; no control batch
timestamp inside the topic's bounds          INVALID_TIMESTAMP
idempotent sequence is the next one          OUT_OF_ORDER_SEQUENCE_NUMBER, … or the first answer again
===========================================  =====================================

A refused batch leaves no trace. Memory that cannot be had and a full disk are retriable errors, given before an
offset is. The base offset and the leader epoch are written in the log's own copy, outside the checksum; nothing else
changes, but for topics with LogAppendTime, whose header is rewritten and summed again.

Source: KIP-98 (batch format, idempotence), KIP-32 and KIP-937 (timestamps).
"""

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from millstream.core.producer_state import Append, Duplicate
from millstream.errors import MillstreamError, Retriable, Unavailable
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.partition.partition import Partition
from millstream.wire.compression import Codec
from millstream.wire.records import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    OVERHEAD_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    checksum,
    unpack_header,
)

_ATTRIBUTES_AND_DELTA: Final = struct.Struct(">hi")
_CRC_AT: Final = 17
_MAX_TIMESTAMP_AT: Final = 35
_LAST_CODEC: Final = int(Codec.ZSTD)
_NO_TIMESTAMP: Final = -1
_NONE: Final = int(ErrorCode.NONE)

# What append answers: (error code, base offset, end offset, log append time in ms or -1).
Outcome = tuple[int, int, int, int]


def _refused(code: ErrorCode) -> Outcome:
    return (int(code), -1, -1, -1)


_CORRUPT: Final = _refused(ErrorCode.CORRUPT_MESSAGE)
_INVALID: Final = _refused(ErrorCode.INVALID_RECORD)
_TOO_LARGE: Final = _refused(ErrorCode.MESSAGE_TOO_LARGE)
_CLOSED: Final = _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_STORAGE: Final = _refused(ErrorCode.KAFKA_STORAGE_ERROR)
_INVALID_TIMESTAMP: Final = _refused(ErrorCode.INVALID_TIMESTAMP)
_INVALID_TXN: Final = _refused(ErrorCode.INVALID_TXN_STATE)
BUSY: Final = _refused(ErrorCode.NOT_ENOUGH_REPLICAS)


def append(  # noqa: C901 - a list of checks reads best as one
    partition: Partition, views: Sequence[memoryview], size: int, now_ms: int, *, accepts_writes: bool
) -> Outcome:
    """Produce 5/8. Check the batch in ``views`` (``size`` bytes in all) and propose it.

    ``views`` are borrowed: they are copied before this returns. ``now_ms`` is the wall clock for timestamp rules.
    """
    if partition.closed:
        return _CLOSED
    if not accepts_writes:
        return _STORAGE
    if size < HEADER_BYTES:
        return _INVALID
    head = views[0]
    if len(head) < HEADER_BYTES:
        head = memoryview(b"".join(views))[:HEADER_BYTES]
    (
        _,
        length,
        _,
        magic,
        crc,
        attributes,
        last_delta,
        _,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = unpack_header(head, 0)
    if magic != MAGIC or length + OVERHEAD_BYTES != size:
        # As Kafka: one that clients do not try again for what cannot get better.
        return _CORRUPT if magic > MAGIC or length + OVERHEAD_BYTES < HEADER_BYTES else _INVALID
    config = partition.config
    if size > config.max_message_bytes:
        return _TOO_LARGE
    if (crc32c(head[CRC_START:]) if len(views) == 1 else checksum(views)) != crc:
        return _CORRUPT
    codec = attributes & CODEC_MASK
    if count < 1 or last_delta != count - 1 or codec > _LAST_CODEC or attributes & CONTROL:
        return _INVALID
    if not codec and count * RECORD_BYTES_MIN > size - HEADER_BYTES:
        return _INVALID
    if attributes & TRANSACTIONAL:
        return _INVALID_TXN
    append_time = -1
    if config.message_timestamp_type != "CreateTime":
        append_time = max_timestamp = now_ms
        views = _stamp_append_time(views, now_ms)
    elif max_timestamp != _NO_TIMESTAMP and (
        max_timestamp - now_ms > config.message_timestamp_after_max_ms
        or now_ms - max_timestamp > config.message_timestamp_before_max_ms
    ):
        return _INVALID_TIMESTAMP
    if producer_id >= 0:
        verdict = partition.producers.check(producer_id, producer_epoch, base_sequence, count)
        if verdict is not Append:
            return _sequence_verdict(partition, verdict)
    try:
        base = partition.group.replicate(views, size, count, max_timestamp)
    except ArenaFull:
        return BUSY
    except MillstreamError as error:
        return _refused(error.code)
    if producer_id >= 0:
        partition.producers.record(producer_id, producer_epoch, base_sequence, count, base, max_timestamp, now_ms)
    partition.meters.accepted(size, count)
    return (_NONE, base, base + count, append_time)


def append_trusted(partition: Partition, batch: bytes) -> tuple[int, int] | MillstreamError:
    """Append a batch of the broker's own; (base offset, end offset) or what prevented it."""
    if partition.closed:
        return Unavailable("the partition is closed", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    header = unpack_header(batch, 0)
    count, max_timestamp = header[12], header[8]
    assert header[1] + OVERHEAD_BYTES == len(batch)
    try:
        base = partition.group.replicate((memoryview(batch),), len(batch), count, max_timestamp)
    except ArenaFull:
        return Retriable("no memory for the batch now", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return base, base + count


def _stamp_append_time(views: Sequence[memoryview], now_ms: int) -> tuple[memoryview]:
    """The batch with ``now_ms`` as its timestamp, as LogAppendTime wants it, and a fresh checksum."""
    batch = bytearray().join(views)
    attributes, delta = _ATTRIBUTES_AND_DELTA.unpack_from(batch, CRC_START)
    _ATTRIBUTES_AND_DELTA.pack_into(batch, CRC_START, attributes | LOG_APPEND_TIME, delta)
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return (memoryview(batch),)


def _sequence_verdict(partition: Partition, verdict: object) -> Outcome:
    """A sequence that is not the next one: the answer that was given before, or why not."""
    if isinstance(verdict, Duplicate):
        partition.meters.duplicates.inc()
        append_time = -1 if partition.config.message_timestamp_type == "CreateTime" else verdict.timestamp
        return (_NONE, verdict.base_offset, verdict.base_offset + verdict.record_count, append_time)
    assert isinstance(verdict, ErrorCode)
    return _refused(verdict)
