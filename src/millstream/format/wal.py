"""The write-ahead log of a shard: zero-filled files that are used again and again, one frame per group commit.

::

    file   │ header 512 │ frame │ frame │ frame │ zeros or frames of an earlier generation …

    frame  │ head 64 │ table 36 × n │ payload, payload, … │ zeros │ table again │ tail 64 │      a multiple of 512 bytes

A **frame** is what one `pwritev` and one sync make durable. Its head says to which generation of the file it belongs
(files are recycled, so old frames lie after the new ones), its number in the shard's sequence, the number known
durable before it, and the first number still needed. Its table has one entry per record: which group, which offsets,
which term, how long, and the CRC of the payload. For a batch that is the batch's own CRC field, so the payload is not
summed twice; the table's checksum covers it, and with it the 21 bytes of the batch that its CRC leaves out. Table and
head stand at either end, and no page of 4 KiB holds bytes of both copies, so that one bad page never hides which logs
a frame held, however small it is. (Frames whose copies share a page, or their only sector, are still read; they are no
longer made.) Frames start on sectors of their own: a write never touches a sector with durable bytes.

**Torn or corrupt.** Frames are written one after the other, each after the sync of the one before. So a frame that is
followed by a valid one, or that a later one names as durable, was durable: if it does not verify, that is corruption,
and it is reported. Only the last frame can be torn; of it, all that verifies is kept and the rest is cut. `judge`
draws that line over all files.

Bad input: nothing here raises for what a disk may hold; `scan` reports what it found. All integers are little-endian.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, NewType

import msgspec
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.model.quantities import Offset, RaftGroupId
from millstream.model.replication import Term

FrameSequence = NewType("FrameSequence", int)
"""Number of a frame in its shard's row of frames, from 1."""

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
FILE_HEADER_BYTES: Final = SECTOR_BYTES
FRAME_HEAD_BYTES: Final = 64
RECORD_BYTES: Final = 36

FILE_MAGIC: Final = b"MSWAL\r\n\x00"
FILE_VERSION: Final = 3
"""2 brought the kinds `CONTROL` and `VOTE`, and position and term to `TRUNCATE`; 3 the kind `ADOPT`."""

FILE_VERSIONS: Final = (1, 2, FILE_VERSION)
"""Versions that this code reads."""

HEAD_MAGIC: Final = 0x31464D57  # "WMF1"
TAIL_MAGIC: Final = 0x31544D57  # "WMT1"

FILE_HEADER: Final = struct.Struct("<8sIIQQQ")
"""magic, version, shard, generation, first sequence, file bytes"""

_CRC: Final = struct.Struct("<I")

FRAME_BODY: Final = struct.Struct("<QQQQQIIII")
"""A head or tail after magic and CRC: generation, sequence, durable sequence, needed sequence, position, records,
table CRC, payload bytes, frame bytes."""

RECORD: Final = struct.Struct("<BBHIiqqII")
"""kind, 0, 0, group, leader epoch, base, last, payload bytes, payload CRC"""


class Kind(IntEnum):
    """What a record says about its group."""

    BATCH = 1
    """A Kafka batch with offsets base to last (inclusive)."""

    TRIM = 2
    """The log starts at offset `base` now, and ended at `last` (exclusive) then; no payload."""

    TRUNCATE = 3
    """The log ends at offset `base` (exclusive) and Raft position `last` (exclusive) now; what came after is void. The
    leader epoch is the term of the entry that ends there, 0 without one. No payload. Version 1 of a file has the
    offset in both places: its logs have no control entries.
    """

    OPAQUE = 4
    """Reserved: opaque bytes of a replication layer, which no release wrote. Ignored."""

    CONTROL = 5
    """A control entry of the group's Raft log: it takes Raft position `last` and stands before the batch at offset
    `base`. The leader epoch is its term, the payload its content.
    """

    VOTE = 6
    """The replica is in the term that stands as leader epoch, and voted for replica `base` in it (-1: for none). The
    newest of a group counts. The log ended at Raft position `last` (exclusive) then; 0 in what earlier releases wrote.
    No payload.
    """

    ADOPT = 7
    """Files that another replica has sent take the place of the log: they end at offset `base` and Raft position
    `last`, and `names.staged_directory` says where they are until they are in place. All earlier records of the group
    are void but for its votes. The leader epoch is the term of the entry that ends there. No payload.
    """


