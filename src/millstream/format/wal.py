"""The write-ahead log of a shard: zero-filled files that are used again and again, one frame per group commit.

::

    file   │ header 512 │ frame │ frame │ frame │ zeros or frames of an earlier generation …

    frame  │ head 64 │ table 36 × n │ payload, payload, … │ zeros │ table again │ tail 64 │      a multiple of 512 bytes

A **frame** is what one `pwritev` and one sync make durable. Its head says to which generation of the file it belongs
(files are recycled, so old frames lie behind the new ones), its number in the shard's sequence, the number known
durable before it, and the first number still needed. Its table has one entry per record: which group, which offsets,
which term, how long, and the CRC of the payload. For a batch that is the batch's own CRC field, so the payload is not
summed twice; the table's checksum covers it, and with it the 21 bytes of the batch that its CRC leaves out. Table and
head stand at either end, so that one bad sector never hides which logs a frame held. Frames start on sectors of their
own: a write never touches a sector with durable bytes.

**Torn or corrupt.** Frames are written one after the other, each after the sync of the one before. So a frame that is
followed by a valid one, or that a later one names as durable, was durable: if it does not verify, that is corruption,
and it is reported. Only the last frame can be torn; of it, whatever verifies is kept and the rest is cut. `judge`
draws that line over all files.

Bad input: nothing here raises for what a disk may hold; `scan` reports what it found. All integers are little-endian.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.format.segment import BATCH_CRC_START, BATCH_HEADER_BYTES, BATCH_PREFIX

SECTOR_BYTES: Final = 512
FILE_HEADER_BYTES: Final = SECTOR_BYTES
FRAME_HEAD_BYTES: Final = 64
RECORD_BYTES: Final = 36

FILE_MAGIC: Final = b"MSWAL\r\n\x00"
FILE_VERSION: Final = 1
HEAD_MAGIC: Final = 0x31464D57  # "WMF1"
TAIL_MAGIC: Final = 0x31544D57  # "WMT1"

_FILE_HEADER: Final = struct.Struct("<8sIIQQQ")  # magic, version, shard, generation, first sequence, file bytes
_CRC: Final = struct.Struct("<I")

FRAME_HEAD: Final = struct.Struct("<IIQQQQQIIII")
"""magic, CRC of what follows, generation, sequence, durable sequence, needed sequence, position, records, table CRC,
payload bytes, frame bytes"""
_FRAME_BODY: Final = struct.Struct("<QQQQQIIII")  # the head behind magic and CRC

RECORD: Final = struct.Struct("<BBHIiqqII")
"""kind, 0, 0, group, leader epoch, base, last, payload bytes, payload CRC"""


class Kind(IntEnum):
    """What a record says about its group."""

    BATCH = 1
    """A Kafka batch with offsets base to last (inclusive)."""

    TRIM = 2
    """The log starts at offset `base` now; no payload."""

    TRUNCATE = 3
    """The log ends at offset `base` (exclusive) now; what came after is void; no payload."""

    VOTE = 4
    """The replication layer's own few bytes, the newest of a group count."""


class FileHeader(NamedTuple):
    """First sector of a file: who uses it, and since which sequence number."""

    shard: int
    generation: int
    first_sequence: int
    file_bytes: int


class Record(NamedTuple):
    """One table entry."""

    kind: int
    group: int
    leader_epoch: int
    base: int
    last: int
    size: int
    crc: int


class Frame(NamedTuple):
    """One frame of which at least one copy of head and table verifies."""

    generation: int
    sequence: int
    durable_sequence: int
    needed_sequence: int
    position: int
    end: int
    table: bytes
    bad: frozenset[int]
    """Records, by place in the table, whose payload does not match its CRC."""

    mended: bool
    """Only one of the two copies of head and table was readable."""

    @property
    def payload_position(self) -> int:
        """Where in the file the first payload starts; they follow each other."""
        return self.position + FRAME_HEAD_BYTES + len(self.table)

    def records(self) -> Iterator[tuple[Record, int]]:
        """Each record with the position of its payload in the file."""
        at = self.payload_position
        for kind, _, _, group, epoch, base, last, size, crc in RECORD.iter_unpack(self.table):
            yield Record(kind, group, epoch, base, last, size, crc), at
            at += size


class Scan(NamedTuple):
    """What one file holds."""

    header: FileHeader | None
    """None: unreadable or never used."""

    frames: tuple[Frame, ...]
    """Of one generation, in file order."""

    gaps: tuple[tuple[int, int], ...]
    """(position, end) of stretches before the last valid frame that are no frame."""

    torn: bool
    """Behind the last valid frame stand pieces of another one."""


