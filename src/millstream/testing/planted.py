"""Planted bugs: brokers that are broken on purpose, so that a test of crashes can show that it finds what it is for.

Each is a disk factory (``internal.disk.factory``) that patches the storage before anything is forked, and gives out
the disk of `millstream.testing.disk`. Nothing of this is imported by a broker that was not told to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.testing.disk import FaultDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.storage.disk import Buffer, Disk, File


class _LateFile:
    """A file whose sync is put off until the next write to it."""

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
    """The writer answers when a tick is written, and syncs it only before it writes the next."""
    from millstream.storage.processes.writer import TickWriter

    original = TickWriter.__init__

    def begin(self: TickWriter, disk: Disk, *args: Any, **rest: Any) -> None:
        late: Any = _LateDisk(disk)
        original(self, late, *args, **rest)

    TickWriter.__init__ = begin
    return FaultDisk()
