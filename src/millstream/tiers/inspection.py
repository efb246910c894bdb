"""Looking through an object store without a broker: is every archived segment there and sound, and what is superfluous.

The manifest objects say what is archived. They may be a minute older than what the partitions committed, so an object
after the end of its manifest is never superfluous: it may be committed already. Superfluous is what lies before that
end and is not in the manifest: an upload of a leader that lost its term, a crash between upload and commit, a removal
that did not come to its end. What a replacement of the last hour has replaced is not superfluous yet: a reader may have
it, and the partition's leader removes it.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.format.archive import (
    TOPICS_FOLDER,
    decode_index,
    decode_topic,
    manifest_key,
    parse_segment_name,
    part_key,
    partition_folder,
    segment_key,
    topic_key,
)
from millstream.format.manifest import (
    ArchiveId,
    decode_manifest,
    decode_part,
    parse_part_name,
    unpack_run,
)
from millstream.format.shared_object import SHARED_FOLDER, parse_shared_key
from millstream.model.quantities import FilePosition, Offset
from millstream.model.shared import NO_OBJECT
from millstream.objects import ObjectKey
from millstream.tiers.shared_objects import read_block, read_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.format.archive import TopicDescription
    from millstream.format.manifest import ArchivedSegment, Manifest, ManifestPart
    from millstream.objects import ObjectInfo, ObjectStore

_READ_BYTES: Final = 4 << 20
_PARTITION: Final = re.compile(r"topics/([0-9a-f]{32})/(\d+)/(.+)")


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, or superfluous."""

    kind: str
    """``damaged``, ``missing`` or ``superfluous``."""

    topic: str
    partition: int
    key: str
    what: str
    size_bytes: int = 0


class ArchivedPartition(msgspec.Struct, frozen=True):
    """One partition of the store."""

    owner: ArchiveId
    topic: str
    """Its name; the id without a description."""

    objects: dict[str, ObjectInfo]
    """Every object of it, by key."""


class Tally(msgspec.Struct):
    """What was examined."""

    partitions: int = 0
    segments: int = 0
    bytes: int = 0
    findings: list[Finding] = []


def read_whole(store: ObjectStore, key: str) -> memoryview:
    """The bytes of an object. Raises Corruption without one."""
    info = store.head(ObjectKey(key))
    if info is None:
        raise Corruption(f"{store.url} has no object {key}")
    return store.get(ObjectKey(key), FilePosition(0), FilePosition(info.size_bytes))


class StoredTopic(msgspec.Struct, frozen=True):
    """A topic that a store describes. Several may have one name: a topic is its id."""

    topic: TopicDescription
    written_ms: int
    """When its description was written, by the clock of the store."""


def describe_topics(store: ObjectStore) -> list[TopicDescription]:
    """The topics that the store can recover, by name, and of one name the newest last."""
    return [one.topic for one in stored_topics(store)]


def stored_topics(store: ObjectStore) -> list[StoredTopic]:
    """The same, with the time of their description. A topic whose description is damaged is left out."""
    found: list[StoredTopic] = []
    for info in store.list(TOPICS_FOLDER):
        if info.key.count("/") == 2 and info.key.endswith("/topic"):
            try:
                found.append(StoredTopic(decode_topic(read_whole(store, info.key)), info.modified_ms))
            except Corruption:
                continue
    return sorted(found, key=lambda one: (one.topic.name, one.written_ms, one.topic.topic_id))


def find_partitions(store: ObjectStore, topic: str | None = None) -> list[ArchivedPartition]:
    """Every partition that has objects, or those of one topic."""
    objects: dict[ArchiveId, dict[str, ObjectInfo]] = {}
    for info in store.list(TOPICS_FOLDER):
        match = _PARTITION.fullmatch(info.key)
        if match is not None:
            owner = ArchiveId(uuid.UUID(match[1]), int(match[2]))
            objects.setdefault(owner, {})[info.key] = info
    names: dict[uuid.UUID, str] = {}
    for owner in objects:
        if owner.topic_id not in names:
            try:
                names[owner.topic_id] = decode_topic(read_whole(store, topic_key(owner))).name
            except Corruption:
                names[owner.topic_id] = owner.topic_id.hex
    ordered = sorted(objects, key=lambda one: (names[one.topic_id], one.partition_index))
    return [
        ArchivedPartition(owner, names[owner.topic_id], objects[owner])
        for owner in ordered
        if topic in (None, names[owner.topic_id]) and not _only_parts(objects[owner])
    ]


def _only_parts(objects: dict[str, ObjectInfo]) -> bool:
    """Whether it is a shared partition of which nothing was joined: it has no manifest and no segments of its own."""
    return all(parse_part_name(key.rpartition("/")[2]) is not None for key in objects)


def verify_shared(store: ObjectStore, tally: Tally, advance: Callable[[int], None] | None = None) -> None:
    """Read every byte of all shared objects, and add what is found to a tally."""
    for info in store.list(SHARED_FOLDER):
        object_id = parse_shared_key(info.key)
        if object_id is None:
            continue
        tally.segments += 1
        try:
            for block in read_index(store, object_id).blocks:
                read_block(store, object_id, block)
                tally.bytes += block.size_bytes
                if advance is not None:
                    advance(block.size_bytes)
        except Corruption as error:
            tally.findings.append(Finding("damaged", "", -1, info.key, error.message, info.size_bytes))
        except Rejected:
            continue  # it was swept since


