"""Chunks: the segment files of event topics. The seam between one partition's log and its chunk files.

A log hands over event batches that are durable in the write-ahead log and gets back reads. ``ChunkStore`` is one
partition's directory of chunks over the seam for files (``storage.disk``); it runs in the worker, where blocking is
allowed, and belongs to one thread. What a log needs of its segment files, and what gives it here:

=====================  =====================================  =====================================================
a log needs            segments (``storage.segments``)        chunks
=====================  =====================================  =====================================================
write behind           ``Write`` at a position                ``append``: whole batches, in offset order
roll                   decided by the log                     decided after each batch by the seed's two limits
checkpoint             sync of dirty files and directories    ``sync``: the same for the five files of a chunk
recovery               walk over batch headers                ``open``: batches that the sidecar covers; cut or damage
read a batch           bytes of the ``.log``                  ``read_batches``: rebuilt, checked, byte for byte
find by time           sparse index                           ``offset_at``: the sidecar's largest times
truncate, trim         ``Cut``, ``Remove``                    ``truncate_to``, ``trim_to``
feed, data             none                                   ``feed``, ``fetch_data``: what the seed's consumers ask
=====================  =====================================  =====================================================

Promises. A batch that was appended and synced is there after every crash, whole, once. One that was not synced is
there whole or not at all. A failed append (disk full, I/O error) changes nothing that is read and is repeated at the
same place. A failed sync is not survived: its caller stops. Damage of durable events is reported (``damaged``), never
cut away. Every read is bounded by its caller in events and bytes, metadata are checked against their checksum each
time, and a descriptor from outside is checked against the index before a byte of data is read.

What is absent: which events are committed, who may read, the write-ahead log, threads.
"""

from millstream.storage.chunks.configuration import ChunkConfiguration, read_configuration
from millstream.storage.chunks.pools import BufferPool, BufferPools, PoolShape
from millstream.storage.chunks.reads import ChunkReads, FedEvents, WantedData
from millstream.storage.chunks.store import ChunkStore

__all__ = [
    "BufferPool",
    "BufferPools",
    "ChunkConfiguration",
    "ChunkReads",
    "ChunkStore",
    "FedEvents",
    "PoolShape",
    "WantedData",
    "read_configuration",
]
