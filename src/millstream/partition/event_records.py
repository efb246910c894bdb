"""Event topics for Kafka's clients: records become events when they are produced, events become records when they are
fetched.

What a record of an event is, by the topic property ``kafka.view``:

==========  ==========================================================================================
metadata    value: the metadata, JSON text unless the topic has another serializer. Headers:
            ``mofka.data.size``, decimal; if there are data, ``mofka.data.desc``, their descriptor; and
            ``mofka.data``, the data themselves up to ``INLINE_BYTES_MAX``
data        value: the data; null above ``VALUE_BYTES_MAX``. Headers: ``mofka.metadata``, ``mofka.data.size``
            and ``mofka.data.desc``
envelope    value: size of the metadata 8 | size of the data 8 | metadata | data, little-endian
==========  ==========================================================================================

The topic ``t.data`` gives event topic ``t`` in the view ``data``, whatever the property says. Offset and time of a
record are those of the event; there is no key. A produced record is an event with the header
``mofka.metadata`` as its metadata and the value as its data; without this header its value is the metadata, and is JSON
text. Keys and other headers are not kept. Only topics whose metadata are JSON text take records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.format.events.batch import Producer, build_event_batch, decode_event_batch, is_event_batch
from millstream.format.events.chunk import SIZE_MAX
from millstream.format.events.descriptor import descriptor_of_event, encode_descriptor
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, TimestampMs
from millstream.wire.batch import HEADER_BYTES, OVERHEAD_BYTES
from millstream.wire.errors import BatchError
from millstream.wire.records import Headers, build_batch, iter_records, unpack_header

INLINE_BYTES_MAX: Final = 4096
"""Data up to this size stand in a header of the metadata's record."""

VALUE_BYTES_MAX: Final = 1 << 20
"""Kafka's consumers take records up to about a mebibyte unless they are configured otherwise."""

METADATA_HEADER: Final = "mofka.metadata"
DATA_HEADER: Final = "mofka.data"
SIZE_HEADER: Final = "mofka.data.size"
DESCRIPTOR_HEADER: Final = "mofka.data.desc"

_ENVELOPE: Final = struct.Struct("<QQ")
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


def has_events(batches: IoBuf) -> bool:
    """Whether these whole batches are of events."""
    return len(batches) >= HEADER_BYTES and is_event_batch(batches.copy(0, HEADER_BYTES))


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


def as_events(views: Sequence[memoryview]) -> list[memoryview]:
    """A produced batch of records as an event batch of the same producer and sequence.

    Raises:
        BatchError: it is no batch of records, or a record is no event.
    """
    data = memoryview(b"".join(views))
    header = unpack_header(data, 0)
    metadata: list[bytes] = []
    payload: list[list[bytes]] = []
    for text, content in _events(data):
        metadata.append(text)
        payload.append([content])
    producer = Producer(header[9], header[10], header[11])
    try:
        pieces = build_event_batch(metadata, payload, now_ms=TimestampMs(header[8]), producer=producer)
    except Rejected as error:
        raise BatchError(error.message, error.code) from error
    return [memoryview(b"".join(pieces))]


def _events(data: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Metadata and data of each record."""
    for record in iter_records(data):
        given = dict(record.headers).get(METADATA_HEADER)
        text, content = (record.value, b"") if given is None else (given, record.value or b"")
        try:
            _check_json(text or b"")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            what = f"the metadata of record {record.offset} are no JSON: {error}"
            raise BatchError(what, ErrorCode.INVALID_RECORD) from error
        assert text is not None
        yield text, content
