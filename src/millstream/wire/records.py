"""Record batches of format 2 (KIP-98): their header, their checksum, their records.

::

    base offset 8 | length 4 | leader epoch 4 | magic 1 | CRC 4 || attributes 2 | last offset delta 4
    | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4
    | records, perhaps compressed

The CRC-32C covers everything behind itself. ``base_offset`` and ``leader_epoch`` stand before it and are the only bytes
that a broker changes. ``length`` counts what follows it.

A broker reads headers and checksums, never records: for it there are ``unpack_header`` (a plain tuple), ``checksum``
and ``check_batch``. Tools, coordinators and clients use ``iter_batches``, ``iter_records`` and ``build_batch``.

Everything that reads checks bounds and raises ``BatchError`` for bytes that are not what they claim, with the code that
a producer is told; decompression is bounded (``wire.compression``). Batches may be given in several views, in which
case nothing is joined but the header.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from millstream.model.error_code import ErrorCode
from millstream.wire.compression import DECOMPRESSED_MAX, Codec, compress, decompress
from millstream.wire.errors import BatchError, ProtocolError
from millstream.wire.varint import read_varlong, varlong

Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
NewRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp in ms."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
unpack_header = HEADER.unpack_from
"""Header fields as a plain tuple, in the order of ``BatchHeader``; ``struct.error`` if 61 bytes are not there."""

HEADER_BYTES: Final = HEADER.size
OVERHEAD_BYTES: Final = 12
"""Base offset and length: what the length does not count."""
CRC_START: Final = 21
"""First byte that the CRC covers: the attributes."""
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, two lengths and a count take a byte each at least."""

ABORT: Final = 0
COMMIT: Final = 1

_CRC_FIELD: Final = slice(17, 21)
_pack_crc_into = struct.Struct(">I").pack_into
_pack_control_key = struct.Struct(">hh").pack
_pack_control_value = struct.Struct(">hi").pack


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The 61 bytes in front of the records."""

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
        """Inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Exclusive."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A number of ``Codec``, if it is a known one."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        """Whether the records are markers of the broker's own."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether ``max_timestamp`` is the broker's and stands for every record."""
        return bool(self.attributes & LOG_APPEND_TIME)


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. ``timestamp`` is in ms since 1970; headers keep their order and may repeat a name."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def parse_header(view: Buffer, pos: int = 0) -> BatchHeader:
    """The header at ``pos``; checks only that it is a header of format 2.

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
    """CRC-32C over the run of ``views`` from byte ``start`` on."""
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
    """Whether the one whole batch in ``view`` matches its checksum."""
    return crc32c(memoryview(view)[CRC_START:]) == int.from_bytes(view[_CRC_FIELD], "big")


def check_batch(views: Sequence[Buffer]) -> BatchHeader:
    """Check one batch that a producer sent, whole, in as many views as it came in; its header.

    The records are not looked at. The order is: size and format, checksum, then what the header claims, so that a claim
    is only judged when it is what the producer wrote.

    Raises:
        BatchError: CORRUPT_MESSAGE for sizes that do not match and a wrong checksum, INVALID_RECORD for more than one
            batch, an old format, counts that contradict each other, an unknown codec, a batch that clients may not
            send.
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
    """What is wrong with a header whose checksum matches."""
    count = header.record_count
    if count < 1 or header.last_offset_delta != count - 1:
        return f"{count} records with a last offset delta of {header.last_offset_delta}"
    if header.codec > Codec.ZSTD:
        return f"codec {header.codec} is unknown"
    if header.codec == Codec.NONE and count * RECORD_BYTES_MIN > size - HEADER_BYTES:
        return f"{count} records in {size} bytes"
    if header.is_control:
        return "clients do not write control batches"
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return f"producer {header.producer_id} without a sequence or epoch"
    return None


def iter_batches(view: Buffer) -> Iterator[memoryview]:
    """The whole batches in ``view``; one that is cut off at the end is left out, as a fetch may end anywhere.

    Raises:
        BatchError: something between the batches is not a batch header. Checksums are not looked at.
    """
    view = memoryview(view)
    pos, end = 0, len(view)
    while end - pos >= HEADER_BYTES:
        size = parse_header(view, pos).size
        if pos + size > end:
            return
        yield view[pos : pos + size]
        pos += size


def iter_records(batch: Buffer, limit: int = DECOMPRESSED_MAX) -> Iterator[Record]:
    """The records of one batch; keys, values and headers are copies.

    The batch is decompressed at the first step, to at most ``limit`` bytes. The checksum is not looked at.

    Raises:
        BatchError: the batch or a record in it is not what it claims to be.
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
        raise BatchError(f"{len(data) - pos} bytes behind the last record", ErrorCode.INVALID_RECORD)


def _record(data: bytes, pos: int, header: BatchHeader) -> tuple[Record, int]:
    """Read the record at ``pos``; it and the position behind it."""
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
        pairs: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, pos = _nullable(data, pos, end)
            if name is None:
                raise ProtocolError("a header without a name")
            content, pos = _nullable(data, pos, end)
            pairs.append((name.decode(), content))
        headers = tuple(pairs)
    if pos != end:
        raise ProtocolError("fields do not fill the record")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), pos


def _nullable(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes behind their length; -1 is null."""
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
    """Build one batch; offsets are dense from ``base_offset``.

    ``log_append_time`` stamps the batch the way a broker does for topics with LogAppendTime.

    Raises:
        ValueError: no records, an unknown codec, or a number out of range.
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
