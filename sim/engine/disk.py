"""A disk in memory that knows what is durable, for storage tests with thousands of crashes.

``SimDisk`` implements the interface of the operating system's files (``storage.disk``). It keeps two states: the one
that processes see, and the one after a power failure. A write is durable after a sync of its file, a name after a sync
of its directory, everything after ``sync_all``. ``crash`` discards the rest: with ``torn``, each 512-byte sector of an
unsynced write is there or not, in any order, so are sizes, and each directory keeps some prefix of its changes; without
it, nothing unsynced is left. ``crashed`` leaves the disk alone and returns another one in the state after a power
failure, so that a history can be checked at every operation without repetition.

Faults: ``crash_at`` counts operations and raises ``PowerFailure`` at the n-th (which may or may not have happened).
``capacity_bytes`` makes a full disk (ENOSPC); with ``copies`` (copy on write) an overwrite needs space, too.
``direct_block_bytes`` is the logical block of direct writes (0: unsupported). ``fail`` returns an errno to raise before
an operation. A failed write may be done in part. A failed sync leaves some of the unsynced sectors on the disk and
marks all of them clean, as Linux does: they are still read, and no later sync makes them durable. ``flip`` corrupts a
byte, ``damage`` a sector. ``before`` is called before every operation. All randomness comes from the generator given at
construction, so a history repeats from its seed.
"""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from millstream.format.wal import SECTOR_BYTES
from millstream.storage.disk import DIRECT_BLOCK_BYTES

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from millstream.storage.disk import Buffer

LOST: Final = "lost"
"""After a crash nothing unsynced is left."""

TORN: Final = "torn"
"""After a crash some sectors, some sizes, and a prefix of each directory's changes are left."""

KEPT: Final = "kept"
"""After a crash everything is left, as after the end of the process alone."""
_ROOMY: Final = 1 << 40


class PowerFailure(BaseException):
    """The power failed. No code under test may catch this and continue."""


class _Node:
    """A file: its visible content, its durable content, and the writes in between."""

    __slots__ = ("content", "durable", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # (position, bytes), or (size, None) for a truncation

    def sync(self) -> None:
        durable = self.durable
        for position, data in self.pending:
            if data is None:
                del durable[position:]
                durable.extend(bytes(position - len(durable)))
            else:
                durable.extend(bytes(max(0, position - len(durable))))
                durable[position : position + len(data)] = data
        self.pending = []

    def sync_failed(self, rng: random.Random) -> None:
        """Some sectors are on the disk; all count as clean from now on. The size survives, because the file system
        keeps it in a journal.
        """
        if self.pending:
            self.durable = _torn(self.durable, self.pending, rng)
            self.pending = [(len(self.content), None)]

    def crash(self, rng: random.Random, *, torn: bool) -> None:
        """Take the state after a power failure."""
        if torn and self.pending:
            self.durable = _torn(self.durable, self.pending, rng)
        self.pending = []
        self.content = bytearray(self.durable)

    def crashed(self, rng: random.Random, left: str) -> _Node:
        """The file after a power failure."""
        node = _Node()
        if left == KEPT:
            node.durable = bytearray(self.content)
        elif left == TORN and self.pending:
            node.durable = _torn(self.durable, self.pending, rng)
        else:
            node.durable = bytearray(self.durable)
        node.content = bytearray(node.durable)
        return node


def _torn(durable: bytearray, pending: list[tuple[int, bytes | None]], rng: random.Random) -> bytearray:
    """Some sectors of some writes reached the disk."""
    sizes = [len(durable)]
    reached = bytearray(durable)
    keep = rng.random()
    for position, data in pending:
        if data is None:
            sizes.append(position)
            if rng.random() < keep:
                del reached[position:]
                reached.extend(bytes(max(0, position - len(reached))))
            continue
        sizes.append(max(sizes[-1], position + len(data)))
        start = position
        while start < position + len(data):
            end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, position + len(data))
            if rng.random() < keep:
                if len(reached) < end:
                    reached.extend(bytes(end - len(reached)))
                reached[start:end] = data[start - position : end - position]
            start = end
    size = rng.choice(sizes)
    del reached[size:]
    reached.extend(bytes(size - len(reached)))
    return reached


