"""Uploads of one broker: several are in flight at once, commits follow one by one in the order of their preparation.

::

    prepared ──► stored ──► verified ──► committed
        │                     only the oldest one may commit
        └── when those before it that have the same partitions are verified

Order matters: a later object of a partition must not become visible before an earlier one, or readers would see a hole.
Only a verified object may commit, because after the commit the write-ahead log may forget what the object has. An
upload that failed is repeated under the same number; its conditional write finds what an attempt before has left.

An object is not stored either before those with earlier offsets of its partitions are verified. Were the broker lost
with its disk then, the store would have a gap in a partition, and a recovery could not tell it from records that were
deleted.

A crash forgets all of it. What was stored and not committed is an orphan, which a sweep removes.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import Rejected

if TYPE_CHECKING:
    from millstream.core.shared.backlog import Pack
    from millstream.model.shared import ObjectId, SharedPartition


class Upload(msgspec.Struct):
    """One object in flight."""

    object_id: ObjectId
    pack: Pack
    partitions: frozenset[SharedPartition]
    """Those that the object has records of."""
    stored: bool = False
    """A write was answered, or may have taken effect."""
    verified: bool = False
    """Length and checksums were read back from the store."""


class Uploads:
    """The uploads of one broker, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[Upload] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def all(self) -> list[Upload]:
        """All uploads, oldest first."""
        return list(self._queue)

    def begin(self, object_id: ObjectId, pack: Pack, partitions: frozenset[SharedPartition] | None = None) -> Upload:
        """Start an upload under a number. ``partitions`` are those of the pack that the object has records of; None
        means all of them. Raises Rejected if the numbers do not rise.
        """
        if self._queue and object_id <= self._queue[-1].object_id:
            raise Rejected(f"object {object_id} was prepared before object {self._queue[-1].object_id}")
        if partitions is None:
            partitions = frozenset(one.partition for one in pack.parts)
        upload = Upload(object_id, pack, partitions)
        self._queue.append(upload)
        return upload

    def may_store(self, upload: Upload) -> bool:
        """Whether everything with earlier offsets of its partitions is verified."""
        earlier = takewhile(lambda one: one is not upload, self._queue)
        return all(one.verified or one.partitions.isdisjoint(upload.partitions) for one in earlier)

    def next_commit(self) -> Upload | None:
        """The upload to be committed now; None while the oldest one is not verified."""
        return self._queue[0] if self._queue and self._queue[0].verified else None

    def committed(self, upload: Upload) -> None:
        """The logs of all its partitions have the entry."""
        assert self._queue and self._queue[0] is upload, "commits follow the order of preparation"
        self._queue.popleft()
