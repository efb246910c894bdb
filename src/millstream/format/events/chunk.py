"""A chunk's names, its index records, and when the next chunk starts, all of it as in Mofka.

::

    .idx   metadata position 8 | size 4 | data position 8 | size 4 | descriptor position 8 | size 4       36 bytes

Positions count from the start of the chunk's own files, and each event's ranges start where those of the event before
end. The records alone therefore make the chunk readable: a reader that knows 36 bytes needs nothing of ours.

A chunk is full with the batch that brings it to ``max_events_per_chunk`` events, or ``.meta`` and ``.data`` together to
``max_chunk_size`` bytes. A batch is never split, so a chunk may pass its limits by one batch.

The directory of a partition is named by the topic and a UUID. Here the UUID follows from the topic's id and the
partition's number, so that the same partition finds its directory again on every start and every broker.

Sizes are 32 bits. A larger one is ``Rejected``; Mofka cuts it silently.
"""

import re
import struct
import uuid
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import Final, NamedTuple

import msgspec

from millstream.errors import Corruption, Rejected
from millstream.format.events.descriptor import DESCRIPTOR_BYTES, LOCATION_BYTES, PLAIN
from millstream.format.names import partition_directory
from millstream.model.events import ChunkId, PartitionIndex
from millstream.model.quantities import FilePosition

META_SUFFIX: Final = ".meta"
DATA_SUFFIX: Final = ".data"
DESC_SUFFIX: Final = ".desc"
INDEX_SUFFIX: Final = ".idx"
SIDECAR_SUFFIX: Final = ".crc"
SUFFIXES: Final = (META_SUFFIX, DATA_SUFFIX, DESC_SUFFIX, INDEX_SUFFIX, SIDECAR_SUFFIX)

INDEX_RECORD: Final = struct.Struct("<QIQIQI")
INDEX_RECORD_BYTES: Final = INDEX_RECORD.size
SIZE_MAX: Final = (1 << 32) - 1
"""Maximum size of one event's metadata, or data, in bytes: the format's, far above what a topic allows."""

_PARTITIONS_MAX: Final = 10_000
"""Partitions of a topic among which that of a directory is looked for."""

_NAME: Final = re.compile(r"chunk-([0-9]{6,})\.(?:meta|data|desc|idx|crc)")


class IndexRecord(NamedTuple):
    """Where one event lies in the files of its chunk."""

    meta_position: FilePosition
    meta_size: int
    data_position: FilePosition
    data_size: int
    desc_position: FilePosition
    desc_size: int


class ChunkEnds(msgspec.Struct, frozen=True):
    """How far a chunk is written: its events, and the ends (exclusive) of its files."""

    events: int = 0
    meta: FilePosition = FilePosition(0)
    data: FilePosition = FilePosition(0)

    @property
    def desc(self) -> FilePosition:
        """End of ``.desc``. Descriptors on disk have no view, so all are of one size."""
        return FilePosition(self.events * DESCRIPTOR_BYTES)

    @property
    def index(self) -> FilePosition:
        """End of ``.idx``."""
        return FilePosition(self.events * INDEX_RECORD_BYTES)

    def plus(self, count: int, meta_bytes: int, data_bytes: int) -> "ChunkEnds":
        """The ends after ``count`` more events."""
        return ChunkEnds(
            self.events + count, FilePosition(self.meta + meta_bytes), FilePosition(self.data + data_bytes)
        )


class ChunkLimits(msgspec.Struct, frozen=True):
    """When a chunk is full. The defaults are Mofka's."""

    max_chunk_size: int = 64 << 20
    max_events_per_chunk: int = 1_000_000

    def full(self, ends: ChunkEnds) -> bool:
        """Whether the next batch starts a new chunk. Asked after each batch."""
        return ends.events >= self.max_events_per_chunk or ends.meta + ends.data >= self.max_chunk_size


def chunk_name(chunk: ChunkId, suffix: str) -> str:
    """The name of one file of a chunk: six digits at least."""
    return f"chunk-{chunk:06d}{suffix}"


