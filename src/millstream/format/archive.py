"""What an archived partition consists of in an object store, and what its group agrees on.

Keys, below the URL of the store; the topic id in hexadecimal::

    topics/<topic id>/topic                                          name, partitions, configuration (JSON)
    topics/<topic id>/<partition>/manifest                           `format.manifest`, derived
    topics/<topic id>/<partition>/<base>-<end>-<term>.segment        a segment, then its index
    topics/<topic id>/<partition>/<base>-<end>-<term>-<revision>.segment   the same, written by a job
    topics/<topic id>/<partition>/<offsets, times, counts>.part      the old end of a long manifest

A **segment object** starts with the batches, byte for byte as in the segment file. After them is the index, a payload
of ``format.sealed`` with the magic "MSAI"; integers are little-endian::

    topic id 16 bytes │ partition u32 │ base offset i64 │ end offset i64 │ blocks u32 │ epochs u32
    per block    base offset i64 │ position u64 │ largest timestamp i64 │ CRC-32C u32
    per epoch    leader epoch i64 │ first offset i64
    aborted u32
    per aborted transaction    producer id i64 │ first offset i64 │ offset of its marker i64

The aborted transactions are those with a record in the segment; their ends may lie in others. An index of version 1
ends before them, and says nothing of transactions.

A **block** is what is read at once: whole batches, or the rest of the segment (`ends_before`). Its checksum also covers
what the checksums of its batches leave out. Blocks of older releases end with the first batch that reaches
`BLOCK_BYTES`; readers take blocks of any size.

The **entries** that the group of the partition commits say what is archived: `Archived` adds a segment, `Spilled` moves
the oldest runs of the manifest into a part object, `Replaced` has other objects in the place of segments. What they
come to is a manifest. An object that no committed entry names is no part of the archive.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from millstream.errors import Corruption
from millstream.format.manifest import ArchivedSegment, ManifestPart, part_name
from millstream.format.sealed import seal, unseal, version_of
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.model.replication import EntryKind, Term

if TYPE_CHECKING:
    from millstream.format.manifest import ArchiveId

INDEX_MAGIC: Final = b"MSAI"
INDEX_VERSION: Final = 2
_WITHOUT_ABORTED: Final = 1
BLOCK_BYTES: Final = 1 << 20
"""No block is larger, so that a fetch of this size takes whole blocks, unless its batches are large (`ends_before`)."""

TOPICS_FOLDER: Final = "topics/"

_SEGMENT_NAME: Final = re.compile(r"(\d{20})-(\d{20})-(\d+)(?:-(\d+))?\.segment")
_HEAD: Final = struct.Struct("<16sIqqII")
_BLOCK: Final = struct.Struct("<qQqI")
_EPOCH: Final = struct.Struct("<qq")
_COUNT: Final = struct.Struct("<I")
_ABORTED: Final = struct.Struct("<qqq")

AbortedSpan: TypeAlias = tuple[int, int, int]
"""An aborted transaction: producer id, first offset, offset of its marker."""


class Block(msgspec.Struct, frozen=True):
    """Where a block starts in its segment, and its content. It ends where the next one starts."""

    base_offset: Offset
    position: FilePosition
    max_timestamp: TimestampMs
    checksum: int


def ends_before(gathered_bytes: int, batch_bytes: int, block_bytes: int = BLOCK_BYTES) -> bool:
    """Whether a block that has so many bytes ends before a batch of this size.

    A block that is not filled to three quarters may be as large as a slot of the warm cache: with batches of half a
    mebibyte its slots would be less than half full otherwise.
    """
    limit = block_bytes if 4 * gathered_bytes >= 3 * block_bytes else block_bytes * 319 // 256
    return gathered_bytes > 0 and gathered_bytes + batch_bytes > limit


class SegmentIndex(msgspec.Struct, frozen=True):
    """The index of an archived segment."""

    base_offset: Offset
    end_offset: Offset
    blocks: tuple[Block, ...]
    epochs: tuple[tuple[Term, Offset], ...]
    """(leader epoch, its first offset) of what is in the segment, both rising."""
    aborted: tuple[AbortedSpan, ...] | None = ()
    """The aborted transactions with a record in the segment, by first offset; None if that is unknown."""

    def find(self, offset: Offset) -> int:
        """Number of the block with the offset, which is in the segment."""
        return max(0, bisect_right(self.blocks, offset, key=_base_offset) - 1)


def _base_offset(block: Block) -> Offset:
    return block.base_offset


def encode_index(owner: ArchiveId, index: SegmentIndex) -> bytes:
    """The bytes after the batches of a segment object."""
    counts = len(index.blocks), len(index.epochs)
    head = _HEAD.pack(owner.topic_id.bytes, owner.partition_index, index.base_offset, index.end_offset, *counts)
    blocks = b"".join(
        _BLOCK.pack(one.base_offset, one.position, one.max_timestamp, one.checksum) for one in index.blocks
    )
    content = head + blocks + b"".join(_EPOCH.pack(*one) for one in index.epochs)
    if index.aborted is None:
        return seal(INDEX_MAGIC, _WITHOUT_ABORTED, content)
    aborted = _COUNT.pack(len(index.aborted)) + b"".join(_ABORTED.pack(*one) for one in index.aborted)
    return seal(INDEX_MAGIC, INDEX_VERSION, content + aborted)


def decode_index(owner: ArchiveId, segment: ArchivedSegment, data: bytes | bytearray | memoryview) -> SegmentIndex:
    """What `encode_index` made. Raises Corruption for anything else, and for the index of another segment."""
    payload = unseal(INDEX_MAGIC, range(_WITHOUT_ABORTED, INDEX_VERSION + 1), data)
    aborted: tuple[AbortedSpan, ...] | None = None
    try:
        topic, partition, base, end, block_count, epoch_count = _HEAD.unpack_from(payload)
        position = _HEAD.size
        blocks: list[Block] = []
        for _ in range(block_count):
            first, place, newest, checksum = _BLOCK.unpack_from(payload, position)
            blocks.append(Block(Offset(first), FilePosition(place), TimestampMs(newest), checksum))
            position += _BLOCK.size
        epochs: list[tuple[Term, Offset]] = []
        for _ in range(epoch_count):
            epoch, first = _EPOCH.unpack_from(payload, position)
            epochs.append((Term(epoch), Offset(first)))
            position += _EPOCH.size
        if version_of(data) != _WITHOUT_ABORTED:
            (count,) = _COUNT.unpack_from(payload, position)
            position += _COUNT.size
            aborted = tuple(_ABORTED.unpack_from(payload, position + at * _ABORTED.size) for at in range(count))
            position += count * _ABORTED.size
    except struct.error as error:
        raise Corruption(f"the index of an archived segment that cannot be read: {error}") from error
    mine = (owner.topic_id.bytes, owner.partition_index, segment.base_offset, segment.end_offset)
    if (topic, partition, base, end) != mine or position != len(payload) or not blocks or blocks[0].position:
        raise Corruption(f"the index of an archived segment is not that of offsets {segment.base_offset} on")
    return SegmentIndex(Offset(base), Offset(end), tuple(blocks), tuple(epochs), aborted)


# -- keys --------------------------------------------------------------------------------------------------------------


def topic_folder(owner: ArchiveId) -> str:
    """The folder of all objects of the topic."""
    return f"{TOPICS_FOLDER}{owner.topic_id.hex}/"


def partition_folder(owner: ArchiveId) -> str:
    """The folder of all objects of the partition."""
    return f"{topic_folder(owner)}{owner.partition_index}/"


def topic_key(owner: ArchiveId) -> str:
    """The object that describes the topic."""
    return f"{topic_folder(owner)}topic"


def manifest_key(owner: ArchiveId) -> str:
    """The manifest object."""
    return f"{partition_folder(owner)}manifest"


def part_key(owner: ArchiveId, part: ManifestPart) -> str:
    """The object of a part."""
    return partition_folder(owner) + part_name(part)


def segment_key(owner: ArchiveId, segment: ArchivedSegment) -> str:
    """The object of a segment. Two leaders that upload the same offsets use different keys, and so do two jobs."""
    offsets = f"{segment.base_offset:020}-{segment.end_offset:020}"
    revision = f"-{segment.revision}" if segment.revision else ""
    return f"{partition_folder(owner)}{offsets}-{segment.term}{revision}.segment"


def parse_segment_name(name: str) -> tuple[Offset, Offset, Term, int] | None:
    """Base offset, end offset, term and revision from the last part of a segment's key; None for another name."""
    found = _SEGMENT_NAME.fullmatch(name)
    if found is None:
        return None
    base, end, term, revision = (int(one or 0) for one in found.groups())
    return Offset(base), Offset(end), Term(term), revision


