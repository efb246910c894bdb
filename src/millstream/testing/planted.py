"""Planted bugs: brokers that are broken on purpose, to prove that a crash test finds what it is for.

Each is a disk factory (``internal.disk.factory``) that patches the storage before the fork, and returns the disk of
``millstream.testing.disk``. A broker imports this module only through that setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.testing.disk import FaultDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.storage.disk import Buffer, Disk, File


class _LateFile:
    """A file whose sync is delayed until the next write to it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._owes = False

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        if self._owes:
            self._owes = False
            self._file.sync()
        return self._file.pwritev(buffers, position)

    def sync(self) -> None:
        self._owes = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _LateDisk:
    """A disk of such files."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, *, create: bool = False) -> _LateFile:
        return _LateFile(self._disk.open(path, create=create))

    def open_direct(self, path: str) -> _LateFile:
        return _LateFile(self._disk.open_direct(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def ack_before_sync() -> Disk:
    """The writer reports a tick when it is written, and syncs it only before the next write."""
    from millstream.storage.processes.writer import TickWriter

    original = TickWriter.__init__

    def begin(self: TickWriter, disk: Disk, *args: Any, **rest: Any) -> None:
        late: Any = _LateDisk(disk)
        original(self, late, *args, **rest)

    TickWriter.__init__ = begin
    return FaultDisk()