def parse_chunk_name(name: str) -> ChunkId | None:
    """The chunk that a file belongs to; None for any other name."""
    found = _NAME.fullmatch(name)
    if found is None or (len(found[1]) > 6 and found[1].startswith("0")):
        return None
    return ChunkId(int(found[1]))


def partition_uuid(topic_id: bytes, partition: PartitionIndex) -> uuid.UUID:
    """The UUID of a partition, the same for all time (RFC 9562, version 5). ``partition`` counts from 0."""
    return uuid.uuid5(uuid.UUID(bytes=topic_id), str(partition))


def partition_directory_name(topic: str, topic_id: bytes, partition: PartitionIndex) -> str:
    """The name of a partition's directory, ``<topic>-<uuid>``."""
    return f"{topic}-{partition_uuid(topic_id, partition)}"


def log_directory(data_dir: str, topic_id: bytes, topic: str, partition: PartitionIndex, *, events: bool) -> str:
    """Directory of a partition's log; that of an event topic is named as in Mofka."""
    directory = partition_directory(data_dir, topic_id, partition)
    if not events:
        return directory
    name = partition_directory_name(topic, topic_id, partition)
    return f"{directory.rpartition('/')[0]}/{name}"


def partition_of(directory_name: str, topic_id: bytes) -> PartitionIndex | None:
    """The partition whose directory has this name; None if it is no partition of the topic."""
    wanted = directory_name[-36:]
    for number in range(_PARTITIONS_MAX):
        if str(partition_uuid(topic_id, PartitionIndex(number))) == wanted:
            return PartitionIndex(number)
    return None


def encode_index(ends: ChunkEnds, meta_sizes: Sequence[int], data_sizes: Sequence[int]) -> bytes:
    """The index records of a batch that is written at ``ends``.

    Raises:
        Rejected: a size does not fit 32 bits.
    """
    count = len(meta_sizes)
    descs = range(ends.desc, ends.desc + count * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES)
    columns = (starts(ends.meta, meta_sizes), meta_sizes, starts(ends.data, data_sizes), data_sizes, descs)
    try:
        return b"".join(map(INDEX_RECORD.pack, *columns, repeat(DESCRIPTOR_BYTES)))
    except struct.error as error:
        raise Rejected(f"an event of more than {SIZE_MAX} bytes does not fit a chunk") from error


def encode_descriptors(chunk: ChunkId, ends: ChunkEnds, data_sizes: Sequence[int]) -> bytes:
    """The descriptors of a batch that is written at ``ends``: they follow from the index, so a lost ``.desc`` can be
    written again.
    """
    places = starts(ends.data, data_sizes)
    columns = (data_sizes, data_sizes, repeat(LOCATION_BYTES), repeat(chunk), places, data_sizes, repeat(0))
    try:
        return b"".join(map(PLAIN.pack, *columns))
    except struct.error as error:
        raise Rejected(f"an event of more than {SIZE_MAX} bytes does not fit a chunk") from error


def starts(first: FilePosition, sizes: Sequence[int]) -> list[int]:
    """Start of each run of these sizes, back to back from ``first`` on."""
    return list(accumulate(sizes, initial=first))[:-1]


def read_index(data: bytes | bytearray | memoryview, before: ChunkEnds | None = None) -> list[IndexRecord]:
    """The records in whole bytes of an ``.idx`` file that start at ``before``.

    Raises:
        Corruption: there is a part of a record, or one does not start where the previous one ends.
    """
    if len(data) % INDEX_RECORD_BYTES:
        raise Corruption(f"{len(data)} bytes are no whole number of index records")
    before = before or ChunkEnds()
    meta, position, desc = before.meta, before.data, before.desc
    records: list[IndexRecord] = []
    for values in INDEX_RECORD.iter_unpack(data):
        one = IndexRecord(*values)
        if (one.meta_position, one.data_position, one.desc_position) != (meta, position, desc):
            raise Corruption(f"index record {before.events + len(records)} is not where the one before ends")
        meta = FilePosition(meta + one.meta_size)
        position = FilePosition(position + one.data_size)
        desc = FilePosition(desc + one.desc_size)
        records.append(one)
    return records
