"""Event topics for Kafka's clients: events become records when they are fetched.

The other way, from records to events when they are produced, is ``format.events.from_records``.

What a record of an event is, by the topic property ``kafka.view``:

==========  ==========================================================================================
metadata    value: the metadata, JSON text unless the topic has another serializer. Headers:
            ``mofka.data.size``, decimal; if there are data, ``mofka.data.desc``, their descriptor; and
            ``mofka.data``, the data themselves up to ``INLINE_BYTES_MAX``
data        value: the data; null above ``VALUE_BYTES_MAX``. Headers: ``mofka.metadata``, ``mofka.data.size``
            and ``mofka.data.desc``
envelope    value: size of the metadata 8 | size of the data 8 | metadata | data, little-endian
==========  ==========================================================================================

The topic ``t.data`` gives event topic ``t`` in the view ``data``, with any value of the property. Offset and time of a
record are those of the event; there is no key.
"""

from __future__ import annotations

import struct
from itertools import count
from typing import Final

from millstream.format.events.batch import decode_event_batch, is_event_batch
from millstream.format.events.chunk import SIZE_MAX
from millstream.format.events.descriptor import descriptor_of_event, encode_descriptor
from millstream.format.events.from_records import METADATA_HEADER
from millstream.iobuf import IoBuf
from millstream.model.quantities import Offset
from millstream.wire.batch import HEADER_BYTES, OVERHEAD_BYTES
from millstream.wire.records import Headers, build_batch, unpack_header

INLINE_BYTES_MAX: Final = 4096
"""Data up to this size stand in a header of the metadata's record."""

VALUE_BYTES_MAX: Final = 1 << 20
"""Kafka's consumers take records up to about a mebibyte unless they are configured otherwise."""

DATA_HEADER: Final = "mofka.data"
SIZE_HEADER: Final = "mofka.data.size"
DESCRIPTOR_HEADER: Final = "mofka.data.desc"

_ENVELOPE: Final = struct.Struct("<QQ")


def has_events(batches: IoBuf) -> bool:
    """Whether these whole batches are of events."""
    if len(batches) < HEADER_BYTES:
        return False
    fragment, start, end = batches.parts[0]
    return is_event_batch(fragment.view[start:end] if end - start >= HEADER_BYTES else batches.copy(0, HEADER_BYTES))


def as_records(batches: IoBuf, view: str) -> list[bytes]:
    """Whole event batches as record batches with the same offsets, epochs and times."""
    data = memoryview(bytes(batches))
    made: list[bytes] = []
    at = 0
    while at < len(data):
        header = unpack_header(data, at)
        size = header[1] + OVERHEAD_BYTES
        made.append(_record_batch(data[at : at + size], view))
        at += size
    return made


def _record_batch(data: memoryview, view: str) -> bytes:
    batch = decode_event_batch(data, event_bytes_max=2 * SIZE_MAX, verify=False)
    make = _VIEWS[view]
    base = batch.header.base_offset
    events = zip(count(base), batch.metadata_of_each(), batch.data_of_each(), strict=False)
    time = batch.header.max_timestamp
    return build_batch(
        ((None, *make(event_id, bytes(metadata), payload), time) for event_id, metadata, payload in events),
        base_offset=base,
        leader_epoch=batch.header.leader_epoch,
    )


def _metadata_record(event_id: int, metadata: bytes, data: memoryview) -> tuple[bytes | None, Headers]:
    headers = _described(event_id, len(data))
    return metadata, (*headers, (DATA_HEADER, bytes(data))) if 0 < len(data) <= INLINE_BYTES_MAX else headers


def _data_record(event_id: int, metadata: bytes, data: memoryview) -> tuple[bytes | None, Headers]:
    headers = ((METADATA_HEADER, metadata), *_described(event_id, len(data)))
    return (bytes(data) if len(data) <= VALUE_BYTES_MAX else None), headers


def _described(event_id: int, size: int) -> Headers:
    """Headers that say how large the data are and which descriptor fetches them."""
    headers = ((SIZE_HEADER, str(size).encode()),)
    if not size:
        return headers
    return (*headers, (DESCRIPTOR_HEADER, encode_descriptor(descriptor_of_event(Offset(event_id), size))))


def _envelope_record(event_id: int, metadata: bytes, data: memoryview) -> tuple[bytes | None, Headers]:
    _ = event_id
    return b"".join((_ENVELOPE.pack(len(metadata), len(data)), metadata, data)), ()


_VIEWS: Final = {"metadata": _metadata_record, "data": _data_record, "envelope": _envelope_record}