class _Directory:
    """Names: visible, durable, and the changes in between."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, _Node | _Directory] = {}
        self.durable: dict[str, _Node | _Directory] = {}
        self.pending: list[tuple[tuple[str, _Node | _Directory | None], ...]] = []

    def change(self, *entries: tuple[str, _Node | _Directory | None]) -> None:
        """Change the meaning of names, all at once; None removes a name."""
        self.pending.append(entries)
        _apply(self.names, entries)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending = []

    def crash(self, rng: random.Random, *, torn: bool) -> None:
        if torn:
            for entries in self.pending[: rng.randint(0, len(self.pending))]:
                _apply(self.durable, entries)
        self.pending = []
        self.names = dict(self.durable)

    def crashed(self, rng: random.Random, left: str) -> _Directory:
        """The directory with its content after a power failure."""
        found = dict(self.names) if left == KEPT else dict(self.durable)
        if left == TORN and self.pending:
            for entries in self.pending[: rng.randint(0, len(self.pending))]:
                _apply(found, entries)
        made = _Directory()
        made.names = {name: node.crashed(rng, left) for name, node in found.items()}
        made.durable = dict(made.names)
        return made


def _apply(names: dict[str, _Node | _Directory], entries: tuple[tuple[str, _Node | _Directory | None], ...]) -> None:
    for name, node in entries:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimFile:
    """An open file of a ``SimDisk``."""

    def __init__(self, disk: SimDisk, path: str, node: _Node, block_bytes: int = 1) -> None:
        self._disk = disk
        self._node = node
        self._block_bytes = block_bytes
        self.path = path

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        if any(place % self._block_bytes for place in (position, *map(len, buffers))):
            raise _error(errno.EINVAL, self.path)
        try:
            self._disk.happens("write", self.path)
        except OSError:
            self._write(self._disk.part_of(b"".join(buffers)), position)
            raise
        count = self._write(b"".join(buffers), position)
        self._disk.happened("write", self.path)
        return count

    def _write(self, data: bytes, position: int) -> int:
        content = self._node.content
        more = len(data) if self._disk.copies else position + len(data) - len(content)
        if more > 0:
            data = self._disk.take_space(data, more, self._block_bytes)
            content.extend(bytes(max(0, position + len(data) - len(content))))
        content[position : position + len(data)] = data
        if data:
            self._node.pending.append((position, data))
        return len(data)

    def write_direct(self, buffers: Sequence[memoryview], position: int) -> int:
        if any(place % DIRECT_BLOCK_BYTES for place in (position, *map(len, buffers))):
            raise AssertionError(f"{self.path}: {[*map(len, buffers)]} bytes at {position} are no whole blocks")
        if not self._disk.direct_block_bytes:
            raise _error(errno.EINVAL, self.path)
        return self.pwritev(buffers, position)

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        self._disk.happens("read", self.path)
        filled = 0
        for buffer in buffers:
            part = self._node.content[position + filled : position + filled + len(buffer)]
            buffer[: len(part)] = part
            filled += len(part)
        return filled

    def preadv_cached(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        return self.preadv(buffers, position)

    def sync(self) -> None:
        try:
            self._disk.happens("sync", self.path)
        except OSError:
            self._disk.sync_failed(self._node)
            raise
        self._node.sync()
        self._disk.happened("sync", self.path)

    def size(self) -> int:
        return len(self._node.content)

    def truncate(self, size_bytes: int) -> None:
        self._disk.happens("truncate", self.path)
        content = self._node.content
        if size_bytes > len(content):
            content.extend(bytes(size_bytes - len(content)))
        del content[size_bytes:]
        self._node.pending.append((size_bytes, None))
        self._disk.happened("truncate", self.path)

    def close(self) -> None: ...


class SimDisk:
    """The disk in memory."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._root = _Directory()
        self.operations = 0
        """Number of changes and syncs so far."""

        self.crash_at = -1
        """Number of the operation at which the power fails."""

        self.capacity_bytes: int | None = None
        self.copies = False
        self.direct_block_bytes = SECTOR_BYTES
        self.fail: Callable[[str, str], int] = _never
        """Called before each operation (kind, path); returns an errno to raise, or 0."""

        self.before: Callable[[str, str], None] | None = None
        """Called before each operation (kind, path), reads included."""

    # -- the state -----------------------------------------------------------------------------------------------------

    def happens(self, kind: str, path: str) -> None:
        """An operation is about to happen."""
        if self.before is not None:
            self.before(kind, path)
        code = self.fail(kind, path)
        if code:
            raise _error(code, path)
        if kind == "read":
            return
        self.operations += 1
        if self.operations == self.crash_at and self._rng.random() < 0.5:
            raise PowerFailure

    def happened(self, kind: str, path: str) -> None:
        """An operation has happened, from the process's view."""
        del kind, path
        if 0 <= self.crash_at <= self.operations:
            raise PowerFailure

    def crash(self, *, torn: bool) -> None:
        """Fail the power: data that were not durable are lost, in whole or in part. Open files are invalid."""
        self.crash_at = -1
        todo = [self._root]
        while todo:
            directory = todo.pop()
            directory.crash(self._rng, torn=torn)
            for node in directory.names.values():
                if isinstance(node, _Directory):
                    todo.append(node)
                else:
                    node.crash(self._rng, torn=torn)

    def crashed(self, rng: random.Random, left: str) -> SimDisk:
        """Another disk in the state after a power failure now. ``left`` is LOST, TORN or KEPT."""
        made = SimDisk(rng)
        made._root = self._root.crashed(rng, left)
        made.direct_block_bytes = self.direct_block_bytes
        return made

    def sync_failed(self, node: _Node) -> None:
        """A sync of this file was answered with an error."""
        node.sync_failed(self._rng)

    def part_of(self, data: bytes) -> bytes:
        """The part of a failed write that was done nevertheless."""
        return data[: self._rng.choice([0, 0, SECTOR_BYTES, len(data) // 2])]

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Replace bytes on the disk, durable ones too: a misdirected write, or zeros."""
        node = self._file(path)
        for held in (node.content, node.durable):
            end = min(len(held), position + len(data))
            if position < end:
                held[position:end] = data[: end - position]

    def files(self) -> list[tuple[str, int]]:
        """Path and size of every file, in order."""
        found: list[tuple[str, int]] = []
        todo = [("", self._root)]
        while todo:
            path, directory = todo.pop()
            for name, node in directory.names.items():
                if isinstance(node, _Directory):
                    todo.append((f"{path}/{name}", node))
                else:
                    found.append((f"{path}/{name}", len(node.content)))
        return sorted(found)

    def flip(self, path: str, position: int) -> None:
        """Corrupt one byte of a file."""
        node = self._file(path)
        for data in (node.content, node.durable):
            if position < len(data):
                data[position] ^= 0x41

    def take_space(self, data: bytes, more: int, block_bytes: int) -> bytes:
        """The part of ``data`` that fits, in whole blocks, if the file would grow by ``more`` bytes."""
        if self.capacity_bytes is None:
            return data
        free = self.free_bytes("")
        if more <= free:
            return data
        fits = (len(data) - (more - free)) // block_bytes * block_bytes
        if fits <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return data[:fits]

    # -- the disk interface
    # ---------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            self.happens("create", path)
            directory, name = self._parent(path)
            node = directory.names.get(name)  # other threads may have run in between
            if node is None:
                node = _Node()
                directory.change((name, node))
            self.happened("create", path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return SimFile(self, path, node)

    def open_direct(self, path: str) -> SimFile:
        if not self.direct_block_bytes:
            raise _error(errno.EINVAL, path)
        return SimFile(self, path, self._file(path), self.direct_block_bytes)

    def size(self, path: str) -> int:
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        return 0 if isinstance(node, _Directory) else len(node.content)

    def list(self, directory: str) -> list[str]:
        return list(self._directory(directory).names)

    def make_directory(self, path: str) -> bool:
        directory, name = self._parent(path)
        if name in directory.names:
            return False
        self.happens("create", path)
        directory, name = self._parent(path)
        if name in directory.names:
            return False
        directory.change((name, _Directory()))
        self.happened("create", path)
        return True

    def remove_directory(self, path: str) -> None:
        if self._directory(path).names:
            raise _error(errno.ENOTEMPTY, path)
        self.unlink(path)

    def rename(self, source: str, target: str) -> None:
        self.happens("rename", target)
        directory, name = self._parent(source)
        other, new_name = self._parent(target)
        if directory is not other:
            raise OSError(errno.EXDEV, "the storage renames within a directory only", source)
        if name not in directory.names:
            raise _error(errno.ENOENT, source)
        if isinstance(replaced := directory.names.get(new_name), _Directory) and replaced.names:
            raise _error(errno.ENOTEMPTY, target)
        directory.change((name, None), (new_name, directory.names[name]))
        self.happened("rename", target)

    def unlink(self, path: str) -> None:
        directory, name = self._parent(path)
        if name not in directory.names:
            raise _error(errno.ENOENT, path)
        self.happens("unlink", path)
        directory.change((name, None))
        self.happened("unlink", path)

    def sync_directory(self, path: str) -> None:
        self._directory(path)
        self.happens("sync_directory", path)
        self._directory(path).sync()
        self.happened("sync_directory", path)

    def watch(self, path: str) -> None:
        """No effect: no other program syncs this disk."""

    def sync_all(self, path: str) -> None:
        try:
            self.happens("sync_all", path)
        except OSError:
            for node in self._nodes():
                if isinstance(node, _Node):
                    node.sync_failed(self._rng)
            raise
        for node in self._nodes():
            node.sync()
        self.happened("sync_all", path)

    def _nodes(self) -> list[_Node | _Directory]:
        """Every file and directory with a name."""
        found: list[_Node | _Directory] = [self._root]
        for node in found:
            if isinstance(node, _Directory):
                found.extend(node.names.values())
        return found

    def total_bytes(self, path: str) -> int:
        del path
        return _ROOMY if self.capacity_bytes is None else self.capacity_bytes

    def free_bytes(self, path: str) -> int:
        del path
        used = 0
        todo = [self._root]
        while todo:
            for node in todo.pop().names.values():
                if isinstance(node, _Directory):
                    todo.append(node)
                else:
                    used += len(node.content)
        return max(0, (_ROOMY if self.capacity_bytes is None else self.capacity_bytes) - used)

    # -- paths ---------------------------------------------------------------------------------------------------------

    def _directory(self, path: str) -> _Directory:
        directory = self._root
        for part in _parts(path):
            node = directory.names.get(part)
            if not isinstance(node, _Directory):
                raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            directory = node
        return directory

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _file(self, path: str) -> _Node:
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if not isinstance(node, _Node):
            raise _error(errno.ENOENT, path)
        return node


@lru_cache(4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _never(_kind: str, _path: str) -> int:
    return 0
