"""Batches of events in memory: of the log cache, or read of the object store. What feeds and fetches take out of them.

A batch that has a place in a chunk has the descriptors of that chunk; any other one has descriptors that name events by
their ids. No buffer is copied: what is taken of one is shared.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import Rejected
from millstream.format.events.chunk import encode_descriptors, starts
from millstream.format.events.descriptor import (
    DESCRIPTOR_BYTES,
    decode_descriptor,
    decode_location,
    descriptor_of_event,
    encode_descriptor,
)
from millstream.model.quantities import BytePosition, FilePosition, Offset
from millstream.wire.batch import HEADER_BYTES, OVERHEAD_BYTES, unpack_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import IoBuf
    from millstream.storage.log.event_log import BatchPlace

_SIZE_BYTES: Final = 4


class EventBatchView(NamedTuple):
    """An event batch in memory: where its parts are in the buffer that it lies in."""

    base: int
    events: int
    size: int
    timestamp: int
    meta_sizes: array[int]
    meta_at: int
    data_sizes: array[int]
    data_at: int

    @classmethod
    def at(cls, buffer: IoBuf, position: BytePosition) -> EventBatchView:
        """The batch that starts at a byte of the buffer."""
        header = unpack_header(buffer.copy(position, HEADER_BYTES), 0)
        count = header[12]
        sizes_at = position + HEADER_BYTES
        meta_sizes = _sizes(buffer.copy(sizes_at, count * _SIZE_BYTES))
        meta_at = sizes_at + count * _SIZE_BYTES
        data_sizes_at = meta_at + sum(meta_sizes)
        data_sizes = _sizes(buffer.copy(data_sizes_at, count * _SIZE_BYTES))
        data_at = data_sizes_at + count * _SIZE_BYTES
        return cls(header[0], count, header[1] + 12, header[8], meta_sizes, meta_at, data_sizes, data_at)


def described(place: BatchPlace | None, batch: EventBatchView) -> bytes:
    """The descriptors of a batch; without a place in a chunk they name the events by their ids."""
    if place is not None:
        return encode_descriptors(place.chunk, place.before, batch.data_sizes)
    named = enumerate(batch.data_sizes, batch.base)
    return b"".join(encode_descriptor(descriptor_of_event(Offset(event_id), size)) for event_id, size in named)


def _sizes(data: bytes) -> array[int]:
    sizes = array("I")
    sizes.frombytes(data)
    return sizes


class HeldBatch:
    """A batch in memory, and what was taken of its data. Ranges that meet are given as one. A batch of the object
    store has no place in a chunk.
    """

    __slots__ = ("_begins", "_buffer", "_data_at", "_described", "_end", "_place", "_sizes", "_start", "base", "end")

    def __init__(self, place: BatchPlace | None, batch: EventBatchView, buffer: IoBuf) -> None:
        self.base = batch.base
        self.end = batch.base + batch.events
        self._buffer = buffer
        self._sizes = batch.data_sizes
        self._begins = starts(FilePosition(batch.data_at), batch.data_sizes)
        self._place = place
        self._data_at = batch.data_at
        self._described = described(place, batch)
        self._start = self._end = 0

    def selected(self, event_id: Offset, text: bytes, ranges_max: int) -> Sequence[tuple[int, int]]:
        """Where in the buffer the bytes are that a descriptor selects of an event of the batch.

        Raises:
            Rejected: it is not that event's descriptor, or selects too many ranges.
        """
        number = event_id - self.base
        begin, size = self._begins[number], self._sizes[number]
        if text == self._described[number * DESCRIPTOR_BYTES : (number + 1) * DESCRIPTOR_BYTES]:
            return ((begin, begin + size),)  # all of it, as most consumers want it
        descriptor = decode_descriptor(text)
        place = decode_location(descriptor.location)
        chunk, position = place.chunk, place.position  # the chunk that it is of has gone, if it has one
        if self._place is not None:
            chunk, position = self._place.chunk, FilePosition(begin + self._place.before.data - self._data_at)
        if not descriptor.is_of(event_id, chunk, position, size):
            raise Rejected(f"the descriptor is not that of event {event_id}")
        return [(begin + one.offset, begin + one.end) for one in descriptor.flatten(ranges_max)]

    def take(self, ranges: Sequence[tuple[int, int]], found: IoBuf) -> None:
        """Add ranges to what was found."""
        for start, end in ranges:
            if start != self._end:
                self._flush(found)
                self._start = start
            self._end = end

    def give_up(self, found: IoBuf) -> None:
        """Add what is left, and let the batch go."""
        self._flush(found)
        self._buffer.release()

    def _flush(self, found: IoBuf) -> None:
        if self._end > self._start:
            found.append_buf(self._buffer.share(self._start, self._end - self._start))
        self._start = self._end = 0


class ReadBatches:
    """Whole batches that were read, one after the other."""

    def __init__(self, buffer: IoBuf) -> None:
        self._buffer = buffer
        self._places: list[tuple[int, int]] = []  # (offset after its last event, where it starts)
        at = 0
        while at < len(buffer):
            header = unpack_header(buffer.copy(BytePosition(at), HEADER_BYTES), 0)
            self._places.append((header[0] + header[12], at))
            at += header[1] + OVERHEAD_BYTES
        self._base = unpack_header(buffer.copy(BytePosition(0), HEADER_BYTES), 0)[0] if self._places else Offset(-1)

    def batch_of(self, offset: Offset) -> HeldBatch | None:
        """The batch with an offset; None if it was not read."""
        place = bisect_right(self._places, offset, key=_end_of)
        if not self._places or offset < self._base or place == len(self._places):
            return None
        batch = EventBatchView.at(self._buffer, BytePosition(self._places[place][1]))
        return HeldBatch(None, batch, self._buffer.share(0, len(self._buffer)))


def _end_of(place: tuple[int, int]) -> int:
    return place[0]