# -- entries -----------------------------------------------------------------------------------------------------------


ARCHIVE_ENTRY: Final = EntryKind(1)
"""Kind of these entries in the log of a group."""


class Archived(msgspec.Struct, frozen=True, tag=1):
    """The segment is in the store, and follows what was archived before."""

    segment: ArchivedSegment
    start_offset: Offset
    """Start of the log when the entry was proposed: what ends at or before it has left the archive."""


class Spilled(msgspec.Struct, frozen=True, tag=2, omit_defaults=True):
    """The oldest runs of the manifest are in a part object."""

    part: ManifestPart
    version: int = 0
    """Version of the manifest whose runs these are. In a manifest of another version the entry changes nothing."""


class Replaced(msgspec.Struct, frozen=True, tag=3):
    """Other segments have the batches of these segments from now on. In a manifest of another version than
    ``expected_version`` the entry changes nothing.
    """

    id: bytes
    """Id of the replacement, `REPLACEMENT_ID_BYTES`: a second entry with the same id changes nothing."""

    expected_version: int
    before: tuple[ArchivedSegment, ...]
    after: tuple[ArchivedSegment, ...]
    """Both in order, without gaps, with the same first and last offset."""

    part_before: ManifestPart | None = None
    """The part of the manifest that has all of ``before``; None if they are in memory."""

    part_after: ManifestPart | None = None
    """The part that takes its place."""

    @property
    def base_offset(self) -> Offset:
        """First offset of the range."""
        return self.before[0].base_offset

    @property
    def end_offset(self) -> Offset:
        """End (exclusive) of the range."""
        return self.before[-1].end_offset


