"""The interface between the storage and the operating system's files.

All stored data go through a ``Disk``: the write-ahead log, segments, indexes, snapshots. In production it is
``SystemDisk``, a thin layer over system calls. Tests use others (``load_disk``): one that loses unsynced data in a
crash, one that fails or is full, one in memory.

Rules for callers, because POSIX guarantees no more:

- written data are durable only after ``File.sync`` (or ``sync_all``) returned;
- a created, renamed or removed name is durable only after ``sync_directory`` of its directory returned;
- after a failed sync, no later sync is trusted: the kernel marks the pages clean, and the next sync reports success
  (ATC'20, "Can applications recover from fsync failures?"). The process must stop.

Errors are ``OSError``; ``write_all`` completes short writes; nothing is retried here. Paths are plain strings.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import importlib
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millstream.model.quantities import FilePosition

    Buffer = bytes | bytearray | memoryview

_IOV_MAX: Final = 1024
"""Linux's limit of buffers in one vectored call."""

_CREATE_MODE: Final = 0o640


class DiskFault(enum.StrEnum):
    """Faults of the disk that stop a shard, as ``storage_faults`` counts them."""

    WRITE = "write_error"
    SYNC = "sync_error"


FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk without space, which a shard survives."""

OF_NAMES: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM})
"""Errors that say nothing about the disk: another program has removed, replaced or locked a file or a directory."""

_DIRECT_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of one direct write. A concurrent sync of another file waits behind at most that much."""

DIRECT_BLOCK_BYTES: Final = 4096
"""Alignment of ``File.write_direct``: a page, and at least the logical block of any disk."""


