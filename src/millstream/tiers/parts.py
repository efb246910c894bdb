"""Parts of manifests: which segments the old end of a long archive has, from memory, from a file, or from the store.

A part never changes, so the newest used ones are kept here, decoded, and more of them in files (``part_files``).
Wherever its bytes are from, they are those of the part's object, or are not used. Safe for threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption, Rejected
from millstream.format.archive import part_key
from millstream.format.manifest import decode_part, unpack_run
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition
from millstream.objects import ObjectKey
from millstream.tiers.kept import Kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart
    from millstream.objects import ObjectStore
    from millstream.tiers.part_files import PartFiles

_MEMORY_MAX: Final = 64
"""Parts in memory: some 100,000 segments."""


class Parts:
    """The parts that one shard's readers look into."""

    def __init__(
        self, store: ObjectStore, files: PartFiles | None = None, served: Callable[[str], None] = lambda _: None
    ) -> None:
        """``served`` is called with the source of each part: ``memory``, ``disk`` or ``store``."""
        self._store = store
        self._files = files
        self._served = served
        self._memory: Kept[tuple[ArchiveId, ManifestPart], list[ArchivedSegment]] = Kept(_MEMORY_MAX, lambda _: 1)

    def segments_of(self, owner: ArchiveId, part: ManifestPart) -> list[ArchivedSegment]:
        """The segments of a part.

        Raises:
            Rejected: it is no longer in the store.
            Corruption: its object is not what it should be.
            Unavailable: the store.
        """
        found = self._memory.get((owner, part))
        if found is not None:
            self._served("memory")
            return found
        found = self._on_disk(owner, part)
        if found is None:
            data = _whole(self._store, part_key(owner, part))
            found = _decoded(owner, part, data)
            self._served("store")
            if self._files is not None:
                self._files.put(owner, part, data)
        self._memory.put((owner, part), found)
        return found

    def _on_disk(self, owner: ArchiveId, part: ManifestPart) -> list[ArchivedSegment] | None:
        """The segments of a part that has a sound file. Any other file is removed."""
        if self._files is None or (data := self._files.get(owner, part)) is None:
            return None
        try:
            found = _decoded(owner, part, data)
        except Corruption:
            self._files.drop(owner, (part,))
            return None
        self._served("disk")
        return found


def _decoded(owner: ArchiveId, part: ManifestPart, data: bytes | memoryview) -> list[ArchivedSegment]:
    """The segments of a part. Raises Corruption if the bytes are not those of its object."""
    return [one for run in decode_part(owner, part, data) for one in unpack_run(run)]


def _whole(store: ObjectStore, key: str) -> memoryview:
    """The bytes of a whole object."""
    info = store.head(ObjectKey(key))
    if info is None:
        raise Rejected(f"{store.url} has no object {key}", ErrorCode.KAFKA_STORAGE_ERROR)
    return store.get(ObjectKey(key), FilePosition(0), FilePosition(info.size_bytes))