Entry: TypeAlias = Archived | Spilled | Replaced

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Entry).decode


def encode_entry(entry: Entry) -> bytes:
    """The payload of a control entry."""
    return _encode(entry)


def decode_entry(payload: bytes) -> Entry:
    """What `encode_entry` made. Raises Corruption for anything else."""
    try:
        return _decode(payload)
    except msgspec.MsgspecError as error:
        raise Corruption(f"an entry about an archived segment that cannot be read: {error}") from error


# -- the topic ---------------------------------------------------------------------------------------------------------


class TopicDescription(msgspec.Struct, frozen=True):
    """The object that describes a topic: what recovery needs beside the partitions."""

    name: str
    topic_id: str
    """In hexadecimal."""

    partitions: int
    configs: dict[str, str]
    """The topic's own properties."""

    cluster_id: str = ""
    replicas: int = 0
    """Replicas of each partition; 0 in what older releases wrote."""


def encode_topic(topic: TopicDescription) -> bytes:
    """The bytes of the object."""
    return msgspec.json.encode(topic)


def decode_topic(data: bytes | bytearray | memoryview) -> TopicDescription:
    """What `encode_topic` made. Raises Corruption for anything else."""
    try:
        return msgspec.json.decode(bytes(data), type=TopicDescription)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the description of a topic that cannot be read: {error}") from error
