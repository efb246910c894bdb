"""Batches of a backup: walked, made for offsets without records, and given the producer ids of another cluster."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.events.batch import build_event_batch
from millstream.format.segment import WalkEnd, whole_batches
from millstream.model.quantities import TimestampMs
from millstream.wire.records import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    batch_crc_ok,
    unpack_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.backup.model import StoredBatches
    from millstream.format.segment import Batch

_BASE: Final = struct.Struct(">q")
_PRODUCER_ID: Final = struct.Struct(">q")
_PRODUCER_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_DELTAS_MAX: Final = (1 << 31) - 2
_EVENTS_AT_ONCE: Final = 10_000
ALIKE_FROM: Final = 16
"""First byte of a batch that a log does not write itself: after base offset, length and leader epoch."""


def checked_batches(what: str, data: memoryview, one: StoredBatches) -> Iterator[tuple[Batch, memoryview]]:
    """The batches of an object, each checked. Raises Corruption if they are not what the root says of the object."""
    expected = one.base_offset
    try:
        for batch in whole_batches(data):
            view = data[batch.position : batch.position + batch.size]
            if batch.base_offset < expected or (expected == one.base_offset != batch.base_offset):
                raise Corruption(f"{what}: the batch at byte {batch.position} starts at offset {batch.base_offset}")
            if not batch_crc_ok(view):
                raise Corruption(f"{what}: the batch at offset {batch.base_offset} has a wrong checksum")
            yield batch, view
            expected = batch.last_offset + 1
    except WalkEnd as end:
        raise Corruption(f"{what}: there is no batch at byte {end.position}: {end.reason}") from None
    if expected != one.end_offset:
        raise Corruption(f"{what}: the batches end at offset {expected}, the root says {one.end_offset}")


def is_empty(view: memoryview) -> bool:
    """Whether a batch has no record."""
    return not unpack_header(view, 0)[12]


def is_control(view: memoryview) -> bool:
    """Whether a batch has markers."""
    return bool(unpack_header(view, 0)[5] & CONTROL)


def producer_id_of(view: memoryview) -> int:
    """The producer id of a batch; -1 without one."""
    return _PRODUCER_ID.unpack_from(view, _PRODUCER_AT)[0]


def shifted(view: memoryview, shift: int) -> memoryview:
    """The batch, with ``shift`` added to its producer id if it has one, and a fresh checksum."""
    producer_id = producer_id_of(view)
    if not shift or producer_id < 0:
        return view
    made = bytearray(view)
    _PRODUCER_ID.pack_into(made, _PRODUCER_AT, producer_id + shift)
    _CRC.pack_into(made, _CRC_AT, crc32c(memoryview(made)[CRC_START:]))
    return memoryview(made)


def empty_batches(base: int, end: int) -> Iterator[bytes]:
    """Batches without records for the offsets from ``base`` up to ``end`` (exclusive), as compaction leaves them."""
    while base < end:
        count = min(end - base, _DELTAS_MAX)
        length = HEADER_BYTES - OVERHEAD_BYTES
        made = bytearray(HEADER.pack(base, length, -1, MAGIC, 0, 0, count - 1, -1, -1, -1, -1, -1, 0))
        _CRC.pack_into(made, _CRC_AT, crc32c(memoryview(made)[CRC_START:]))
        yield bytes(made)
        base += count


def placeholder_events(base: int, end: int) -> Iterator[bytes]:
    """Batches of events without data for the ids from ``base`` up to ``end`` (exclusive). An event topic has no id
    without an event, so these stand for events that were deleted, and are deleted themselves.
    """
    while base < end:
        count = min(end - base, _EVENTS_AT_ONCE)
        pieces = build_event_batch([b"{}"] * count, [()] * count, now_ms=TimestampMs(0))
        made = bytearray(b"".join(bytes(piece) for piece in pieces))
        _BASE.pack_into(made, 0, base)
        yield bytes(made)
        base += count
