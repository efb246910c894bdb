"""The manifest of a partition: which of its segments are in the object store. Bytes ↔ values; no object is read here.

Segments are packed in **runs** of up to 64, in the order of their offsets and without gaps. A run is a sequence of
numbers, seven bits a byte, about 18 bytes a segment; signed ones are zig-zag encoded. Per segment::

    end_offset − base_offset                                 unsigned
    size_bytes − size_bytes of the segment before            signed
    min_timestamp − max_timestamp of the segment before      signed
    max_timestamp − min_timestamp                            signed
    term − term of the segment before                        signed
    index_bytes − index_bytes of the segment before          signed
      (of a range in a shared object: minus its number)
    checksum                                                 four bytes, little-endian
    revision                                                 unsigned; in a *revised* run only

A run is revised if one of its segments has a revision other than 0; bit 15 of its number of segments says so. The
segment before the first of a run has size 0, timestamp 0, term 0 and an index of 0 bytes. Its end is the run's base
offset, which the container holds.

Two kinds of objects hold runs, each as a payload of ``format.sealed``; integers are little-endian::

    manifest "MSMF"   topic id 16 bytes │ partition u32 │ start offset i64 │ parts u32 │ runs u32 │ epochs u32
                      then, in version 2, the manifest's version i64 │ replacements u32
                      then per replacement    id 16 bytes │ version after it i64
                      then per part     base offset, end offset, min timestamp, max timestamp, bytes i64 │ segments u32
                                        and, in version 2, the part's version i64
                      then per epoch    leader epoch, its first offset i64
                      then per run      base offset i64 │ segments u16 │ bytes u16 │ the run
    part     "MSMP"   topic id 16 bytes │ partition u32 │ runs u32, then per run as above

A *part* is the old end of a long manifest, in an object of its own, which is never changed. Its name says its offsets
and times, so that a reader finds the right part from a listing alone.

Objects are written in version 2 only if they hold something of a replacement (`format.archive`), so that topics without
one stay readable for older releases.
"""

from __future__ import annotations

import re
import struct
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal, version_of
from millstream.model.quantities import ManifestVersion, Offset, TimestampMs
from millstream.model.replication import Term
from millstream.model.shared import NO_OBJECT, ObjectId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MANIFEST_MAGIC: Final = b"MSMF"
PART_MAGIC: Final = b"MSMP"
VERSION: Final = 2
_WITHOUT_REPLACEMENTS: Final = 1
REVISION_MAX: Final = (1 << 53) - 1
REPLACEMENT_ID_BYTES: Final = 16
RUN_COUNT_MAX: Final = 64
"""Segments in a run: the most that a lookup decodes."""

_MANIFEST: Final = struct.Struct("<16sIqIII")
_PART_HEAD: Final = struct.Struct("<16sII")
_PART: Final = struct.Struct("<qqqqqI")
_EPOCH: Final = struct.Struct("<qq")
_RUN: Final = struct.Struct("<qHH")
_REVISED: Final = 1 << 15
_REPLACEMENTS: Final = struct.Struct("<qI")
_REPLACEMENT: Final = struct.Struct("<16sq")
_PART_VERSION: Final = struct.Struct("<q")
_CHECKSUM_BYTES: Final = 4
_NUMBER_BYTES_MAX: Final = 10
_FIRST_VERSION: Final = ManifestVersion(0)
_PART_NAME: Final = re.compile(r"(\d{20})-(\d{20})_(-?\d+)_(-?\d+)_(\d+)_(\d+)(?:_(\d+))?\.part")


class ArchivedSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A segment in the object store, as its commit entry says."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    """Bytes of its batches, at the start of the object."""

    checksum: int
    """CRC-32C of these bytes."""

    min_timestamp: TimestampMs
    max_timestamp: TimestampMs
    """Negative, as the minimum, if no batch has a timestamp: `without_timestamps`."""

    term: Term
    """Term of the leader that uploaded it, which is in the object's name."""

    index_bytes: int = 0
    """Bytes of the index with which the object ends (`format.archive`)."""

    revision: int = 0
    """0 for what a leader uploaded. Else a random number of the job that wrote the object in the place of others: it is
    in the object's name, so that no two writes share a key.
    """

    object_id: ObjectId = NO_OBJECT
    """The shared object with these offsets (`format.shared_object`), whose index has the places and the checksums; the
    checksum and the index here are 0 then. `NO_OBJECT` for a segment with an object of its own.
    """


class ManifestPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The segments of one spilled object."""

    base_offset: Offset
    end_offset: Offset
    min_timestamp: TimestampMs
    max_timestamp: TimestampMs
    segment_count: int
    size_bytes: int = 0
    """Bytes of all batches."""

    version: ManifestVersion = ManifestVersion(0)
    """Version of the manifest that made it. It is in the object's name."""


class Run(msgspec.Struct, frozen=True):
    """Packed segments."""

    base_offset: Offset
    segment_count: int
    data: bytes
    is_revised: bool = False


class ArchiveId(msgspec.Struct, frozen=True):
    """Whose archive it is."""

    topic_id: uuid.UUID
    partition_index: int


class Manifest(msgspec.Struct, frozen=True):
    """The content of a manifest object."""

    owner: ArchiveId
    start_offset: Offset
    parts: tuple[ManifestPart, ...]
    runs: tuple[Run, ...]
    epochs: tuple[tuple[Term, Offset], ...] = ()
    """(leader epoch, its first offset) of the whole log, both rising."""

    version: ManifestVersion = ManifestVersion(0)
    """How often segments were replaced."""

    replacements: tuple[tuple[bytes, int], ...] = ()
    """The newest replacements: (id, version after it)."""


def without_timestamps(appended_ms: TimestampMs | None) -> TimestampMs:
    """Minimum and maximum timestamp of a segment without timestamps, the last batch of which was appended at that time;
    None if that is unknown. Retention needs it (`appended_ms_of`). It is less than any timestamp, and -1 if unknown,
    which is all that older releases wrote.
    """
    return TimestampMs(-1 if appended_ms is None else -1 - max(appended_ms, 0))


def appended_ms_of(timestamp: TimestampMs) -> TimestampMs | None:
    """When the last batch was appended to a segment without timestamps, whose minimum ``timestamp`` is; of several of
    them, when the last batch of all. None if that is unknown, or if they have timestamps.
    """
    return TimestampMs(-1 - timestamp) if timestamp < -1 else None


def pack_run(segments: Sequence[ArchivedSegment]) -> Run:
    """Pack 1 to ``RUN_COUNT_MAX`` segments without gaps between them."""
    assert 0 < len(segments) <= RUN_COUNT_MAX, "the caller cuts runs"
    out = bytearray()
    is_revised = any(one.revision for one in segments)
    size_bytes, timestamp, term, index_bytes = 0, 0, 0, 0
    for one in segments:
        _put(out, one.end_offset - one.base_offset)
        _put_signed(out, one.size_bytes - size_bytes)
        _put_signed(out, one.min_timestamp - timestamp)
        _put_signed(out, one.max_timestamp - one.min_timestamp)
        _put_signed(out, one.term - term)
        place = -one.object_id or one.index_bytes
        _put_signed(out, place - index_bytes)
        out += one.checksum.to_bytes(_CHECKSUM_BYTES, "little")
        if is_revised:
            _put(out, one.revision)
        size_bytes, timestamp, term, index_bytes = one.size_bytes, one.max_timestamp, one.term, place
    return Run(segments[0].base_offset, len(segments), bytes(out), is_revised)


