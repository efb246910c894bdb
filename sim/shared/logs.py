"""Write-ahead logs of simulated brokers. Both kinds keep what was appended, and refuse a writer that lost the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from millstream.errors import Rejected
from millstream.model.shared import SharedPartition
from millstream.tiers.object_wal import ObjectWal, seal

if TYPE_CHECKING:
    from millstream.core.shared.catalogue import Writer
    from millstream.objects import ObjectStore

Values: TypeAlias = tuple[int, ...]
"""One record each."""


class Entry(msgspec.Struct, frozen=True):
    """A batch in a log."""

    topic_id: bytes
    partition_index: int
    leader_epoch: int
    base_offset: int
    values: Values

    @property
    def partition(self) -> SharedPartition:
        return SharedPartition(self.topic_id, self.partition_index)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class Wal(Protocol):
    """What a broker writes before it acknowledges."""

    def append(self, entry: Entry) -> None: ...


class Disk:
    """A disk that is attached to one writer at a time."""

    def __init__(self, holder: Writer) -> None:
        self.holder: Writer | None = holder
        self.entries: list[Entry] = []

    def take_over(self) -> list[Entry]:
        """Detach the disk from the broker that has it, then read it."""
        self.holder = None
        return list(self.entries)


class DiskWal:
    """The log on a disk."""

    def __init__(self, disk: Disk, writer: Writer) -> None:
        self._disk = disk
        self._writer = writer

    def append(self, entry: Entry) -> None:
        if self._disk.holder != self._writer:
            raise Rejected("the disk is attached to another broker")
        self._disk.entries.append(entry)


class StoreWal:
    """The log in the store."""

    def __init__(self, store: ObjectStore, writer: Writer) -> None:
        self._wal = ObjectWal(store, writer)

    def append(self, entry: Entry) -> None:
        self._wal.append(_encode(entry))


def sealed_entries(store: ObjectStore, writer: Writer) -> list[Entry]:
    """The entries of a log in the store, to which nothing is added any more."""
    return [_decode(one) for one in seal(store, writer)]
