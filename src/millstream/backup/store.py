"""The objects of backups in their store.

::

    backups/20261129T110612.204Z.json              a root (``model``)
    records/TOPIC-ID/PARTITION/BASE-SHA256         batches of one partition from offset BASE on
    running/RUN                                    a run that writes objects; renewed every RENEW_S, removed at its end

A key of records has the content's hash, so two runs that write the same batches write the same object. No object is
changed after it was written. A root is written if its name is free; then every object that it refers to is there.

A run that is killed leaves objects that no root refers to. ``sweep`` removes them, unless another run may be writing
such objects now: one whose mark was renewed less than ``STALE_MS`` ago, by the store's clock. Marks that are older are
of runs that were killed, and are removed, too.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from millstream.backup.model import Backup, StoredBatches, decode_backup, encode_backup
from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.model.quantities import FilePosition
from millstream.objects import ABSENT, Conflict, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from millstream.objects import ObjectStore

RENEW_S: Final = 20.0
STALE_MS: Final = 120_000
_ROOTS: Final = "backups/"
_RECORDS: Final = "records/"
_RUNNING: Final = "running/"
_MARK: Final = b"a backup is being made\n"
_SUFFIX: Final = ".json"
_HASH_IN_KEY: Final = 32


class BackupStore:
    """Backups in one object store. ``put`` and ``get`` are safe for threads, the rest is for one caller at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    # Roots

    def names(self) -> list[str]:
        """All backups, oldest first. Raises Unavailable, Denied."""
        keys = [one.key.removeprefix(_ROOTS) for one in self._store.list(_ROOTS)]
        return sorted(key.removesuffix(_SUFFIX) for key in keys if key.endswith(_SUFFIX) and "/" not in key)

    def read(self, name: str) -> Backup:
        """One backup.

        Raises:
            Rejected: no backup has that name, or a later release has made it.
            Corruption: its root is damaged.
        """
        info = self._store.head(_root_key(name))
        if info is None:
            known = self.names()
            hint = f"the newest is {known[-1]}" if known else "it has no backup"
            raise Rejected(f"{self.url} has no backup {name}; {hint}")
        if not info.size_bytes:
            raise Corruption(f"the root of backup {name} is empty")
        return decode_backup(name, bytes(self._store.get(info.key, FilePosition(0), FilePosition(info.size_bytes))))

    def newest(self) -> Backup | None:
        """The newest backup; None without one. Raises as ``read``."""
        names = self.names()
        return self.read(names[-1]) if names else None

    def publish(self, backup: Backup) -> None:
        """Write the root. Raises Rejected if a backup has that name."""
        try:
            self._store.put(_root_key(backup.name), [encode_backup(backup)], ABSENT)
        except Conflict:
            raise Rejected(f"{self.url} has a backup {backup.name} already") from None

    def remove(self, names: Sequence[str]) -> int:
        """Remove backups, and the objects that only they refer to; the number of these. A run that dies in between
        leaves objects that no backup refers to.

        Raises:
            Corruption: a root cannot be read, so that what is in use is not known; nothing is removed.
        """
        roots = {name: self.read(name) for name in self.names()}
        kept = {key for name, root in roots.items() if name not in names for key in keys_of(root)}
        gone = {key for name in names for key in keys_of(roots[name])} - kept
        self._store.delete([_root_key(name) for name in names])
        self._store.delete(sorted(gone))
        return len(gone)

    # Runs

    @contextmanager
    def running(self) -> Generator[ObjectKey]:
        """Mark a run that writes objects, for the time of the block; the key of its mark."""
        key = ObjectKey(f"{_RUNNING}{secrets.token_hex(8)}")
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_S):
                with suppress(MillstreamError):  # a mark that grows old keeps nothing from this run itself
                    self._store.put(key, [_MARK])

        self._store.put(key, [_MARK])
        thread = threading.Thread(target=renew, name="backup mark", daemon=True)
        thread.start()
        try:
            yield key
        finally:
            ended.set()
            thread.join()
            self._store.delete([key])

    def sweep(self, own: ObjectKey) -> int | None:
        """Remove objects of records that no backup refers to; how many. ``own`` is the mark of this run. None: another
        run may need them.

        Raises:
            Corruption: a root cannot be read, so that what is in use is not known; nothing is removed.
        """
        marks = {one.key: one.modified_ms for one in self._store.list(_RUNNING)}
        now_ms = marks.get(own, max(marks.values(), default=0))
        others = [key for key in marks if key != own]
        if any(now_ms - marks[key] < STALE_MS for key in others):
            return None
        used = {key for name in self.names() for key in keys_of(self.read(name))}
        left = [one.key for one in self._store.list(_RECORDS) if one.key not in used]
        self._store.delete([*left, *others])
        return len(left)

    # Records

    def put(self, topic_id: str, partition: int, base: int, end: int, data: bytes) -> tuple[StoredBatches, bool]:
        """Write batches, unless the same are there; whether they were written. An object that is there is read, and
        replaced if it is damaged.
        """
        made = StoredBatches(base, end, len(data), hashlib.sha256(data).hexdigest())
        key = records_key(topic_id, partition, made)
        try:
            self._store.put(key, [data], ABSENT)
        except Conflict:
            try:
                self.get(topic_id, partition, made)
            except Corruption:
                self._store.put(key, [data])
            else:
                return made, False
        return made, True

    def get(self, topic_id: str, partition: int, one: StoredBatches) -> memoryview:
        """The batches of an object, whose checksum is checked.

        Raises:
            Corruption: the object is missing, truncated or changed; the message has its key.
        """
        key = records_key(topic_id, partition, one)
        info = self._store.head(key)
        if info is None:
            raise Corruption(f"the object {key} is missing")
        if info.size_bytes != one.size_bytes:
            what = "truncated" if info.size_bytes < one.size_bytes else "too long"
            raise Corruption(f"the object {key} is {what}: {info.size_bytes} bytes, the root says {one.size_bytes}")
        data = self._store.get(key, FilePosition(0), FilePosition(one.size_bytes))
        if hashlib.sha256(data).hexdigest() != one.sha256:
            raise Corruption(f"the object {key} is damaged: its bytes do not have its checksum")
        return data


def records_key(topic_id: str, partition: int, one: StoredBatches) -> ObjectKey:
    """The key of an object with records."""
    return ObjectKey(f"{_RECORDS}{topic_id}/{partition}/{one.base_offset:020d}-{one.sha256[:_HASH_IN_KEY]}")


def keys_of(backup: Backup) -> set[ObjectKey]:
    """The objects that a backup refers to."""
    return {
        records_key(topic.topic_id, part.index, one)
        for topic in backup.topics
        for part in topic.partitions
        for one in part.objects
    }


def _root_key(name: str) -> ObjectKey:
    return ObjectKey(f"{_ROOTS}{name}{_SUFFIX}")
