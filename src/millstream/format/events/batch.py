"""An event batch: a record batch of format 2 whose body is events.

::

    header 61 (Kafka's; attributes with ``EVENTS``)
    | count × metadata size 4 | metadata, back to back | count × data size 4 | data, back to back      little-endian

The header gives what the log needs of any batch: base offset, count, leader epoch, times, producer and sequence, and
a CRC-32C over everything from the attributes on. Write-ahead log, log cache, replication, idempotence and checks
therefore handle it like any other batch. ``EVENTS`` marks the body, so that a reader of records refuses it. The body
is not compressed, because consumers select ranges of it.

The times are of the batch: an event has the batch's largest time as its own.

A log of events bears no markers of transactions. A marker that an earlier broker put there has an offset and a size in
the log, which everything after it counts on: ``event_for_marker`` makes an event of it, of the same size, whose
metadata are the empty JSON object.

``decode_event_batch`` accepts any bytes and raises only ``BatchError``. It makes two arrays of four bytes an event;
metadata and data stay views of the input. ``build_event_batch`` copies metadata and passes data through.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import TimestampMs
from millstream.wire.batch import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    check_batch,
)
from millstream.wire.errors import BatchError

Buffer: TypeAlias = bytes | bytearray | memoryview

EVENTS: Final = 0x0100
"""Attribute of a batch whose body is events. Kafka has not assigned the bit."""

COUNT_MAX: Final = 1 << 20
"""Maximum number of events in a batch."""

_CRC = struct.Struct(">I")
_CRC_AT: Final = 17
_SIZE_BYTES: Final = 4
_OUTSIDE_CRC: Final = 16
"""Bytes at the start of a batch with its offset, length and leader epoch."""
_NO_METADATA: Final = b"{}"
_SMALL_BYTES: Final = 8192
"""Pieces of data that are smaller on average are copied into one: each by itself costs more than its copy."""


class Producer(msgspec.Struct, frozen=True):
    """Who wrote a batch, for idempotence. -1 stands for none."""

    id: int = -1
    epoch: int = -1
    base_sequence: int = -1


class EventBatch(msgspec.Struct, frozen=True):
    """A decoded batch. ``metadata`` and ``data`` are views of the input, which its owner keeps alive."""

    header: BatchHeader
    metadata_sizes: "array[int]"
    metadata: memoryview
    data_sizes: "array[int]"
    data: memoryview

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.metadata_sizes)

    def metadata_of_each(self) -> list[memoryview]:
        """The metadata of every event."""
        return split(self.metadata, self.metadata_sizes)

    def data_of_each(self) -> list[memoryview]:
        """The data of every event."""
        return split(self.data, self.data_sizes)


def split(view: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """The runs of these sizes that lie back to back in a view."""
    return [view[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Copies of the runs of these sizes that lie back to back; cheaper than views as long as they are small."""
    return [data[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]


def build_event_batch(
    metadata: Sequence[Buffer],
    data: Sequence[Sequence[Buffer]],
    *,
    now_ms: TimestampMs,
    producer: Producer | None = None,
) -> list[Buffer]:
    """The pieces of a batch, in order. Large data are passed through: their owner keeps them unchanged until the batch
    is sent.

    Args:
        metadata: serialized metadata of each event, one event at least.
        data: the data of each event, in any number of pieces of single bytes.
        now_ms: time of all events.
        producer: for idempotence.

    Raises:
        Rejected: there are too many events or bytes for one batch.
    """
    count = len(metadata)
    assert count == len(data), "every event has data, perhaps none"
    if not 0 < count <= COUNT_MAX:
        raise Rejected(f"a batch of {count} events: 1 to {COUNT_MAX} are allowed")
    try:
        sizes = little_endian(array("I", map(len, metadata)))
        data_sizes = little_endian(array("I", [sum(map(len, pieces)) for pieces in data]))
    except OverflowError as error:
        raise Rejected("an event of 4 GiB or more", ErrorCode.MESSAGE_TOO_LARGE) from error
    front = b"".join((sizes, *metadata, data_sizes))
    body = [piece for pieces in data for piece in pieces if len(piece)]
    if len(body) > 1 and sum(map(len, body)) < len(body) * _SMALL_BYTES:
        body = [b"".join(body)]
    length = HEADER_BYTES - OVERHEAD_BYTES + len(front) + sum(map(len, body))
    if length >= 1 << 31:
        raise Rejected("a batch of 2 GiB or more", ErrorCode.MESSAGE_TOO_LARGE)
    own = producer or Producer()
    head = bytearray(
        HEADER.pack(
            0, length, -1, MAGIC, 0, EVENTS, count - 1, now_ms, now_ms, own.id, own.epoch, own.base_sequence, count
        )
    )
    crc = crc32c(front, crc32c(memoryview(head)[CRC_START:]))
    for piece in body:
        crc = crc32c(piece, crc)
    _CRC.pack_into(head, _CRC_AT, crc)
    return [bytes(head) + front, *body]


def decode_event_batch(view: Buffer, *, event_bytes_max: int, verify: bool = True) -> EventBatch:
    """The batch in ``view``, which is exactly one.

    Args:
        view: the bytes of the batch.
        event_bytes_max: maximum size of metadata and data of one event together.
        verify: check the checksum; not needed for bytes that were checked before.

    Raises:
        BatchError: the bytes are no event batch (INVALID_RECORD or CORRUPT_MESSAGE), or an event is larger
            (MESSAGE_TOO_LARGE).
    """
    view = memoryview(view)
    header = check_batch([view]) if verify else BatchHeader(*HEADER.unpack_from(view))
    if not header.attributes & EVENTS:
        raise BatchError("a batch of records where events are due", ErrorCode.INVALID_RECORD)
    if header.codec or header.attributes & (TRANSACTIONAL | CONTROL):
        raise BatchError("an event batch is not compressed and not transactional", ErrorCode.INVALID_RECORD)
    count = header.record_count
    if count > min(COUNT_MAX, (len(view) - HEADER_BYTES) // (2 * _SIZE_BYTES)):
        raise BatchError(f"{count} events in {len(view)} bytes", ErrorCode.INVALID_RECORD)
    meta_at = HEADER_BYTES + count * _SIZE_BYTES
    metadata_sizes = _sizes(view[HEADER_BYTES:meta_at])
    sizes_at = meta_at + sum(metadata_sizes)
    data_at = sizes_at + count * _SIZE_BYTES
    if data_at > len(view):
        raise BatchError("metadata beyond the end of their batch", ErrorCode.INVALID_RECORD)
    data_sizes = _sizes(view[sizes_at:data_at])
    if data_at + sum(data_sizes) != len(view):
        raise BatchError("the data do not fill their batch", ErrorCode.INVALID_RECORD)
    largest = max(map(int.__add__, metadata_sizes, data_sizes))
    if largest > event_bytes_max:
        raise BatchError(too_large(largest, event_bytes_max), ErrorCode.MESSAGE_TOO_LARGE)
    return EventBatch(header, metadata_sizes, view[meta_at:sizes_at], data_sizes, view[data_at:])


def is_marker(batch: Buffer) -> bool:
    """Whether the batch that starts here is of control records."""
    return len(batch) >= HEADER_BYTES and bool(batch[CRC_START + 1] & CONTROL)


def event_for_marker(batch: Buffer) -> bytes:
    """The event that stands for a marker in a log of events: of the same offset, leader epoch, time and size as
    ``batch``, with the metadata ``{}`` and spaces, and without data or producer.

    Raises:
        BatchError: the batch is not one control record.
    """
    header = BatchHeader(*HEADER.unpack_from(batch))
    room = len(batch) - HEADER_BYTES - 2 * _SIZE_BYTES
    if not header.attributes & CONTROL or header.record_count != 1 or room < len(_NO_METADATA):
        raise BatchError("neither events nor a marker", ErrorCode.INVALID_RECORD)
    (made,) = build_event_batch([_NO_METADATA.ljust(room)], [[]], now_ms=TimestampMs(header.max_timestamp))
    return bytes(batch[:_OUTSIDE_CRC]) + bytes(made[_OUTSIDE_CRC:])


def is_event_batch(view: Buffer) -> bool:
    """Whether the batch that starts here has events."""
    return len(view) >= HEADER_BYTES and bool(view[CRC_START] << 8 & EVENTS)


def batch_overhead(count: int) -> int:
    """Bytes of a batch of ``count`` events beside metadata and data."""
    return HEADER_BYTES + 2 * _SIZE_BYTES * count


def metadata_bytes(views: Sequence[memoryview], count: int) -> int:
    """Bytes of metadata of the batch of ``count`` events that lies in these views."""
    end = HEADER_BYTES + count * _SIZE_BYTES
    data = views[0] if len(views[0]) >= end else memoryview(b"".join(views))
    return sum(_sizes(data[HEADER_BYTES:end]))


def push_sizes(views: Sequence[memoryview]) -> tuple[int, int]:
    """Bytes of metadata and of data of the batch that lies in these views, each with its table of sizes."""
    head = views[0] if len(views[0]) >= HEADER_BYTES else b"".join(views)
    header = BatchHeader(*HEADER.unpack_from(head))
    table = _SIZE_BYTES * header.record_count
    metadata = metadata_bytes(views, header.record_count) + table
    return metadata, sum(map(len, views)) - HEADER_BYTES - metadata


def too_large(size: int, event_bytes_max: int) -> str:
    """What is wrong with an event of ``size`` bytes, and what to do."""
    return (
        f"an event of {size} bytes, events.max.bytes is {event_bytes_max}: "
        "split it, or keep the data elsewhere and their address in the metadata"
    )


def little_endian(numbers: "array[int]") -> bytes:
    """The numbers as bytes of the format."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _sizes(view: memoryview) -> "array[int]":
    numbers = array("I")
    numbers.frombytes(view)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
