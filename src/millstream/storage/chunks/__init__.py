"""Chunks: the segment files of event topics. One log, two kinds of segment; this room is the second kind.

``ChunkDisk`` is the seam for files (``storage.disk``) with chunks in it: in the directory of an event topic's partition
a segment is a chunk, five files in Mofka's format, and looks like one file of batches. What a log needs of its
segments, and what gives it here:

=====================  ========================================================================================
a log needs            chunks
=====================  ========================================================================================
write behind           ``ChunkSegment.write``: batches cut out of the stream, into the five files
roll                   Mofka's two limits, checked after each batch (``storage.log.event_log``)
checkpoint             ``ChunkSegment.sync``: the five files of a chunk
recovery               ``ChunkSegment.load``: the stream that the sidecar covers; the write-ahead log has the rest
read a batch           ``ChunkSegment.read_into``: rebuilt byte for byte; its reader checks its checksum
truncate, trim         ``ChunkSegment.truncate``, ``ChunkDisk.unlink``
feed, data             ``ChunkReads``: metadata and descriptors without data, selected ranges of data
=====================  ========================================================================================

Promises. A batch that was written and synced is there after every crash, whole, once. One that was not synced is there
whole or not at all, or fails its checksum and is written again. A failed write changes nothing that is read. Every read
is bounded by its caller in events and bytes, metadata are checked against their checksum each time, and a descriptor
from outside is checked against the index before a byte of data is read.

What is absent: which events are committed, who may read, the write-ahead log, processes.
"""

from millstream.storage.chunks.chunk_disk import ChunkDisk, holds_chunks, is_chunk_disk
from millstream.storage.chunks.chunk_segment import ChunkSegment
from millstream.storage.chunks.reads import ChunkReads, FedEvents, WantedData

__all__ = [
    "ChunkDisk",
    "ChunkReads",
    "ChunkSegment",
    "FedEvents",
    "WantedData",
    "holds_chunks",
    "is_chunk_disk",
]
