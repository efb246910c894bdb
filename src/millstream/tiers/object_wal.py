"""A write-ahead log of objects, for brokers that may lose their disk. Its fence is a conditional write.

::

    wal/<node>/<broker epoch>/<shard>/<number>      entry │ entry │ … │ seal
                                                    numbers without gaps; each is written only if nothing is there

An append is durable, and may be acknowledged, when the store has its object. `seal` reads the log to its end and takes
the next number itself. From then on the broker that wrote the log finds its next number taken: whatever it is still
doing, nothing that it acknowledges can be missing from what was read.

A write without an answer is repeated under its number; what is there then tells whose it is. A crash leaves a log that
ends with an entry of unknown outcome at most. Entries leave from the oldest on, one by one, so that what is left has no
gap after a crash. The newest object stays, because the next number follows from it; of a sealed log that is the seal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption, OutcomeUnknown, Rejected, Unavailable
from millstream.format.sealed import seal as sealed
from millstream.format.sealed import unseal
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition, ShardId
from millstream.objects import ABSENT, ObjectKey
from millstream.objects.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.core.shared.catalogue import Writer
    from millstream.objects import ObjectStore

WAL_FOLDER: Final = "wal/"
ENTRY_MAGIC: Final = b"MSWO"
SEAL_MAGIC: Final = b"MSWS"
VERSION: Final = 1
_ATTEMPTS: Final = 5
_FIRST: Final = ShardId(0)


class ObjectWal:
    """The log of one shard in one life of a broker, held by that shard. One caller."""

    def __init__(self, store: ObjectStore, writer: Writer, shard: ShardId = _FIRST) -> None:
        self._store = store
        self._folder = wal_folder(writer, shard)
        self.next_number = 0
        """Number of the next object. Only this broker and who seals its log write under it."""

    def append(self, payload: bytes) -> int:
        """Write one entry, durably; its number.

        Raises:
            Rejected: the log is sealed: another broker has taken over (STALE_BROKER_EPOCH).
            OutcomeUnknown: the entry may be there. Only the same entry may follow it, or the end of this life.
        """
        data = sealed(ENTRY_MAGIC, VERSION, payload)
        _put_once(self._store, entry_key(self._folder, self.next_number), data)
        self.next_number += 1
        return self.next_number - 1

    def trim(self, number: int) -> None:
        """Entries before ``number`` are committed elsewhere. The newest object stays."""
        before = min(number, self.next_number - 1)
        remove_entries(self._store, self._folder, [one for one in _numbers(self._store, self._folder) if one < before])


def wal_folder(writer: Writer, shard: ShardId = _FIRST) -> str:
    """The folder of the log of one shard in one life of a broker."""
    return f"{WAL_FOLDER}{writer.node_id}/{writer.broker_epoch}/{shard}/"


def entry_key(folder: str, number: int) -> ObjectKey:
    """The key of an entry."""
    return ObjectKey(f"{folder}{number:020}")


def remove_entries(store: ObjectStore, folder: str, numbers: Iterable[int]) -> None:
    """Remove entries, the oldest first, one by one. Raises what the store raises; the rest is there then."""
    for one in numbers:
        store.delete([entry_key(folder, one)])


def seal(store: ObjectStore, writer: Writer, shard: ShardId = _FIRST) -> list[bytes]:
    """End the log of a broker that the controller has fenced, and give its entries. May be called again, by anyone.

    Raises:
        Corruption: an entry can't be read, or is missing in the middle.
        Unavailable, OutcomeUnknown: the store; call again.
    """
    folder = wal_folder(writer, shard)
    entries = [_read(store, entry_key(folder, one)) for one in close_log(store, folder)]
    return [one for one in entries if one is not None]


def close_log(store: ObjectStore, folder: str) -> list[int]:
    """`seal` without reading the entries: their numbers."""
    while True:
        numbers = _contiguous(store, folder)
        if numbers and is_seal(store, folder, numbers[-1]):
            return numbers[:-1]
        end = numbers[-1] + 1 if numbers else 0
        try:
            store.put(entry_key(folder, end), [sealed(SEAL_MAGIC, VERSION, b"")], ABSENT)
        except Conflict:
            continue  # the broker was faster once more, or the seal is there: read again
        return numbers


def is_seal(store: ObjectStore, folder: str, number: int) -> bool:
    """Whether an object of a log is its seal. Raises Corruption if it is neither a seal nor an entry."""
    head = store.get(entry_key(folder, number), FilePosition(0), FilePosition(len(SEAL_MAGIC)))
    if bytes(head) not in (SEAL_MAGIC, ENTRY_MAGIC):
        raise Corruption(f"{store.url}: {entry_key(folder, number)} is no entry of a log")
    return bytes(head) == SEAL_MAGIC


def _contiguous(store: ObjectStore, folder: str) -> list[int]:
    """The numbers of a log, rising. Its owner may remove the oldest meanwhile, so a gap is read again."""
    for _ in range(_ATTEMPTS):
        numbers = _numbers(store, folder)
        if not numbers or numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return numbers
    raise Corruption(f"{store.url}: an entry of the log {folder} is missing")


def _numbers(store: ObjectStore, folder: str) -> list[int]:
    return [_number(info.key) for info in store.list(folder)]


def _read(store: ObjectStore, key: ObjectKey) -> bytes | None:
    """The payload of an entry; None for the seal."""
    info = store.head(key)
    if info is None:
        raise Unavailable(f"{store.url}: {key} was trimmed while it was read")
    data = store.get(key, FilePosition(0), FilePosition(info.size_bytes))
    if bytes(data[: len(SEAL_MAGIC)]) == SEAL_MAGIC:
        unseal(SEAL_MAGIC, VERSION, data)
        return None
    return unseal(ENTRY_MAGIC, VERSION, data)


def _put_once(store: ObjectStore, key: ObjectKey, data: bytes) -> None:
    for _ in range(_ATTEMPTS):
        try:
            store.put(key, [data], ABSENT)
        except Conflict:
            try:
                info = store.head(key)
                found = None if info is None else store.get(key, FilePosition(0), FilePosition(info.size_bytes))
            except (Unavailable, Corruption):
                continue
            if found is None:
                continue
            if bytes(found) != data:
                raise Rejected(f"{store.url}: the log is sealed at {key}", ErrorCode.STALE_BROKER_EPOCH) from None
        except (Unavailable, OutcomeUnknown):
            continue
        return
    raise OutcomeUnknown(f"{store.url}: nobody knows whether {key} was written")


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])