class WalState(msgspec.Struct, frozen=True, array_like=True):
    """The ``state`` file of a shard's directory: from where on its files mean anything."""

    next_sequence: int = 1
    """Frames below this number are in the segments; they are void."""

    next_generation: int = 1
    clean: bool = False
    """Written by an orderly stop: there is no frame at or above `next_sequence`, and `logs` is all there is to know."""

    logs: bytes = b""
    """Summaries of the logs at that stop (`storage.summary`)."""


STATE_MAGIC: Final = b"MSWS"
STATE_VERSION: Final = 1
_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(WalState).decode


def encode_wal_state(state: WalState) -> bytes:
    """The content of a ``state`` file."""
    return seal(STATE_MAGIC, STATE_VERSION, _encode_state(state))


def decode_wal_state(data: bytes | bytearray) -> WalState:
    """What `encode_wal_state` made; raises Corruption."""
    try:
        return _decode_state(unseal(STATE_MAGIC, STATE_VERSION, data))
    except msgspec.MsgspecError as error:
        raise Corruption(f"a state file that cannot be read: {error}") from error


# -- writing -----------------------------------------------------------------------------------------------------------


def encode_file_header(header: FileHeader) -> bytes:
    """The first sector of a file."""
    head = _FILE_HEADER.pack(
        FILE_MAGIC, FILE_VERSION, header.shard, header.generation, header.first_sequence, header.file_bytes
    )
    return (head + _CRC.pack(crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def frame_bytes(record_count: int, payload_bytes: int) -> int:
    """The length of a frame, padding included."""
    raw = 2 * (FRAME_HEAD_BYTES + RECORD_BYTES * record_count) + payload_bytes
    return (raw + SECTOR_BYTES - 1) & -SECTOR_BYTES


def padding_bytes(record_count: int, payload_bytes: int) -> int:
    """The zeros between the last payload and the second copy of the table."""
    return (
        frame_bytes(record_count, payload_bytes) - 2 * (FRAME_HEAD_BYTES + RECORD_BYTES * record_count) - payload_bytes
    )


def pack_heads(
    slot: memoryview,
    record_count: int,
    payload_bytes: int,
    generation: int,
    sequence: int,
    durable_sequence: int,
    needed_sequence: int,
    position: int,
) -> None:
    """Fill in head and tail around the table that stands at byte `FRAME_HEAD_BYTES` of `slot`.

    Afterwards the first `FRAME_HEAD_BYTES` + table bytes of `slot` are the start of the frame, and table + tail its
    end.
    """
    table_end = FRAME_HEAD_BYTES + RECORD_BYTES * record_count
    body = _FRAME_BODY.pack(
        generation,
        sequence,
        durable_sequence,
        needed_sequence,
        position,
        record_count,
        crc32c(slot[FRAME_HEAD_BYTES:table_end]),
        payload_bytes,
        frame_bytes(record_count, payload_bytes),
    )
    crc = crc32c(body)
    slot[:FRAME_HEAD_BYTES] = HEAD_MAGIC.to_bytes(4, "little") + _CRC.pack(crc) + body
    slot[table_end : table_end + FRAME_HEAD_BYTES] = TAIL_MAGIC.to_bytes(4, "little") + _CRC.pack(crc) + body


# -- reading -----------------------------------------------------------------------------------------------------------


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
    magic, version, shard, generation, first_sequence, size = _FILE_HEADER.unpack_from(data, 0)
    (crc,) = _CRC.unpack_from(data, _FILE_HEADER.size)
    if magic != FILE_MAGIC or version != FILE_VERSION or crc32c(bytes(data[: _FILE_HEADER.size])) != crc:
        return None
    return FileHeader(shard, generation, first_sequence, size)


def scan(view: memoryview, from_sequence: int = 0) -> Scan:
    """Find every frame of a file's current generation; payloads are checked from frame `from_sequence` on.

    The generation is the header's, or, where that is unreadable, the newest that any frame in the file claims.
    """
    header = parse_file_header(view)
    heads, tails = _candidates(view, None if header is None else header.generation)
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

    Every sector is looked at once, so that a damaged file costs no more than a good one.
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
    head = _Head(*_FRAME_BODY.unpack_from(view, at + 8))
    if head.frame_bytes != frame_bytes(head.record_count, head.payload_bytes) or head.position + head.frame_bytes > len(
        view
    ):
        return None
    return head


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
                and BATCH_PREFIX.unpack_from(payload) == (base, size - 12, epoch)
                and int.from_bytes(payload[17:21], "big") == crc
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
                break  # what lies behind a hole that was never promised is void
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
