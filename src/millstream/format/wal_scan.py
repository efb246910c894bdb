"""Reading what a shard's write-ahead log files hold, and telling what is torn from what is corrupt.

`scan` looks at one file: every sector once, so that a damaged file costs no more than a good one, and raises for
nothing that a disk may hold. `judge` looks at all files of a directory together: which frames are needed, in which
order, which of those that were durable cannot be read, and whether the last one is torn (`format.wal` says why only
that one may be).
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.format.segment import BATCH_CRC_START, BATCH_HEADER_BYTES, BATCH_LENGTH_OVERHEAD
from millstream.format.wal import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FILE_MAGIC,
    FILE_VERSIONS,
    FRAME_BODY,
    FRAME_HEAD_BYTES,
    HEAD_MAGIC,
    RECORD,
    RECORD_BYTES,
    SECTOR_BYTES,
    TAIL_MAGIC,
    FileHeader,
    Frame,
    Kind,
    WalState,
    frame_bytes,
    frame_bytes_once,
)
from millstream.model.quantities import ShardId
from millstream.wire.records import MAGIC

_CRC: Final = struct.Struct("<I")

_UNSUMMED: Final = struct.Struct(">qiibI")
"""What a batch's checksum leaves out: base offset, length, leader epoch, magic, and the checksum itself."""


class Scan(NamedTuple):
    """What one file holds."""

    header: FileHeader | None
    """None: unreadable or never used."""

    frames: tuple[Frame, ...]
    """Frames of one generation, in file order."""

    gaps: tuple[tuple[int, int], ...]
    """(position, end) of stretches before the last valid frame that are no frame."""

    torn: bool
    """After the last valid frame stand pieces of another one."""


class _Head(NamedTuple):
    generation: int
    sequence: int
    durable_sequence: int
    needed_sequence: int
    position: int
    record_count: int
    table_crc: int
    payload_bytes: int
    frame_bytes: int


