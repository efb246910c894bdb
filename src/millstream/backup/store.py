"""The objects of backups in their store.

::

    backups/20261129T110612.204Z.json              a root (``model``)
    records/TOPIC-ID/PARTITION/BASE-SHA256         batches of one partition from offset BASE on
    running/RUN, sweep/lease                       which runs are being made, and which one removes objects (``runs``)

A key of records has the content's hash, so two runs that write the same batches write the same object. No object is
changed after it was written. A root is written if its name is free, and only while every object that it refers to is
there.

A run that is killed leaves objects that no root refers to, and so does a backup that is removed. ``sweep`` removes
them while no other run is being made.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millstream.backup.model import Backup, StoredBatches, decode_backup, encode_backup
from millstream.backup.runs import Runs, lost
from millstream.errors import Corruption, Rejected
from millstream.model.quantities import FilePosition
from millstream.objects import ABSENT, Conflict, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from millstream.backup.runs import Held
    from millstream.objects import ObjectStore

_ROOTS: Final = "backups/"
_RECORDS: Final = "records/"
_SUFFIX: Final = ".json"
_HASH_IN_KEY: Final = 32
_REMOVED_AT_ONCE: Final = 500


class BackupStore:
    """Backups in one object store. ``put`` and ``get`` are safe for threads, the rest is for one caller at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._runs = Runs(store)
        self._run: Held | None = None
        """The one of this process."""

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

    def surplus(self, newest: Backup, keep: int) -> list[str]:
        """Names of the cluster's backups but for the newest ``keep``, and never ``newest``. A damaged one is of no
        known cluster: it stays.
        """
        names = self.names()
        own = [name for name in names if name == newest.name or self._cluster_of(name) == newest.cluster_id]
        return [name for name in own[:-keep] if name != newest.name]

    def _cluster_of(self, name: str) -> str | None:
        try:
            return self.read(name).cluster_id
        except (Corruption, Rejected):
            return None  # damaged, or removed by another run

    def publish(self, backup: Backup) -> None:
        """Write the root.

        Raises:
            Rejected: a backup has that name, or this run was ended by another.
            Corruption: an object that it refers to is missing; there is no root then.
        """
        self._hold()
        missing = keys_of(backup).difference(one.key for one in self._store.list(_RECORDS))
        if missing:
            raise Corruption(f"{self.url} has lost {len(missing)} objects of this run, such as {min(missing)}")
        try:
            self._store.put(_root_key(backup.name), [encode_backup(backup)], ABSENT)
        except Conflict:
            raise Rejected(f"{self.url} has a backup {backup.name} already") from None
        try:
            self._hold()
        except Rejected:
            self._store.delete([_root_key(backup.name)])
            raise

    def _hold(self) -> None:
        """Raises Rejected if another run has ended this one."""
        if self._run is not None and not self._run.renew():
            raise lost()

    def remove(self, names: Sequence[str]) -> None:
        """Remove backups. The objects that only they have stay until ``sweep``."""
        self._store.delete([_root_key(name) for name in names])

    # Runs

    @contextmanager
    def running(self) -> Generator[None]:
        """A run that writes objects, for the time of the block (``runs``)."""
        with self._runs.running() as self._run:
            try:
                yield
            finally:
                self._run = None

    def sweep(self) -> int | None:
        """Remove objects of records that no backup refers to; how many. Call it in a run. None: another run may need
        them, or removes some itself.

        Raises:
            Corruption: a root cannot be read, so that what is in use is not known; nothing is removed.
        """
        assert self._run is not None, "a sweep is part of a run"
        with self._runs.removing(self._run) as right:
            if right is None:
                return None
            used = {key for name in self.names() for key in keys_of(self.read(name))}
            left = [one.key for one in self._store.list(_RECORDS) if one.key not in used]
            for start in range(0, len(left), _REMOVED_AT_ONCE):
                if not right.still():
                    return None
                self._store.delete(left[start : start + _REMOVED_AT_ONCE])
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
