"""Parts of manifests on the broker's own disk, so that a read of old history asks the store for each part once.

One file a part, with the bytes of its object, in ``cache.path`` or the directory that stands for it::

    cache/parts-0/<topic id>-<partition>-<name of the part's object>

What is promised. **Every file may be lost, damaged or removed at any time**: a part has a checksum of its own and says
whose it is, so that a file that is anything else is removed and the object is read. Nothing is synced. A file gets its
name when it is written, so a broker that dies leaves a whole file or one under a temporary name, which the next start
removes; a power failure may leave a torn one, which does not match its checksum.

The files of a shard take at most ``bytes_max``; the longest unused ones go first, and their order lasts over a restart
(the files' times). Nothing is written while less than ``free_share_min`` of the disk is free. If the disk fails, parts
come from the store, and one line is logged each ``_SILENT_S`` seconds.

Parts are never changed in the store, so a file never needs to be compared with it. Safe for threads. The directory is
made by the first part that is kept.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from millstream.errors import Rejected
from millstream.format.manifest import part_name
from millstream.telemetry.log import log as operator_log
from millstream.tiers.hot_tier.slots import check_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.format.manifest import ArchiveId, ManifestPart

BYTES_MAX: Final = 64 << 20
"""Of all shards together: the parts of about two million segments."""

_TEMPORARY: Final = ".new"
_SILENT_S: Final = 60.0


class PartFiles:
    """The parts of one shard's archives that are on its disk."""

    def __init__(self, directory: str, bytes_max: int, free_share_min: float = 0.1) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._free_share_min = free_share_min
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Bytes of each file by name, the longest unused first. Guarded by the lock."""

        self._bytes = 0
        self._silent_until_s = 0.0
        self._find()

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return self._bytes

    def get(self, owner: ArchiveId, part: ManifestPart) -> bytes | None:
        """The bytes that a file has for a part, unchecked; None without one."""
        name = _name(owner, part)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        path = f"{self._directory}/{name}"
        try:
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
                data = file.read(self._bytes_max + 1)
            os.utime(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._warn(error)
            self._forget([name])
            return None
        return data

    def put(self, owner: ArchiveId, part: ManifestPart, data: memoryview) -> None:
        """Keep the bytes of a part, which the caller has checked. If anything fails, nothing is kept."""
        name = _name(owner, part)
        path = f"{self._directory}/{name}"
        temporary = f"{path}.{threading.get_native_id()}{_TEMPORARY}"
        if len(data) > self._bytes_max:
            return
        try:
            check_directory(self._directory)
            space = os.statvfs(self._directory)
            if space.f_bavail < self._free_share_min * space.f_blocks:
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(data)
            os.rename(temporary, path)
        except (OSError, Rejected) as error:
            self._warn(error)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        with self._lock:
            self._bytes += len(data) - self._sizes.pop(name, 0)
            self._sizes[name] = len(data)
        self._shrink()

    def drop(self, owner: ArchiveId, parts: Sequence[ManifestPart] | None = None) -> None:
        """Remove the files of these parts, or of all parts of a partition: they are of no use."""
        if parts is None:
            prefix = _prefix(owner)
            with self._lock:
                names = [name for name in self._sizes if name.startswith(prefix)]
        else:
            names = [_name(owner, part) for part in parts]
        self._remove(names)

    def _find(self) -> None:
        """Take up what an earlier life of the broker has left."""
        found: list[tuple[int, str, int]] = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if entry.name.endswith(_TEMPORARY):
                        os.unlink(entry.path)
                    elif entry.name.endswith(".part"):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime_ns, entry.name, status.st_size))
        except FileNotFoundError:
            return
        except OSError as error:
            self._warn(error)
            return
        for _, name, size in sorted(found):
            self._sizes[name] = size
            self._bytes += size
        self._shrink()

    def _shrink(self) -> None:
        leave: list[str] = []
        with self._lock:
            left = self._bytes
            for name, size in self._sizes.items():
                if left <= self._bytes_max:
                    break
                leave.append(name)
                left -= size
        self._remove(leave)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                os.unlink(f"{self._directory}/{name}")
            except FileNotFoundError:
                continue
            except OSError as error:
                self._warn(error)
        self._forget(names)

    def _forget(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._bytes -= self._sizes.pop(name, 0)

    def _warn(self, error: Exception) -> None:
        if time.monotonic() >= self._silent_until_s:
            self._silent_until_s = time.monotonic() + _SILENT_S
            operator_log.warning("parts of manifests are read from the store each time: %s", error)


def _name(owner: ArchiveId, part: ManifestPart) -> str:
    return _prefix(owner) + part_name(part)


def _prefix(owner: ArchiveId) -> str:
    return f"{owner.topic_id.hex}-{owner.partition_index}-"
