"""A byte ring between two processes: one writes records, the other reads them, neither waits.

::

    line 0     tail      bytes ever published    written by the producer only
    line 1     head      bytes ever consumed     written by the consumer only
    line 2     waiting   1: the producer found no room and waits for the doorbell
    data       │ size, tag │ record, padded to 8 │ size, tag │ record … wraps around, also inside a record

One aligned 8-byte store of ``tail`` publishes a record, after its bytes are in place; one of ``head`` frees its room.
Each index has its own cache line, and each side keeps a copy of the other's index, so an uncontended push touches no
line that the other side writes. ``fence`` explains why plain stores suffice, and where they do not.

``push`` returns False if there is no room; then nothing of the record is in the ring, and the caller keeps it. A record
that can never fit raises ``ValueError``. Memory is touched as the ring fills for the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.shard.fence import STRONG, fence

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER_BYTES: Final = 256  # four cache lines, so that data starts on a line of its own
_TAIL: Final = 0
_HEAD: Final = 8
_WAITING: Final = 16


def ring_bytes(capacity_bytes: int) -> int:
    """Size of the shared memory for a ring of this capacity."""
    return HEADER_BYTES + capacity_bytes


class Ring:
    """One end of a ring in ``memory`` (zeroed at creation). An instance is used as producer or as consumer, never
    both.
    """

    __slots__ = ("_cells", "_data", "_head", "_mask", "_tail", "_words", "capacity_bytes")

    def __init__(self, memory: memoryview) -> None:
        capacity = len(memory) - HEADER_BYTES
        if capacity < 64 or capacity & (capacity - 1):
            raise ValueError(f"a ring's capacity is a power of two of at least 64 bytes, not {capacity}")
        self.capacity_bytes = capacity
        self._mask = capacity - 1
        self._cells = memory[:HEADER_BYTES].cast("Q")
        self._data = memory[HEADER_BYTES:]
        self._words = self._data.cast("Q")
        self._tail = self._cells[_TAIL]
        self._head = self._cells[_HEAD]

    # -- producer

    def push(self, record: bytes | bytearray | memoryview, tag: int = 0) -> bool:
        """Publish ``record`` with a 31-bit ``tag``. False if there is no room now."""
        size = len(record)
        need = (size + 15) & ~7
        capacity = self.capacity_bytes
        tail = self._tail
        if need > capacity - tail + self._head:
            if need > capacity:
                raise ValueError(f"a record of {size} bytes does not fit a ring of {capacity}")
            self._head = self._cells[_HEAD]
            if need > capacity - tail + self._head:
                return False
        position = tail & self._mask
        self._words[position >> 3] = tag << 32 | size
        position = (position + 8) & self._mask
        end = position + size
        if end <= capacity:
            self._data[position:end] = record
        else:
            first = capacity - position
            self._data[position:] = record[:first]
            self._data[: size - first] = record[first:]
        tail += need
        self._tail = tail
        if not STRONG:
            fence()
        self._cells[_TAIL] = tail
        return True

    def ask_for_room(self) -> None:
        """Ask to be woken when there is room. Afterwards ``fence`` and try ``push`` once more, because the consumer may
        just have made room.
        """
        self._cells[_WAITING] = 1

    def has_room_again(self) -> None:
        self._cells[_WAITING] = 0

    # -- consumer

    def pop(self) -> tuple[bytes, int] | None:
        """The oldest record (copied) and its tag; None if the ring is empty."""
        head = self._head
        if head == self._tail:
            self._tail = self._cells[_TAIL]
            if head == self._tail:
                return None
            if not STRONG:
                fence()
        position = head & self._mask
        word = self._words[position >> 3]
        size = word & 0xFFFFFFFF
        position = (position + 8) & self._mask
        end = position + size
        if end <= self.capacity_bytes:
            record = bytes(self._data[position:end])
        else:
            record = bytes(self._data[position:]) + bytes(self._data[: end - self.capacity_bytes])
        head += (size + 15) & ~7
        self._head = head
        if not STRONG:
            fence()
        self._cells[_HEAD] = head
        return record, word >> 32

    def pop_all(self, callback: Callable[[bytes, int], None]) -> int:
        """Pass every record that is in the ring now to ``callback(record, tag)``. Returns their number."""
        end = self._cells[_TAIL]
        count = 0
        while self._head != end:
            popped = self.pop()
            assert popped is not None, "the tail was ahead of the head"
            callback(*popped)
            count += 1
        return count

    @property
    def has_records(self) -> bool:
        """Whether a record waits. Reads the producer's index."""
        return self._cells[_TAIL] != self._head

    @property
    def producer_waits(self) -> bool:
        return self._cells[_WAITING] != 0
