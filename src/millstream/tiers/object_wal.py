"""A write-ahead log of objects, for brokers that may lose their disk. Its fence is a conditional write.

::

    wal/<node>/<broker epoch>/<shard>/<number>      entry │ entry │ … │ seal
                                                    numbers without gaps; each is written only if nothing is there

An append is durable, and may be acknowledged, when the store has its object. `close_log` lists the log to its end and
takes the next number itself. From then on the broker that wrote the log finds its next number taken: it acknowledges
nothing that is missing from the list.

A write without an answer is repeated under its number; what is there then tells whose it is. A crash leaves a log that
ends with an entry of unknown outcome at most. Entries leave from the oldest on, one by one, so that what is left has no
gap after a crash. The newest object stays, because the next number follows from it; of a sealed log that is the seal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption, OutcomeUnknown, Rejected, Unavailable
from millstream.format.sealed import seal as sealed
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition, ShardId
from millstream.objects import ABSENT, ObjectKey
from millstream.objects.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.model.shared import Writer
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
            OutcomeUnknown: the entry may be there. Only the same entry may follow it, or the end of this log.
        """
        data = sealed(ENTRY_MAGIC, VERSION, payload)
        _put_once(self._store, entry_key(self._folder, self.next_number), data)
        self.next_number += 1
        return self.next_number - 1


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


def close_log(store: ObjectStore, folder: str) -> list[int]:
    """End the log of a broker that the controller has fenced, and give the numbers of its entries. May be called again,
    by anyone.

    Raises:
        Corruption: an entry is missing in the middle, or the last object is neither an entry nor a seal.
        Unavailable, OutcomeUnknown: the store; call again.
    """
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
    """The numbers of a log, rising. Its owner may remove the oldest at any time, so a gap is read again."""
    for _ in range(_ATTEMPTS):
        numbers = _numbers(store, folder)
        if not numbers or numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return numbers
    raise Corruption(f"{store.url}: an entry of the log {folder} is missing")


def _numbers(store: ObjectStore, folder: str) -> list[int]:
    return [_number(info.key) for info in store.list(folder)]


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
    raise OutcomeUnknown(f"{store.url}: whether {key} was written is unknown")


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])
