"""Where logs were found damaged: a few places in shared memory, written by a shard, read by whoever renders metrics.

A counter says that something is wrong, this says what: topic, partition, offset and file. A place is noted once, until
the broker is started again; what does not fit any more is left to the counter and to the log. Each board has one
writer. A slot's length is written last, so that a reader never sees half of one.
"""

from __future__ import annotations

import mmap
from typing import Final

import msgspec

SLOTS: Final = 32
SLOT_BYTES: Final = 1024


class Damage(msgspec.Struct, frozen=True):
    """One place; offset -1: unknown, or the whole log."""

    topic: str
    partition: int
    offset: int
    file: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Damage).decode


class DamageBoard:
    """See the module. Made before the fork."""

    __slots__ = ("_known", "_map")

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SLOTS * SLOT_BYTES)  # no page of it exists before it is written
        self._known: set[Damage] = set()

    def put(self, log: str, offset: int, file: str) -> None:
        """The log "topic/partition" is damaged there."""
        topic, _, partition = log.rpartition("/")
        damage = Damage(topic or log, int(partition) if partition.isdigit() else -1, offset, file)
        data = _encode(damage)
        if damage in self._known or len(self._known) == SLOTS or len(data) > SLOT_BYTES - 2:
            return
        begin = len(self._known) * SLOT_BYTES
        self._known.add(damage)
        self._map[begin + 2 : begin + 2 + len(data)] = data
        self._map[begin : begin + 2] = len(data).to_bytes(2, "little")

    def read(self) -> list[Damage]:
        """What was noted, oldest first."""
        found: list[Damage] = []
        for begin in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
            size = int.from_bytes(self._map[begin : begin + 2], "little")
            if not size:
                break
            found.append(_decode(self._map[begin + 2 : begin + 2 + size]))
        return found
