"""Known damage of logs: a few entries in shared memory, written by a shard and read by the supervisor.

The counter of corruptions says that something is wrong; an entry says what: topic, partition, offset and file. A place
is entered once, and stays until the next start. Places that do not fit are in the counter and in the log only. Each
board has one writer. The length of a slot is written last, so that a reader never sees half an entry.
"""

from __future__ import annotations

import mmap
from typing import Final

import msgspec

SLOTS: Final = 32
SLOT_BYTES: Final = 1024


class Damage(msgspec.Struct, frozen=True):
    """One damaged place. Offset -1 means unknown, or the whole log."""

    topic: str
    partition: int
    offset: int
    file: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Damage).decode


class DamageBoard:
    """Entries of one process about damage. Created before the fork; one writer, any reader."""

    __slots__ = ("_known", "_map")

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SLOTS * SLOT_BYTES)  # pages exist only from the first write on
        self._known: set[Damage] = set()

    def put(self, log: str, offset: int, file: str) -> None:
        """Enter that the log "topic/partition" is damaged at ``offset``, in ``file``."""
        topic, _, partition = log.rpartition("/")
        damage = Damage(topic or log, int(partition) if partition.isdecimal() else -1, offset, file)
        data = _encode(damage)
        if damage in self._known or len(self._known) == SLOTS or len(data) > SLOT_BYTES - 2:
            return
        begin = len(self._known) * SLOT_BYTES
        self._known.add(damage)
        self._map[begin + 2 : begin + 2 + len(data)] = data
        self._map[begin : begin + 2] = len(data).to_bytes(2, "little")

    def read(self) -> list[Damage]:
        """All entries, oldest first."""
        found: list[Damage] = []
        for begin in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
            size = int.from_bytes(self._map[begin : begin + 2], "little")
            if not size:
                break
            found.append(_decode(self._map[begin + 2 : begin + 2 + size]))
        return found