def parse_file_header(data: bytes | bytearray | memoryview) -> FileHeader | None:
    """The header in the first sector; None if that is not one."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, shard, generation, first_sequence, size = FILE_HEADER.unpack_from(data, 0)
    (crc,) = _CRC.unpack_from(data, FILE_HEADER.size)
    if magic != FILE_MAGIC or version not in FILE_VERSIONS or crc32c(bytes(data[: FILE_HEADER.size])) != crc:
        return None
    return FileHeader(shard, generation, first_sequence, size)


def doubtful_headers(headers: Sequence[FileHeader | None], shard: ShardId) -> list[bool]:
    """Which files of a shard may have another one's header in the place of their own, as a misdirected write leaves it:
    it names another shard, or a generation that two files claim.
    """
    claims = [None if header is None else header.generation for header in headers]
    return [header is not None and (header.shard != shard or claims.count(header.generation) > 1) for header in headers]


def scan(view: memoryview, from_sequence: int = 0, *, doubtful: bool = False) -> Scan:
    """Find every frame of a file's current generation; payloads are checked from frame `from_sequence` on.

    The generation is the header's, or, where that is unreadable, the newest that any frame in the file claims. A header
    that is `doubtful` is believed if both copies of some frame are of its generation: the page that brought it could
    have brought one of them, too.
    """
    header = parse_file_header(view)
    heads, tails = _candidates(view, None if header is None else header.generation)
    if header is not None and doubtful and not heads.keys() & tails.keys():
        wrong = header.generation
        header = None
        heads, tails = (
            {at: head for at, head in found.items() if head.generation != wrong} for found in _candidates(view, None)
        )
    if header is None:
        newest = max((head.generation for head in (*heads.values(), *tails.values())), default=0)
        heads = {at: head for at, head in heads.items() if head.generation == newest}
        tails = {at: head for at, head in tails.items() if head.generation == newest}
    places = sorted(heads.keys() | tails.keys())
    frames: list[Frame] = []
    gaps: list[tuple[int, int]] = []
    torn = False
    position = FILE_HEADER_BYTES
    sequence = 0 if header is None else header.first_sequence
    for place in places:
        head = heads.get(place, tails.get(place))
        assert head is not None
        if place < position or head.sequence < sequence:
            continue  # inside a frame that verified, or left over
        frame = _frame(view, place, heads.get(place), tails.get(place), from_sequence)
        if frame is None:
            torn = True
            continue
        if place > position:
            gaps.append((position, place))
        frames.append(frame)
        torn = False
        sequence = frame.sequence + 1
        position = frame.end
    return Scan(header, tuple(frames), tuple(gaps), torn)


def _candidates(view: memoryview, generation: int | None) -> tuple[dict[int, _Head], dict[int, _Head]]:
    """Heads that verify, from the start and from the end of frames, by the position of their frame.

    Every sector is read once, so that a damaged file costs no more than a good one.
    """
    usable = len(view) // SECTOR_BYTES * SECTOR_BYTES
    words = view[:usable].cast("I")
    heads: dict[int, _Head] = {}
    tails: dict[int, _Head] = {}
    step = SECTOR_BYTES // 4
    for sector, word in enumerate(words[::step].tolist()):
        if word == HEAD_MAGIC:
            head = _parse_head(view, sector * SECTOR_BYTES, HEAD_MAGIC)
            if (
                head is not None
                and head.position == sector * SECTOR_BYTES
                and head.generation == (generation or head.generation)
            ):
                heads[head.position] = head
    for sector, word in enumerate(words[step - FRAME_HEAD_BYTES // 4 :: step].tolist(), 1):
        if word == TAIL_MAGIC:
            tail = _parse_head(view, sector * SECTOR_BYTES - FRAME_HEAD_BYTES, TAIL_MAGIC)
            if (
                tail is not None
                and tail.position + tail.frame_bytes == sector * SECTOR_BYTES
                and tail.generation == (generation or tail.generation)
            ):
                tails[tail.position] = tail
    return heads, tails


def _frame(view: memoryview, position: int, head: _Head | None, tail: _Head | None, from_sequence: int) -> Frame | None:
    """The frame at a position, from whichever copy of its table verifies; None if neither does."""
    first = None if head is None else _table(view, position + FRAME_HEAD_BYTES, head)
    second = None
    if tail is not None:
        second = _table(view, position + tail.frame_bytes - FRAME_HEAD_BYTES - _size(tail), tail)
    if first is None and second is None:
        return None
    chosen, table = (tail, second) if first is None else (head, first)
    assert chosen is not None
    assert table is not None
    return Frame(
        chosen.generation,
        chosen.sequence,
        chosen.durable_sequence,
        chosen.needed_sequence,
        position,
        position + chosen.frame_bytes,
        table,
        _bad_payloads(view, position, table) if chosen.sequence >= from_sequence else frozenset(),
        mended=first is None or second is None,
    )


def _size(head: _Head) -> int:
    return RECORD_BYTES * head.record_count


def _parse_head(view: memoryview, at: int, magic: int) -> _Head | None:
    if at < 0 or at + FRAME_HEAD_BYTES > len(view):
        return None
    found, crc = struct.unpack_from("<II", view, at)
    if found != magic or crc32c(view[at + 8 : at + FRAME_HEAD_BYTES]) != crc:
        return None
    head = _Head(*FRAME_BODY.unpack_from(view, at + 8))
    counts = head.record_count, head.payload_bytes
    if head.frame_bytes not in (frame_bytes(*counts, head.position), *frame_bytes_once(*counts)):
        return None
    return head if head.position + head.frame_bytes <= len(view) else None


def _table(view: memoryview, at: int, head: _Head) -> bytes | None:
    table = bytes(view[at : at + _size(head)])
    if crc32c(table) != head.table_crc:
        return None
    if sum(entry[7] for entry in RECORD.iter_unpack(table)) != head.payload_bytes:
        return None
    return table


def _bad_payloads(view: memoryview, position: int, table: bytes) -> frozenset[int]:
    at = position + FRAME_HEAD_BYTES + len(table)
    bad: list[int] = []
    for place, (kind, _, _, _, epoch, base, _, size, crc) in enumerate(RECORD.iter_unpack(table)):
        payload = view[at : at + size]
        if kind != Kind.BATCH:
            good = crc32c(payload) == crc
        else:
            good = (
                size >= BATCH_HEADER_BYTES
                and _UNSUMMED.unpack_from(payload) == (base, size - BATCH_LENGTH_OVERHEAD, epoch, MAGIC, crc)
                and crc32c(payload[BATCH_CRC_START:]) == crc
            )
        if not good:
            bad.append(place)
        at += size
    return frozenset(bad)


# -- judging -----------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What all files of a directory say together."""

    needed_sequence: int
    """Frames below are in the segments."""

    durable_sequence: int
    """Frames up to here were durable for certain: some later frame says so."""

    order: tuple[tuple[int, int], ...]
    """(file, frame) in sequence, as places in the scans; only needed ones."""

    lost: tuple[tuple[int, int], ...]
    """(first, last) sequences that were durable, are needed and cannot be read."""

    torn: tuple[int, int] | None
    """(file, frame) of a last frame that does not verify completely, and need not."""

    next_sequence: int
    next_generation: int


def judge(scans: Sequence[Scan], state: WalState) -> Verdict:
    """Put the frames of a directory's files in order and tell what is missing from what was never promised."""
    found = sorted(
        (frame.sequence, file, place) for file, one in enumerate(scans) for place, frame in enumerate(one.frames)
    )
    frames = [scans[file].frames[place] for _, file, place in found]
    needed = max([state.next_sequence, *(frame.needed_sequence for frame in frames)])
    durable = max([needed - 1, *(frame.durable_sequence for frame in frames)])
    generations = [one.header.generation for one in scans if one.header] + [frame.generation for frame in frames]
    lost: list[tuple[int, int]] = []
    order: list[tuple[int, int]] = []
    expected = needed
    torn = None
    for (sequence, file, place), frame in zip(found, frames, strict=True):
        if sequence < expected:
            continue  # checkpointed, or a number seen before
        if sequence > expected:
            if expected > durable:
                break  # what lies after a hole that was never promised is void
            lost.append((expected, min(sequence - 1, durable)))
            if sequence - 1 > durable:
                expected = durable + 1
                break
        order.append((file, place))
        if (frame.bad or frame.mended) and sequence > durable:
            torn = (file, place)
        expected = sequence + 1
    if expected <= durable:
        lost.append((expected, durable))
        expected = durable + 1
    return Verdict(
        needed,
        durable,
        tuple(order),
        tuple(lost),
        torn,
        expected,
        max([state.next_generation, *(g + 1 for g in generations)]),
    )
