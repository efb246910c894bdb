"""The bytes of a data descriptor: where the data of an event are, and which of them are selected.

::

    selected size 8 | whole size 8 | location length 8 | location | view count 8 | views        little-endian

    location   chunk id 4 | position in .data 8 | size 4                          16 bytes, packed
    views      1 | offset 8 | size 8                                              sub
               2 | offset 8 | block count 8 | block size 8 | gap size 8           stride
               3 | count 8 | count × (offset 8, size 8)                           unstructured

A descriptor on disk has no view and takes 48 bytes. A consumer adds views and sends it back to select data. Clients do
not interpret the location; the broker checks it against the index before it reads a byte.

A record of a Kafka consumer has no chunk beside it, and another replica may have its chunks cut elsewhere. So the
location of a descriptor may also name the event: chunk id ``BY_ID``, the event's id in the place of the position.

Source: Mofka's documentation for the location and the purpose of descriptors; the fields are in the order that Mofka's
readers expect. Mofka 0.9 writes a location of 24 bytes with padding (``mofka`` reads it).
"""

import struct
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.format.events.views import (
    RANGES_MAX,
    Segment,
    StrideView,
    SubView,
    UnstructuredView,
    View,
    flatten,
    view_size,
)
from millstream.model.events import ChunkId, DataPosition
from millstream.model.quantities import FilePosition, Offset

LOCATION: Final = struct.Struct("<IQI")
LOCATION_BYTES: Final = LOCATION.size
BY_ID: Final = ChunkId((1 << 32) - 1)
"""Chunk id of a location that names the event by its id."""
PLAIN: Final = struct.Struct("<QQQIQIQ")
"""A descriptor without views: size, size, 16, chunk id, position, size, 0."""
DESCRIPTOR_BYTES: Final = PLAIN.size

VIEWS_MAX: Final = 64
"""Maximum number of stacked views. Each one is a pass over the ranges of those before."""
LOCATION_BYTES_MAX: Final = 1024

_HEAD = struct.Struct("<QQQ")
_COUNT = struct.Struct("<Q")
_SUB = struct.Struct("<BQQ")
_STRIDE = struct.Struct("<BQQQQ")
_UNSTRUCTURED = struct.Struct("<BQ")
_RANGE = struct.Struct("<QQ")
_SUB_TAG, _STRIDE_TAG, _UNSTRUCTURED_TAG = 1, 2, 3


class Location(msgspec.Struct, frozen=True):
    """Where the data of one event lie in the chunks of its partition."""

    chunk: ChunkId
    position: FilePosition
    size: int


class DataDescriptor(msgspec.Struct, frozen=True):
    """The data of one event, or a selection of them. ``location`` is opaque; ``base_size`` is the size of all data."""

    location: bytes
    base_size: int
    views: tuple[View, ...] = ()

    @property
    def size(self) -> int:
        """Number of selected bytes."""
        size = self.base_size
        for view in self.views:
            size = view_size(size, view)
        return size

    def is_of(self, event_id: Offset, chunk: ChunkId, position: FilePosition, size: int) -> bool:
        """Whether it is that of an event whose data, ``size`` bytes, lie at ``position`` of a chunk."""
        place = decode_location(self.location)
        there = (BY_ID, event_id) if place.chunk == BY_ID else (chunk, position)
        return self.base_size == size == place.size and (place.chunk, place.position) == there

    def flatten(self, limit: int = RANGES_MAX) -> list[Segment]:
        """The selected ranges of the data, as ``views.flatten`` says."""
        return flatten(self.base_size, self.views, limit)

    def narrowed(self, view: View) -> "DataDescriptor":
        """The same data with one more view on top.

        Raises:
            Rejected: the view does not fit the selection, or there are too many views.
        """
        if len(self.views) == VIEWS_MAX:
            raise Rejected(f"more than {VIEWS_MAX} stacked views")
        made = DataDescriptor(self.location, self.base_size, (*self.views, view))
        _ = made.size
        return made


def descriptor_of_event(event_id: Offset, size: int) -> DataDescriptor:
    """All data, ``size`` bytes, of the event with this id, wherever they lie."""
    return DataDescriptor(LOCATION.pack(BY_ID, event_id, size), size)


def encode_descriptor(descriptor: DataDescriptor) -> bytes:
    """The bytes of a descriptor."""
    location = descriptor.location
    out = bytearray(_HEAD.pack(descriptor.size, descriptor.base_size, len(location)))
    out += location
    out += _COUNT.pack(len(descriptor.views))
    for view in descriptor.views:
        match view:
            case SubView(offset, size):
                out += _SUB.pack(_SUB_TAG, offset, size)
            case StrideView(offset, count, block, gap):
                out += _STRIDE.pack(_STRIDE_TAG, offset, count, block, gap)
            case UnstructuredView(segments):
                out += _UNSTRUCTURED.pack(_UNSTRUCTURED_TAG, len(segments))
                for one in segments:
                    out += _RANGE.pack(*one)
    return bytes(out)


def decode_descriptor(data: bytes | bytearray | memoryview) -> DataDescriptor:
    """The descriptor in these bytes, all of them.

    Raises:
        Rejected: the bytes are no descriptor, or its views do not fit its size.
    """
    try:
        size, base_size, location_size = _HEAD.unpack_from(data, 0)
        at = _HEAD.size
        if location_size > min(LOCATION_BYTES_MAX, len(data) - at):
            raise Rejected(f"a descriptor with a location of {location_size} bytes")
        location = bytes(data[at : at + location_size])
        at += location_size
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        if count > VIEWS_MAX:
            raise Rejected(f"a descriptor with {count} views")
        views: list[View] = []
        for _ in range(count):
            view, at = _read_view(data, at)
            views.append(view)
    except struct.error as error:
        raise Rejected("a descriptor that ends early") from error
    if at != len(data):
        raise Rejected(f"{len(data) - at} bytes after a descriptor")
    descriptor = DataDescriptor(location, base_size, tuple(views))
    if descriptor.size != size:
        raise Rejected(f"a descriptor that says {size} bytes and selects {descriptor.size}")
    return descriptor


def _read_view(data: bytes | bytearray | memoryview, at: int) -> tuple[View, int]:
    """The view at a byte, and the byte after it. ``struct.error`` where the bytes end."""
    tag = data[at] if at < len(data) else 0
    if tag == _SUB_TAG:
        _, offset, size = _SUB.unpack_from(data, at)
        return SubView(offset, size), at + _SUB.size
    if tag == _STRIDE_TAG:
        _, offset, blocks, block, gap = _STRIDE.unpack_from(data, at)
        return StrideView(offset, blocks, block, gap), at + _STRIDE.size
    if tag == _UNSTRUCTURED_TAG:
        _, count = _UNSTRUCTURED.unpack_from(data, at)
        at += _UNSTRUCTURED.size
        end = at + count * _RANGE.size
        if end > len(data):
            raise Rejected(f"a view that claims {count} ranges")
        pairs = _RANGE.iter_unpack(data[at:end])
        return UnstructuredView(tuple(Segment(DataPosition(offset), size) for offset, size in pairs)), end
    raise Rejected(f"a view of kind {tag}")


def decode_location(data: bytes) -> Location:
    """The location in 16 bytes. Rejected if there are not 16."""
    if len(data) != LOCATION_BYTES:
        raise Rejected(f"a location of {len(data)} bytes")
    return Location(*LOCATION.unpack(data))
