"""Tick slots: the shared memory in which a reactor hands a group commit to its writer process.

::

    slot │ words 64 × u64 │ head 64 │ table 36 × n │ tail 64 │ spans 2 × n × u64 │        four of them, used in turn

The reactor packs one table entry per record and one span (start and end in the arena) per stretch of payload; no
payload is copied on its way to the writer. That puts head and tail around the table (`format.wal.pack_heads`), writes
``head+table, payload…, zeros, table+tail``, and leaves how it went in the result words.

Both sides are ordered by the eventfd that passes a slot over: a system call on either side, so nothing here depends
on the order of stores. A slot belongs to the reactor until it is submitted and from its completion on, to the writer
in between. Pages are touched when used: a quiet shard touches a few.
"""

from __future__ import annotations

import mmap
from typing import Final

from millstream.format.wal import FRAME_HEAD_BYTES, RECORD_BYTES
from millstream.storage.disk import FULL

SLOT_COUNT: Final = 4
"""One being written, two waiting, one filling."""

RECORDS_MAX: Final = 4096
SPANS_MAX: Final = 2 * RECORDS_MAX

# Words of a slot: what the writer gets …
W_RECORDS: Final = 0
W_SPANS: Final = 1  # in u64s: two per span
W_PAYLOAD_BYTES: Final = 2
W_FILE: Final = 3
W_POSITION: Final = 4
W_GENERATION: Final = 5
W_SEQUENCE: Final = 6
W_DURABLE_SEQUENCE: Final = 7
W_NEEDED_SEQUENCE: Final = 8
W_OPENS_FILE: Final = 9  # 1: this frame is the file's first, its header is written with it
W_FILE_BYTES: Final = 10
# … and what it answers
W_STATUS: Final = 16  # 0, or errno + 2^16 × stage
W_WRITE_US: Final = 17
W_SYNC_US: Final = 18

STAGE_WRITE: Final = 1
STAGE_SYNC: Final = 2


def found_no_room(status: int) -> bool:
    """Whether a slot's frame could not be written because the disk is full: it may be tried again, as it is."""
    return status >> 16 == STAGE_WRITE and status & 0xFFFF in FULL


_WORD_BYTES: Final = 64 * 8
_TABLE_BYTES: Final = 2 * FRAME_HEAD_BYTES + RECORDS_MAX * RECORD_BYTES
_SPAN_BYTES: Final = SPANS_MAX * 16
_SLOT_BYTES: Final = (_WORD_BYTES + _TABLE_BYTES + _SPAN_BYTES + mmap.PAGESIZE - 1) & -mmap.PAGESIZE


class Slot:
    """Views of one slot, the same memory in both processes."""

    __slots__ = ("frame", "number", "spans", "words")

    def __init__(self, number: int, view: memoryview) -> None:
        self.number = number
        self.words = view[:_WORD_BYTES].cast("Q")
        self.frame = view[_WORD_BYTES : _WORD_BYTES + _TABLE_BYTES]
        """Head, table and tail of the frame; the table starts at FRAME_HEAD_BYTES."""
        spans_at = _WORD_BYTES + _TABLE_BYTES
        self.spans = view[spans_at : spans_at + _SPAN_BYTES].cast("Q")
        """Start, end, start, end, … in the arena."""


class TickSlots:
    """All slots of a shard. Made before the fork."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SLOT_COUNT * _SLOT_BYTES)
        whole = memoryview(self._map)
        self.slots = tuple(Slot(n, whole[n * _SLOT_BYTES : (n + 1) * _SLOT_BYTES]) for n in range(SLOT_COUNT))