class File(Protocol):
    """An open file. Positions are in bytes from its start; every call may raise OSError."""

    @property
    def path(self) -> str: ...
    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers in order. Returns the number of bytes written, which may be fewer."""
        ...

    def write_direct(self, buffers: Sequence[memoryview], position: int) -> int:
        """Like ``pwritev``, bypassing the page cache. Raises EINVAL if the file system does not support that.

        The memory and size of each buffer, and the position, must be multiples of ``DIRECT_BLOCK_BYTES``.
        """
        ...

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        """Fill the buffers in order. Returns the number of bytes read; 0 at the end of the file."""
        ...

    def preadv_cached(self, buffers: Sequence[bytearray | memoryview], position: FilePosition) -> int:
        """Like ``preadv``, but only what is in the page cache: fewer bytes, or ``BlockingIOError`` if the first are not
        there. OSError with EOPNOTSUPP if the file system cannot tell.
        """
        ...

    def sync(self) -> None:
        """Make written data and the size durable (fdatasync)."""
        ...

    def size(self) -> int: ...
    def truncate(self, size_bytes: int) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files; every call may raise OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. FileNotFoundError if it does not exist and ``create`` is not set."""
        ...

    def open_direct(self, path: str) -> File:
        """Open an existing file for writing without the page cache.

        Memory and size of each write, and its position, must be multiples of the disk's logical block: usually
        ``SECTOR_BYTES``, at most 4096 bytes. Otherwise, or if the file system does not support it, EINVAL, here or at
        the first write.
        """
        ...

    def size(self, path: str) -> int:
        """Size in bytes; FileNotFoundError if there is no such file."""
        ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, unordered. FileNotFoundError if there is no such directory."""
        ...

    def make_directory(self, path: str) -> bool:
        """Make one directory level. False if it existed."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, atomically replacing an existing file."""
        ...

    def unlink(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None:
        """Make the names in this directory durable."""
        ...

    def watch(self, path: str) -> None:
        """Make later calls of ``sync_all`` on ``path`` report every write error from now on. Without it, an error that
        another process received by its own sync is not reported here.
        """
        ...

    def sync_all(self, path: str) -> None:
        """Make everything in ``path`` durable; cheaper than many single syncs. A directory directly in it may be a link
        to another file system or a mount point; deeper ones may not.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Free space of the file system of ``path`` for this process, in bytes."""
        ...

    def total_bytes(self, path: str) -> int:
        """Size of the file system of ``path``, in bytes."""
        ...


class SystemFile:
    """A file descriptor, closed once by its owner. Its errors name the file, which the system's own do not."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        try:
            return os.pwritev(self._fd, buffers, position)
        except OSError as error:
            error.filename = self.path
            raise

    def write_direct(self, buffers: Sequence[memoryview], position: int) -> int:
        # O_DIRECT belongs to an open file and not to a call, and readers of the other descriptor need their cache. The
        # second descriptor is not kept, because two per cached file would exceed many process limits.
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        written = 0
        try:
            for piece in pieces(buffers, _DIRECT_BYTES_MAX):
                count = os.pwritev(fd, piece, position + written)
                written += count
                if count < sum(map(len, piece)):
                    break
            return written
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            os.close(fd)

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        try:
            return os.preadv(self._fd, buffers, position)
        except OSError as error:
            error.filename = self.path
            raise

    def preadv_cached(self, buffers: Sequence[bytearray | memoryview], position: FilePosition) -> int:
        try:
            return os.preadv(self._fd, buffers, position, os.RWF_NOWAIT)
        except OSError as error:
            error.filename = self.path
            raise

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            error.filename = self.path
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._fd, size_bytes)
        except OSError as error:
            error.filename = self.path
            raise

    def close(self) -> None:
        os.close(self._fd)


def pieces(buffers: Iterable[memoryview], bytes_max: int) -> Iterator[list[Buffer]]:
    """The buffers in groups of at most ``bytes_max``; a longer buffer is a group of its own."""
    piece: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if piece and size + len(buffer) > bytes_max:
            yield piece
            piece = []
            size = 0
        piece.append(buffer)
        size += len(buffer)
    if piece:
        yield piece


class SystemDisk:
    """The operating system's files. Safe for threads, and across a fork until ``watch``: the kernel keeps the reported
    errors per open descriptor, which forks share.
    """

    def __init__(self) -> None:
        self._watched: dict[str, list[int]] = {}
        weakref.finalize(self, _close_systems, self._watched)

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(path, os.open(path, flags, _CREATE_MODE))

    def open_direct(self, path: str) -> File:
        return SystemFile(path, os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def make_directory(self, path: str) -> bool:
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def watch(self, path: str) -> None:
        if path not in self._watched:
            self._watched[path] = _open_systems(path)

    def sync_all(self, path: str) -> None:
        watched = self._watched.get(path)
        opened = _open_systems(path) if watched is None else []
        try:
            for fd in watched or opened:
                if _libc().syncfs(fd) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), path)
        finally:
            for fd in opened:
                os.close(fd)

    def free_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize


def _open_systems(path: str) -> list[int]:
    """A descriptor on each file system of a directory and of its direct subdirectories."""
    with os.scandir(path) as entries:
        below = [entry.path for entry in entries if entry.is_dir() and os.access(entry.path, os.R_OK)]
    systems = {os.stat(one).st_dev: one for one in (*below, path)}
    return [os.open(one, os.O_RDONLY | os.O_CLOEXEC) for one in systems.values()]


def _close_systems(watched: dict[str, list[int]]) -> None:
    for fd in itertools.chain.from_iterable(watched.values()):
        os.close(fd)


_libc_handle: list[ctypes.CDLL] = []


def _libc() -> ctypes.CDLL:
    if not _libc_handle:
        _libc_handle.append(ctypes.CDLL(None, use_errno=True))
    return _libc_handle[0]


def load_disk(factory: str) -> Disk:
    """The disk of a hidden setting "module:callable"; the operating system's for an empty string."""
    if not factory:
        return SystemDisk()
    module, _, name = factory.partition(":")
    made: Disk = getattr(importlib.import_module(module), name)()
    return made


# -- functions over the interface --------------------------------------------------------------------------------------


def write_all(file: File, buffers: list[Buffer], position: int) -> int:
    """Write every byte of the buffers at ``position``. Returns the number of bytes.

    Raises:
        OSError: a write failed, or wrote nothing (reported as EIO). Earlier writes stay.
    """
    written = 0
    for start in range(0, len(buffers), _IOV_MAX):
        rest = buffers[start : start + _IOV_MAX]
        want = sum(map(len, rest))
        while want:
            done = file.pwritev(rest, position + written)
            if done <= 0:
                raise OSError(errno.EIO, "the file takes no more bytes", file.path)
            written += done
            want -= done
            if want:
                rest = without(rest, done)
    return written


def without(buffers: Sequence[Buffer], skip: int) -> list[Buffer]:
    """The buffers without their first ``skip`` bytes."""
    left: list[Buffer] = []
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
        else:
            left.append(memoryview(buffer)[skip:] if skip else buffer)
            skip = 0
    return left


class ReadFailed(OSError):
    """A file could not be read. What is on the disk is as it was."""


def is_of_one_log(error: OSError) -> bool:
    """Whether an error in a command about a file of one log says nothing about the files of others."""
    return isinstance(error, ReadFailed) or error.errno in OF_NAMES


def read_at(file: File, position: int, size_bytes: int) -> bytearray:
    """Up to ``size_bytes`` from ``position``; shorter only at the end of the file. Raises ReadFailed."""
    data = bytearray(size_bytes)
    view = memoryview(data)
    filled = 0
    while filled < size_bytes:
        try:
            got = file.preadv([view[filled:]], position + filled)
        except OSError as error:
            raise ReadFailed(error.errno, error.strerror, file.path) from error
        if got <= 0:
            view.release()
            del data[filled:]
            break
        filled += got
    return data


def read_file(disk: Disk, path: str) -> bytearray:
    """The whole content of a small file. FileNotFoundError if it does not exist."""
    file = disk.open(path)
    try:
        return read_at(file, 0, file.size())
    finally:
        file.close()


def read_text(disk: Disk, path: str) -> str:
    """The text of a small file in one line. Errors as in ``read_file``."""
    return read_file(disk, path).decode(errors="replace").strip()


def replace_file(disk: Disk, path: str, data: Buffer) -> None:
    """Atomically replace the content of the file by ``data``, durably."""
    write_aside(disk, path, data)
    disk.rename(path + ".tmp", path)
    disk.sync_directory(os.path.dirname(path))


def remove_file(disk: Disk, path: str) -> None:
    """Remove a file, durably, if there is one."""
    if exists(disk, path):
        disk.unlink(path)
        disk.sync_directory(os.path.dirname(path))


def write_aside(disk: Disk, path: str, data: Buffer, *, sync: bool = True) -> None:
    """The first half of ``replace_file``: writes ``path``.tmp. The rename must follow its sync."""
    file = disk.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        write_all(file, [data], 0)
        if sync:
            file.sync()
    finally:
        file.close()


def make_directories(disk: Disk, path: str) -> list[str]:
    """Make a directory and its missing parents. Returns the directories with new names, which must be synced."""
    try:
        made = disk.make_directory(path)
    except FileNotFoundError:
        parents = make_directories(disk, os.path.dirname(path))
        disk.make_directory(path)
        return [*parents, os.path.dirname(path)]
    return [os.path.dirname(path)] if made else []


def exists(disk: Disk, path: str) -> bool:
    """Whether a file or directory with this name exists."""
    try:
        disk.size(path)
    except FileNotFoundError:
        return False
    return True


# -- descriptors -------------------------------------------------------------------------------------------------------


class FileCache:
    """Open files in LRU order. A file in use is never closed.

    Ten thousand partitions have more files than a process may have descriptors. ``acquire`` and ``release`` come in
    pairs. The limit is exceeded while more than ``limit`` files are in use. Safe for threads.
    """

    def __init__(self, disk: Disk, limit: int = 512) -> None:
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._by_path: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._in_use: dict[int, _Entry] = {}  # by identity of the file
        self.opened = self.reused = 0  # how often a file had to be opened, and how often it was open

    def acquire(self, path: str, *, create: bool = False) -> File:
        """The open file. The caller returns it with ``release``. Raises OSError as ``Disk.open`` does."""
        with self._lock:
            entry = self._by_path.get(path)
            if entry is None:
                self.opened += 1
                entry = self._by_path[path] = _Entry(self._disk.open(path, create=create))
                if len(self._by_path) > self._limit:
                    self._close_oldest(entry)
            else:
                self.reused += 1
                self._by_path.move_to_end(path)
            entry.users += 1
            self._in_use[id(entry.file)] = entry
            return entry.file

    def release(self, file: File) -> None:
        """Return a file. A forgotten file is closed with its last user."""
        with self._lock:
            entry = self._in_use[id(file)]
            entry.users -= 1
            if not entry.users:
                del self._in_use[id(file)]
                if entry.forgotten:
                    file.close()

    def forget(self, path: str) -> None:
        """The name was removed, or means another file from now on: close the file, now or with its last user."""
        with self._lock:
            entry = self._by_path.pop(path, None)
            if entry is None:
                return
            entry.forgotten = True
            if not entry.users:
                entry.file.close()

    def close(self) -> None:
        """Close every file. None may be in use."""
        with self._lock:
            for entry in self._by_path.values():
                entry.file.close()
            self._by_path.clear()

    def __len__(self) -> int:
        return len(self._by_path)

    def _close_oldest(self, newest: _Entry) -> None:
        for path, entry in self._by_path.items():
            if not entry.users and entry is not newest:
                del self._by_path[path]
                entry.file.close()
                return


class _Entry:
    __slots__ = ("file", "forgotten", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.forgotten = False
