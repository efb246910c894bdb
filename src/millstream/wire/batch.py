"""Record batches of format 2 (KIP-98) without their records: header, checksum, and validity of a produced batch.

::

    base offset 8 | length 4 | leader epoch 4 | magic 1 | CRC 4 || attributes 2 | last offset delta 4
    | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4
    | records, perhaps compressed

The CRC-32C covers everything after itself. ``base_offset`` and ``leader_epoch`` stand before it and are the only
fields that a broker changes. ``length`` counts the bytes after it.

A broker needs no more on its hot path, where it reads no record. ``unpack_header`` returns a plain tuple, ``checksum``
takes a batch in any number of views, ``check_batch`` validates one. ``wire.records`` reads and writes records. Invalid
bytes raise ``BatchError`` with the error code for the producer. Nothing is copied but a header that is split over
several views.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from millstream.model.error_code import ErrorCode
from millstream.wire.errors import BatchError

Buffer: TypeAlias = bytes | bytearray | memoryview
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
unpack_header = HEADER.unpack_from
"""Header fields as a plain tuple, in the order of ``BatchHeader``. ``struct.error`` if there are fewer than 61
bytes.
"""

HEADER_BYTES: Final = HEADER.size
OVERHEAD_BYTES: Final = 12
"""Bytes of base offset and length, which the length does not count."""
CRC_START: Final = 21
"""First byte that the CRC covers: the attributes."""
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

CODEC_LAST: Final = 4
"""Zstd, the highest known codec number; see ``compression.Codec``."""

RECORD_BYTES_MIN: Final = 7
"""Minimum size of a record: length, attributes, two deltas, two lengths and a count of one byte each."""

_CRC_FIELD: Final = slice(17, 21)


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The 61-byte header of a batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last record (exclusive end)."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """Number of the codec; a number of ``Codec`` if it is a known one."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        """Whether the records are control records (transaction markers)."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether ``max_timestamp`` was set by the broker and applies to every record."""
        return bool(self.attributes & LOG_APPEND_TIME)


def parse_header(view: Buffer, pos: int = 0) -> BatchHeader:
    """The header at ``pos``. Only checks that it is a header of format 2.

    Raises:
        BatchError: fewer than 61 bytes, another magic, or a length that is too small for a batch.
    """
    if len(view) - pos < HEADER_BYTES:
        raise BatchError("too few bytes for a batch header")
    header = BatchHeader(*unpack_header(view, pos))
    if header.magic != MAGIC:
        raise BatchError(f"batch of magic {header.magic}", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    if header.length < HEADER_BYTES - OVERHEAD_BYTES:
        raise BatchError(f"batch length {header.length}")
    return header


def checksum(views: Sequence[Buffer], start: int = CRC_START) -> int:
    """CRC-32C of the bytes in ``views`` from byte ``start`` on."""
    value = 0
    for view in views:
        size = len(view)
        if start >= size:
            start -= size
            continue
        value = crc32c(memoryview(view)[start:] if start else view, value)
        start = 0
    return value


def batch_crc_ok(view: Buffer) -> bool:
    """Whether the single whole batch in ``view`` matches its checksum."""
    return crc32c(memoryview(view)[CRC_START:]) == int.from_bytes(view[_CRC_FIELD], "big")


def check_batch(views: Sequence[Buffer]) -> BatchHeader:
    """Validate one whole batch of a producer, given in any number of views, and return its header.

    The records are not read. Size and format are checked first, then the checksum, then the other header fields, so
    that those are only judged if they are what the producer wrote.

    Raises:
        BatchError: CORRUPT_MESSAGE for a wrong size or checksum; INVALID_RECORD for more than one batch, an old format,
            contradicting counts, an unknown codec, or a batch that clients may not send.
    """
    size = sum(map(len, views))
    head = views[0] if views else b""
    if len(head) < HEADER_BYTES:
        head = b"".join(views)[:HEADER_BYTES] if size < 2 * HEADER_BYTES else _front(views)
    if len(head) < HEADER_BYTES:
        if len(head) > 16 and head[16] < MAGIC:
            raise BatchError("records of an old format", ErrorCode.INVALID_RECORD)
        raise BatchError("too few bytes for a batch header")
    header = BatchHeader(*unpack_header(head))
    if header.magic != MAGIC:
        raise BatchError(f"batch of magic {header.magic}", ErrorCode.INVALID_RECORD)
    if header.size != size:
        if HEADER_BYTES <= header.size < size:
            raise BatchError("more than one batch", ErrorCode.INVALID_RECORD)
        raise BatchError(f"batch of {size} bytes says that it has {header.size}")
    if checksum(views) != header.crc:
        raise BatchError("checksum does not match")
    reason = _contradiction(header, size)
    if reason is not None:
        raise BatchError(reason, ErrorCode.INVALID_RECORD)
    return header


def _front(views: Sequence[Buffer]) -> bytes:
    front = bytearray()
    for view in views:
        front += view[:HEADER_BYTES]
        if len(front) >= HEADER_BYTES:
            break
    return bytes(front[:HEADER_BYTES])


def _contradiction(header: BatchHeader, size: int) -> str | None:
    """What contradicts itself in a header whose checksum matches; None if nothing does."""
    count = header.record_count
    if count < 1 or header.last_offset_delta != count - 1:
        return f"{count} records with a last offset delta of {header.last_offset_delta}"
    if header.codec > CODEC_LAST:
        return f"codec {header.codec} is unknown"
    if header.codec == 0 and count * RECORD_BYTES_MIN > size - HEADER_BYTES:
        return f"{count} records in {size} bytes"
    if header.is_control:
        return "clients do not write control batches"
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return f"producer {header.producer_id} without a sequence or epoch"
    return None


def iter_batches(view: Buffer) -> Iterator[memoryview]:
    """The whole batches in ``view``. A batch that is truncated at the end is left out, since a fetch may end anywhere.

    Raises:
        BatchError: the bytes between batches are not a batch header. Checksums are not verified.
    """
    view = memoryview(view)
    pos, end = 0, len(view)
    while end - pos >= HEADER_BYTES:
        size = parse_header(view, pos).size
        if pos + size > end:
            return
        yield view[pos : pos + size]
        pos += size
