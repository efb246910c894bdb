"""Event topics as bytes: the batch that travels, the chunk files that stay, the descriptors that name data.

An *event* is a small piece of metadata (JSON by default) and a run of raw data, perhaps empty. Its id is its Kafka
offset. Producers send a batch of events; write-ahead log, log cache and replication handle it as one record batch of
format 2. On disk a partition is a directory of *chunks*, each of four files that Mofka's documentation describes,
and a fifth of ours beside them.

::

    <topic>-<uuid>/chunk-000000.meta   metadata of all events, back to back
                               .data   data of all events, back to back
                               .desc   one serialized descriptor an event: where its data are
                               .idx    36 bytes an event: position and size of its metadata, data and descriptor
                               .crc    ours: batch boundaries, times, leader epochs, producers, checksums

The modules, bottom up: ``views`` (selections of an event's data), ``descriptor`` (their bytes), ``chunk`` (names,
index records, rotation), ``sidecar`` (the ``.crc`` file), ``batch`` (the batch that travels), ``recovery`` (what of a
chunk can be trusted), ``ranges`` (few reads for many selections), ``mofka`` (partitions that Mofka itself wrote).

Everything here is bytes ↔ values. No module opens a file. Numbers are little-endian, as in Mofka's; only the header
of a batch is Kafka's. Bytes from a client raise ``Rejected``, bytes from a disk raise ``Corruption``.
"""

from millstream.format.events.batch import EventBatch, build_event_batch, decode_event_batch
from millstream.format.events.chunk import (
    DESCRIPTOR_BYTES,
    INDEX_RECORD_BYTES,
    ChunkEnds,
    ChunkLimits,
    IndexRecord,
    chunk_name,
    encode_descriptors,
    encode_index,
    parse_chunk_name,
    partition_directory_name,
    partition_uuid,
    read_index,
)
from millstream.format.events.descriptor import DataDescriptor, Location, decode_descriptor, encode_descriptor
from millstream.format.events.mofka import MofkaChunk, read_mofka_chunk
from millstream.format.events.ranges import ReadSpan, coalesce
from millstream.format.events.sidecar import BatchEntry, SidecarHeader, batch_pieces
from millstream.format.events.views import Segment, StrideView, SubView, UnstructuredView, View, flatten

__all__ = [
    "DESCRIPTOR_BYTES",
    "INDEX_RECORD_BYTES",
    "BatchEntry",
    "ChunkEnds",
    "ChunkLimits",
    "DataDescriptor",
    "EventBatch",
    "IndexRecord",
    "Location",
    "MofkaChunk",
    "ReadSpan",
    "Segment",
    "SidecarHeader",
    "StrideView",
    "SubView",
    "UnstructuredView",
    "View",
    "batch_pieces",
    "build_event_batch",
    "chunk_name",
    "coalesce",
    "decode_descriptor",
    "decode_event_batch",
    "encode_descriptor",
    "encode_descriptors",
    "encode_index",
    "flatten",
    "parse_chunk_name",
    "partition_directory_name",
    "partition_uuid",
    "read_index",
    "read_mofka_chunk",
]
