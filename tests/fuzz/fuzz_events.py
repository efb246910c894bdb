"""Event batches, descriptors and chunk files as targets.

Batches and sidecars are mended after the change, so that the reader behind the checksum is reached. Recovery raises
nothing for a chunk that is bent behind its sidecar's header: what it cannot trust it leaves out.
"""

from random import Random

from crc32c import crc32c
from fuzz_batches import mend
from fuzz_formats import Format
from fuzz_mutation import scramble

from millstream.errors import Rejected
from millstream.format.events import (
    ChunkEnds,
    DataDescriptor,
    Segment,
    SidecarHeader,
    StrideView,
    SubView,
    UnstructuredView,
    build_event_batch,
    decode_descriptor,
    decode_event_batch,
    encode_descriptor,
    encode_descriptors,
    encode_index,
    read_mofka_chunk,
)
from millstream.format.events.sidecar import (
    ENTRY_BYTES,
    SIDECAR_HEADER_BYTES,
    decode_entry,
    encode_entry,
    encode_header,
    entry_of,
)
from millstream.storage.chunks.chunk_segment import read_header
from millstream.wire.errors import BatchError

_RANGES = 500
_EVENTS = [(b'{"n":%d}' % n, bytes([n]) * (n * 11)) for n in range(6)]


def event_formats() -> list[Format]:
    """Everything that reads bytes of event topics."""
    batches = [_batch(_EVENTS), _batch(_EVENTS[:1]), _batch([(b"", b"")] * 9)]
    views = (SubView(1, 50), StrideView(2, 3, 4, 5), UnstructuredView((Segment(0, 1), Segment(4, 2))))
    descriptors = [encode_descriptor(DataDescriptor(bytes(16), 52, views[:count])) for count in range(4)]
    return [
        Format(
            "batch of events", _decode_batch, batches, lambda rng, data: mend(bytearray(scramble(rng, data, batches)))
        ),
        Format("file descriptor", _decode_descriptor, descriptors, scramble, constant=512 << 10),
        Format("file sidecar", _read_sidecar, [_chunk()[0]], _bend_sidecar),
        Format("file Mofka index", _read_mofka, [_chunk()[1], bytes(48), bytes(96)], scramble),
    ]


def _batch(events: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(build_event_batch([meta for meta, _ in events], [[data] for _, data in events], now_ms=1))


def _decode_batch(data: bytes) -> None:
    try:
        batch = decode_event_batch(data, event_bytes_max=1 << 20)
    except BatchError as error:
        raise Rejected(error.message) from error
    assert sum(map(len, batch.metadata_of_each())) + sum(map(len, batch.data_of_each())) <= len(data)


def _decode_descriptor(data: bytes) -> None:
    descriptor = decode_descriptor(data)
    assert encode_descriptor(descriptor) == data
    assert sum(one.size for one in descriptor.flatten(_RANGES)) == descriptor.size


def _chunk() -> tuple[bytes, bytes]:
    """(sidecar, index) of a chunk of two batches."""
    sidecar, index, ends = encode_header(SidecarHeader(0, 0, bytes(16))), b"", ChunkEnds()
    for events in (_EVENTS[:2], _EVENTS[2:]):
        batch = decode_event_batch(_batch(events), event_bytes_max=1000)
        records = encode_index(ends, batch.metadata_sizes, batch.data_sizes)
        entry = entry_of(batch, ends, records, encode_descriptors(0, ends, batch.data_sizes))
        sidecar, index, ends = sidecar + encode_entry(entry), index + records, entry.ends
    return sidecar, index


def _bend_sidecar(rng: Random, data: bytes) -> bytes:
    """A bent sidecar whose header and entries have the checksums that they should have."""
    out = bytearray(scramble(rng, data))
    marks = [(0, SIDECAR_HEADER_BYTES)]
    marks += [(at, ENTRY_BYTES) for at in range(SIDECAR_HEADER_BYTES, len(out), ENTRY_BYTES)]
    for at, size in marks:
        if at + size <= len(out):
            out[at + size - 4 : at + size] = crc32c(bytes(out[at : at + size - 4])).to_bytes(4, "little")
    return bytes(out)


def _read_sidecar(data: bytes) -> None:
    try:
        read_header(data, "chunk-000000")
    except FileNotFoundError as error:  # recovery takes a header that is not whole for a chunk that was being made
        raise Rejected("no header") from error
    for at in range(SIDECAR_HEADER_BYTES, len(data), ENTRY_BYTES):
        if decode_entry(data, at) is None:
            break


def _read_mofka(data: bytes) -> None:
    read_mofka_chunk(data, bytes(1000), 1000)