def unpack_run(run: Run) -> list[ArchivedSegment]:
    """The segments of a run. Raises Corruption for bytes that ``pack_run`` does not make."""
    segments: list[ArchivedSegment] = []
    data, position = run.data, 0
    base, size_bytes, timestamp, term, index_bytes = run.base_offset, 0, 0, 0, 0
    try:
        for _ in range(run.segment_count):
            length, position = _get(data, position)
            grown, position = _get_signed(data, position)
            waited, position = _get_signed(data, position)
            lasted, position = _get_signed(data, position)
            risen, position = _get_signed(data, position)
            longer, position = _get_signed(data, position)
            checksum = int.from_bytes(data[position : position + _CHECKSUM_BYTES], "little")
            position += _CHECKSUM_BYTES
            revision, position = _get(data, position) if run.is_revised else (0, position)
            size_bytes, term, index_bytes = size_bytes + grown, term + risen, index_bytes + longer
            low = timestamp + waited
            timestamp = low + lasted
            end = Offset(base + length)
            segments.append(
                ArchivedSegment(
                    base,
                    end,
                    size_bytes,
                    checksum,
                    TimestampMs(low),
                    TimestampMs(timestamp),
                    Term(term),
                    max(index_bytes, 0),
                    revision,
                    ObjectId(max(-index_bytes, 0)),
                )
            )
            base = end
    except IndexError:
        position = -1
    if position != len(data) or not segments or any(one.end_offset <= one.base_offset for one in segments):
        raise Corruption(f"a run of the manifest at offset {run.base_offset} cannot be read")
    return segments


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest object."""
    head = _MANIFEST.pack(
        manifest.owner.topic_id.bytes,
        manifest.owner.partition_index,
        manifest.start_offset,
        len(manifest.parts),
        len(manifest.runs),
        len(manifest.epochs),
    )
    number = VERSION if manifest.version else _WITHOUT_REPLACEMENTS
    if number == VERSION:
        head += _REPLACEMENTS.pack(manifest.version, len(manifest.replacements))
        head += b"".join(_REPLACEMENT.pack(*one) for one in manifest.replacements)
    parts = b"".join(
        _PART.pack(
            one.base_offset, one.end_offset, one.min_timestamp, one.max_timestamp, one.size_bytes, one.segment_count
        )
        + (_PART_VERSION.pack(one.version) if number == VERSION else b"")
        for one in manifest.parts
    )
    epochs = b"".join(_EPOCH.pack(*one) for one in manifest.epochs)
    return seal(MANIFEST_MAGIC, number, head + parts + epochs + _encode_runs(manifest.runs))


def decode_manifest(data: bytes | bytearray | memoryview) -> Manifest:
    """The content of a manifest object. Raises Corruption for anything else, and for gaps and overlaps in it."""
    payload = unseal(MANIFEST_MAGIC, range(_WITHOUT_REPLACEMENTS, VERSION + 1), data)
    replaces = version_of(data) == VERSION
    version = 0
    replacements: list[tuple[bytes, int]] = []
    try:
        topic, partition, start, part_count, run_count, epoch_count = _MANIFEST.unpack_from(payload)
        position = _MANIFEST.size
        if replaces:
            version, count = _REPLACEMENTS.unpack_from(payload, position)
            position += _REPLACEMENTS.size
            replacements = [_REPLACEMENT.unpack_from(payload, position + at * _REPLACEMENT.size) for at in range(count)]
            position += count * _REPLACEMENT.size
        parts: list[ManifestPart] = []
        for _ in range(part_count):
            base, end, low, high, size, count = _PART.unpack_from(payload, position)
            position += _PART.size
            made = 0
            if replaces:
                (made,) = _PART_VERSION.unpack_from(payload, position)
                position += _PART_VERSION.size
            times = TimestampMs(low), TimestampMs(high)
            parts.append(ManifestPart(Offset(base), Offset(end), *times, count, size, ManifestVersion(made)))
        epochs: list[tuple[Term, Offset]] = []
        for _ in range(epoch_count):
            epoch, first = _EPOCH.unpack_from(payload, position)
            epochs.append((Term(epoch), Offset(first)))
            position += _EPOCH.size
        runs = _decode_runs(payload, position, run_count)
    except struct.error as error:
        raise Corruption(f"a manifest that cannot be read: {error}") from error
    _check_order(parts, runs)
    owner = ArchiveId(uuid.UUID(bytes=topic), partition)
    return Manifest(
        owner, Offset(start), tuple(parts), runs, tuple(epochs), ManifestVersion(version), tuple(replacements)
    )


def encode_part(owner: ArchiveId, runs: Sequence[Run]) -> bytes:
    """The bytes of a part object."""
    head = _PART_HEAD.pack(owner.topic_id.bytes, owner.partition_index, len(runs))
    number = VERSION if any(run.is_revised for run in runs) else _WITHOUT_REPLACEMENTS
    return seal(PART_MAGIC, number, head + _encode_runs(runs))


def decode_part(owner: ArchiveId, part: ManifestPart, data: bytes | bytearray | memoryview) -> tuple[Run, ...]:
    """The runs of a part object. Raises Corruption for another object, or if it is not what ``part`` says."""
    payload = unseal(PART_MAGIC, range(_WITHOUT_REPLACEMENTS, VERSION + 1), data)
    try:
        topic, partition, run_count = _PART_HEAD.unpack_from(payload)
        runs = _decode_runs(payload, _PART_HEAD.size, run_count)
    except struct.error as error:
        raise Corruption(f"a part of a manifest that cannot be read: {error}") from error
    if (topic, partition) != (owner.topic_id.bytes, owner.partition_index):
        raise Corruption("a part of the manifest of another partition")
    _check_order((), runs)
    if not runs or describe_part(runs, part.version) != part:
        raise Corruption(f"the part of the manifest from offset {part.base_offset} is not what its name says")
    return runs


def describe_part(runs: Sequence[Run], version: ManifestVersion = _FIRST_VERSION) -> ManifestPart:
    """What a manifest says of a part with these runs, which was made at this version of the manifest."""
    segments = [segment for run in runs for segment in unpack_run(run)]
    return ManifestPart(
        segments[0].base_offset,
        segments[-1].end_offset,
        min(one.min_timestamp for one in segments),
        max(one.max_timestamp for one in segments),
        len(segments),
        sum(one.size_bytes for one in segments),
        version,
    )


def part_name(part: ManifestPart) -> str:
    """The last part of the key of a part object. Names sort by offset."""
    times = f"{part.min_timestamp}_{part.max_timestamp}"
    name = f"{part.base_offset:020}-{part.end_offset:020}_{times}_{part.segment_count}_{part.size_bytes}"
    return f"{name}_{part.version}.part" if part.version else f"{name}.part"


def parse_part_name(name: str) -> ManifestPart | None:
    """The part of a name; None for another kind of name."""
    found = _PART_NAME.fullmatch(name)
    if found is None:
        return None
    base, end, low, high, count, size, version = (int(one or 0) for one in found.groups())
    times = TimestampMs(low), TimestampMs(high)
    return ManifestPart(Offset(base), Offset(end), *times, count, size, ManifestVersion(version))


def _encode_runs(runs: Iterable[Run]) -> bytes:
    return b"".join(
        _RUN.pack(run.base_offset, run.segment_count | (_REVISED if run.is_revised else 0), len(run.data)) + run.data
        for run in runs
    )


def _decode_runs(payload: bytes, position: int, run_count: int) -> tuple[Run, ...]:
    """The runs from ``position`` to the end. Raises struct.error if the payload ends earlier or later."""
    runs: list[Run] = []
    for _ in range(run_count):
        base, count, length = _RUN.unpack_from(payload, position)
        position += _RUN.size
        data = payload[position : position + length]
        runs.append(Run(Offset(base), count & ~_REVISED, data, bool(count & _REVISED)))
        position += length
    if position != len(payload):
        raise struct.error("its length is not the sum of its runs")
    return tuple(runs)


def _check_order(parts: Sequence[ManifestPart], runs: Sequence[Run]) -> None:
    """Raises Corruption for a gap, an overlap or an empty range."""
    end: Offset | None = None
    for one in parts:
        if one.end_offset <= one.base_offset or (end is not None and one.base_offset != end):
            raise Corruption(f"the part of a manifest from offset {one.base_offset} does not follow the one before")
        end = one.end_offset
    for run in runs:
        if end is not None and run.base_offset != end:
            raise Corruption(f"the run of a manifest from offset {run.base_offset} does not follow what is before it")
        end = unpack_run(run)[-1].end_offset


def _put(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_signed(out: bytearray, value: int) -> None:
    _put(out, value << 1 if value >= 0 else ~(value << 1))


def _get(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * _NUMBER_BYTES_MAX:
            raise IndexError("a number of more than ten bytes")


def _get_signed(data: bytes, position: int) -> tuple[int, int]:
    value, position = _get(data, position)
    return (value >> 1) ^ -(value & 1), position
