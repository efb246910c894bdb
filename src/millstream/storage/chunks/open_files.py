"""The open files of chunks: one LRU a core, in which each partition has a capacity of its own, ``fd_cache_capacity``.

A partition beyond its capacity loses the file of its own that was used least lately; a file in use is never closed.
Where all of them are in use the capacity is overshot, which is counted. Files that are written count like those that
are read, because both are the same. A partition whose capacity is not known yet has that of the core alone.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from millstream.storage.disk import FileCache

if TYPE_CHECKING:
    from millstream.storage.disk import Disk, File


class ChunkFileCache(FileCache):
    """A ``FileCache`` with capacities of directories. Safe for threads."""

    def __init__(self, disk: Disk, limit: int) -> None:
        super().__init__(disk, limit)
        self.overshot = 0
        """How often a file was opened though all others of its partition's capacity were in use."""
        self._capacities: dict[str, int] = {}
        self._own: dict[str, OrderedDict[str, None]] = {}  # files of each directory, least lately used first

    def set_capacity(self, directory: str, open_files_max: int) -> None:
        """At most so many files of a directory stay open from now on."""
        self._capacities[directory] = open_files_max

    def acquire(self, path: str, *, create: bool = False) -> File:
        """See ``FileCache.acquire``."""
        file = super().acquire(path, create=create)
        directory = os.path.dirname(path)
        with self._lock:
            own = self._own.setdefault(directory, OrderedDict())
            own[path] = None
            own.move_to_end(path)
            if len(own) > self._capacities.get(directory, self._limit):
                self._make_room(own, self._capacities.get(directory, self._limit))
        return file

    def forget(self, path: str) -> None:
        """See ``FileCache.forget``."""
        super().forget(path)
        directory = os.path.dirname(path)
        with self._lock:
            own = self._own.get(directory)
            if own is not None:
                own.pop(path, None)
                if not own:
                    del self._own[directory]
                    self._capacities.pop(directory, None)

    def forget_directory(self, directory: str) -> None:
        """Forget every file of a directory."""
        with self._lock:
            paths = list(self._own.get(directory, ()))
        for path in paths:
            self.forget(path)

    def _make_room(self, own: OrderedDict[str, None], open_files_max: int) -> None:
        for path in list(own):
            entry = self._by_path.get(path)
            if entry is not None and entry.users:
                continue
            if entry is not None:
                del self._by_path[path]
                entry.file.close()
            del own[path]
            if len(own) <= open_files_max:
                return
        self.overshot += 1