def manifest_of(store: ObjectStore, owner: ArchiveId) -> Manifest:
    """The manifest object of a partition. Raises Corruption if it is missing or damaged."""
    return decode_manifest(read_whole(store, manifest_key(owner)))


def segments_of(store: ObjectStore, manifest: Manifest) -> Iterator[ArchivedSegment]:
    """The segments of a manifest, those in parts included, oldest first. Raises Corruption."""
    for part in manifest.parts:
        yield from segments_in(store, manifest.owner, part)
    for run in manifest.runs:
        yield from unpack_run(run)


def segments_in(store: ObjectStore, owner: ArchiveId, part: ManifestPart) -> Iterator[ArchivedSegment]:
    """The segments of a part of a manifest, oldest first. Raises Corruption."""
    for run in decode_part(owner, part, read_whole(store, part_key(owner, part))):
        yield from unpack_run(run)


def verify(
    store: ObjectStore, partitions: list[ArchivedPartition], advance: Callable[[int], None] | None = None
) -> Tally:
    """Read every archived byte. ``advance`` gets the number of bytes that were read."""
    tally = Tally()
    for partition in partitions:
        tally.partitions += 1
        try:
            for segment in segments_of(store, manifest_of(store, partition.owner)):
                if segment.object_id != NO_OBJECT:
                    continue  # `verify_shared` reads it; this manifest may be older than a join of it
                tally.segments += 1
                key = segment_key(partition.owner, segment)
                try:
                    _verify_segment(store, partition.owner, segment, key, advance)
                except MillstreamError as error:
                    kind = "damaged" if key in partition.objects else "missing"
                    tally.findings.append(_finding(kind, partition, key, error.message))
                tally.bytes += segment.size_bytes
        except MillstreamError as error:
            tally.findings.append(_finding("damaged", partition, manifest_key(partition.owner), error.message))
    return tally


def _verify_segment(
    store: ObjectStore, owner: ArchiveId, segment: ArchivedSegment, key: str, advance: Callable[[int], None] | None
) -> None:
    checksum = position = 0
    while position < segment.size_bytes:
        end = min(position + _READ_BYTES, segment.size_bytes)
        checksum = crc32c(store.get(ObjectKey(key), FilePosition(position), FilePosition(end)), checksum)
        if advance is not None:
            advance(end - position)
        position = end
    if checksum != segment.checksum:
        raise Corruption("its bytes do not match the checksum in the manifest")
    end = segment.size_bytes + segment.index_bytes
    decode_index(owner, segment, store.get(ObjectKey(key), FilePosition(segment.size_bytes), FilePosition(end)))


def find_superfluous(store: ObjectStore, partitions: list[ArchivedPartition], before_ms: int) -> Tally:
    """Objects that were written before a time and that nothing needs."""
    tally = Tally()
    for partition in partitions:
        tally.partitions += 1
        try:
            manifest = manifest_of(store, partition.owner)
            needed = {manifest_key(partition.owner)}
            needed |= {part_key(partition.owner, one) for one in manifest.parts}
            end = manifest.start_offset
            fresh: list[tuple[Offset, Offset]] = []  # ranges that were replaced after the time
            for segment in segments_of(store, manifest):
                tally.segments += 1
                key = segment_key(partition.owner, segment)
                needed.add(key)
                end = max(end, segment.end_offset)
                info = partition.objects.get(key)
                if segment.revision and (info is None or info.modified_ms >= before_ms):
                    fresh.append((segment.base_offset, segment.end_offset))
        except MillstreamError as error:
            # Without it what is needed is unknown.
            tally.findings.append(_finding("damaged", partition, manifest_key(partition.owner), error.message))
            continue
        for key, info in partition.objects.items():
            tally.bytes += info.size_bytes
            ends = _end_offset(key)
            if key in needed or ends is None or ends > end or info.modified_ms >= before_ms:
                continue
            if not any(_base_offset(key) < one[1] and one[0] < ends for one in fresh):
                finding = _finding("superfluous", partition, key, "no manifest names it")
                tally.findings.append(msgspec.structs.replace(finding, size_bytes=info.size_bytes))
    return tally


def keys_below(store: ObjectStore, owner: ArchiveId, offset: Offset) -> Iterator[ObjectKey]:
    """Segments and parts of the partition that end at or below the offset. Nothing after it is listed."""
    for info in store.list(partition_folder(owner)):
        ends = _end_offset(info.key)
        if ends is None or _base_offset(info.key) >= offset:
            return  # names sort by offset, and other names after them
        if ends <= offset:
            yield info.key


def _end_offset(key: str) -> Offset | None:
    """End (exclusive) of what a segment or part object holds; None for another object."""
    name = key.rpartition("/")[2]
    segment = parse_segment_name(name)
    if segment is not None:
        return segment[1]
    part = parse_part_name(name)
    return None if part is None else part.end_offset


def _base_offset(key: str) -> Offset:
    """First offset of what a segment or part object holds."""
    return Offset(int(key.rpartition("/")[2][:20]))


def _finding(kind: str, partition: ArchivedPartition, key: str, what: str) -> Finding:
    return Finding(kind, partition.topic, partition.owner.partition_index, key, what)