class FileHeader(NamedTuple):
    """First sector of a file: who uses it, and since which sequence number."""

    shard: int
    generation: int
    first_sequence: int
    file_bytes: int


class WalRecord(NamedTuple):
    """One table entry."""

    kind: int
    group: RaftGroupId
    leader_epoch: Term
    base: Offset
    last: Offset
    size: int
    """Payload bytes."""
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

    def records(self) -> Iterator[tuple[WalRecord, int]]:
        """Each record with the position of its payload in the file."""
        at = self.payload_position
        for kind, _, _, group, epoch, base, last, size, crc in RECORD.iter_unpack(self.table):
            yield WalRecord(kind, group, epoch, base, last, size, crc), at
            at += size


class WalState(msgspec.Struct, frozen=True, array_like=True):
    """The ``state`` file of a shard's directory, kept twice: from where on its files mean anything."""

    next_sequence: int = 1
    """Frames below this number are in the segments; they are void."""

    next_generation: int = 1
    clean: bool = False
    """Written by an orderly stop: there is no frame at or above `next_sequence`, and `logs` is all there is to know."""

    logs: bytes = b""
    """Summaries of the logs at that stop (`storage.recovery.summary`)."""

    term: int = 0
    """How many starts of this broker have followed a crash: no log is led in a lower term (leader epoch) from now on.
    """

    @property
    def age(self) -> tuple[int, int, int, bool]:
        """Greater for the one that was written later; numbers never go back, and a start ends what a stop left."""
        return self.next_sequence, self.next_generation, self.term, not self.clean


STATE_MAGIC: Final = b"MSWS"
STATE_VERSION: Final = 1
_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(WalState).decode


def encode_wal_state(state: WalState) -> bytes:
    """The content of a ``state`` file or its copy."""
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
    head = FILE_HEADER.pack(
        FILE_MAGIC, FILE_VERSION, header.shard, header.generation, header.first_sequence, header.file_bytes
    )
    return (head + _CRC.pack(crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def frame_bytes(record_count: int, payload_bytes: int, position: int) -> int:
    """The length of a frame at byte `position` of its file, padding included: each copy of head and table in pages of
    its own.
    """
    copy = _copy_bytes(record_count)
    second_from = -(-(position + copy) // PAGE_BYTES) * PAGE_BYTES
    return _whole_sectors(max(2 * copy + payload_bytes, second_from + copy - position))


def frame_bytes_once(record_count: int, payload_bytes: int) -> tuple[int, int]:
    """The lengths that it used to have: when a page could hold bytes of both copies, and when a sector could."""
    copy = _copy_bytes(record_count)
    least = _whole_sectors(2 * copy + payload_bytes)
    return max(least, 2 * _whole_sectors(copy)), least


def _copy_bytes(record_count: int) -> int:
    """A head or tail with its table."""
    return FRAME_HEAD_BYTES + RECORD_BYTES * record_count


def _whole_sectors(count: int) -> int:
    return (count + SECTOR_BYTES - 1) & -SECTOR_BYTES


PADDING_BYTES_MAX: Final = PAGE_BYTES + SECTOR_BYTES


def padding_bytes(record_count: int, payload_bytes: int, position: int) -> int:
    """The zeros between the last payload and the second copy of the table; fewer than `PADDING_BYTES_MAX`."""
    return frame_bytes(record_count, payload_bytes, position) - 2 * _copy_bytes(record_count) - payload_bytes


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
    table_end = _copy_bytes(record_count)
    body = FRAME_BODY.pack(
        generation,
        sequence,
        durable_sequence,
        needed_sequence,
        position,
        record_count,
        crc32c(slot[FRAME_HEAD_BYTES:table_end]),
        payload_bytes,
        frame_bytes(record_count, payload_bytes, position),
    )
    crc = crc32c(body)
    slot[:FRAME_HEAD_BYTES] = HEAD_MAGIC.to_bytes(4, "little") + _CRC.pack(crc) + body
    slot[table_end : table_end + FRAME_HEAD_BYTES] = TAIL_MAGIC.to_bytes(4, "little") + _CRC.pack(crc) + body
