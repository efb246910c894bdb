"""Tick slots: the shared memory in which a reactor hands a group commit to its writer process.

::

    slot │ words 64 × u64 │ head 64 │ table 36 × n │ tail 64 │ spans 2 × n × u64 │        four of them, used in turn

The reactor packs one table entry per record, and one span (start and end in the arena) per contiguous piece of payload.
Payload is not copied on its way to the writer. The writer puts head and tail around the table
(``format.wal.pack_heads``), writes ``head+table, payload…, zeros, table+tail``, and sets the result words.

A slot belongs to the writer from its submission to its completion, and to the reactor otherwise. An eventfd passes it
over; the system call on either side orders the memory accesses. Pages are touched when used, so a quiet shard uses a
few.
"""

from __future__ import annotations

import mmap
from typing import Final

from millstream.format.wal import FRAME_HEAD_BYTES, RECORD_BYTES
from millstream.storage.disk import FULL

SLOT_COUNT: Final = 4
"""One slot is being written, two wait, one is being filled."""

RECORDS_MAX: Final = 4096
SPANS_MAX: Final = 2 * RECORDS_MAX

# Words of a slot. The reactor sets these for the writer:
W_RECORDS: Final = 0
W_SPANS: Final = 1  # in u64s: two per span
W_PAYLOAD_BYTES: Final = 2
W_FILE: Final = 3
W_POSITION: Final = 4
W_GENERATION: Final = 5
W_SEQUENCE: Final = 6
W_DURABLE_SEQUENCE: Final = 7
W_NEEDED_SEQUENCE: Final = 8
W_OPENS_FILE: Final = 9  # 1: the frame is the first of its file, and the writer adds the file's header
W_FILE_BYTES: Final = 10
# The writer sets these for the reactor:
W_STATUS: Final = 16  # 0, or errno + 2^16 × stage (``STAGE_WRITE``, ``STAGE_SYNC``)
W_WRITE_US: Final = 17
W_SYNC_US: Final = 18

STAGE_WRITE: Final = 1
STAGE_SYNC: Final = 2


def found_no_room(status: int) -> bool:
    """Whether the frame of a slot found the disk full. The same slot may be submitted again."""
    return status >> 16 == STAGE_WRITE and status & 0xFFFF in FULL


_WORD_BYTES: Final = 64 * 8
_TABLE_BYTES: Final = 2 * FRAME_HEAD_BYTES + RECORDS_MAX * RECORD_BYTES
_SPAN_BYTES: Final = SPANS_MAX * 16
_SLOT_BYTES: Final = (_WORD_BYTES + _TABLE_BYTES + _SPAN_BYTES + mmap.PAGESIZE - 1) & -mmap.PAGESIZE


class Slot:
    """One slot as views of memory that reactor and writer share."""

    __slots__ = ("frame", "number", "spans", "words")

    def __init__(self, number: int, view: memoryview) -> None:
        self.number = number
        self.words = view[:_WORD_BYTES].cast("Q")
        self.frame = view[_WORD_BYTES : _WORD_BYTES + _TABLE_BYTES]
        """Bytes: head, table and tail of the frame. The table starts at ``FRAME_HEAD_BYTES``."""
        spans_at = _WORD_BYTES + _TABLE_BYTES
        self.spans = view[spans_at : spans_at + _SPAN_BYTES].cast("Q")
        """Arena offsets of the payload: start, end (exclusive), start, end, …"""


class TickSlots:
    """All slots of a shard, in a shared mapping that is made before the fork of the writer."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SLOT_COUNT * _SLOT_BYTES)
        whole = memoryview(self._map)
        self.slots = tuple(Slot(n, whole[n * _SLOT_BYTES : (n + 1) * _SLOT_BYTES]) for n in range(SLOT_COUNT))
