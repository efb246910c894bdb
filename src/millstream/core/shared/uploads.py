"""Uploads of one broker: several are under way at once, commits follow one by one in the order of their preparation.

::

    prepared ──► stored ──► verified ──► committed
                              only the oldest one may commit

Order matters: a later object of a partition must not become visible before an earlier one, or readers would see a hole.
Only a verified object may commit, because after the commit the write-ahead log may forget what the object has. An
upload that failed is repeated under the same number; its conditional write finds what an attempt before has left.

A crash forgets all of it. Numbers that were prepared and not committed are orphans, which the catalogue gives up when
the broker's epoch ends.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import Rejected

if TYPE_CHECKING:
    from millstream.core.shared.backlog import Pack
    from millstream.model.shared import ObjectId


class Upload(msgspec.Struct):
    """One object under way."""

    object_id: ObjectId
    pack: Pack
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

    def begin(self, object_id: ObjectId, pack: Pack) -> Upload:
        """Start an upload under a number that the catalogue gave. Raises Rejected if the numbers do not rise."""
        if self._queue and object_id <= self._queue[-1].object_id:
            raise Rejected(f"object {object_id} was prepared before object {self._queue[-1].object_id}")
        upload = Upload(object_id, pack)
        self._queue.append(upload)
        return upload

    def next_commit(self) -> Upload | None:
        """The upload to be committed now; None while the oldest one is not verified."""
        return self._queue[0] if self._queue and self._queue[0].verified else None

    def committed(self, upload: Upload) -> None:
        """The controller has it."""
        assert self._queue and self._queue[0] is upload, "commits follow the order of preparation"
        self._queue.popleft()
