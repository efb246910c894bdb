"""The one seam between the storage and the operating system's files.

Everything that the broker keeps goes through a `Disk`: the write-ahead log, segments, indexes, snapshots. In
production it is `SystemDisk`, a thin layer over system calls. Tests put another one behind it (`load_disk`): one that
remembers what was not synced and takes it away in a crash, one that fails or is full, one that lives in memory.

The rules that callers keep, because POSIX promises no more than this:

- what was written is durable only after `File.sync` (or `sync_all`) returned;
- a created, renamed or removed name is durable only after `sync_directory` of its directory returned;
- a sync that failed is never trusted again: the kernel marks the pages clean, and the next sync lies (ATC'20, "Can
  applications recover from fsync failures?"). Whoever sees it stops the process.

Errors travel as `OSError`, short writes are finished by `write_all`; nothing is retried here. Paths are plain strings.
"""

from __future__ import annotations

import ctypes
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

    Buffer = bytes | bytearray | memoryview

_IOV_MAX: Final = 1024
"""Linux's limit of buffers in one vectored call."""

_CREATE_MODE: Final = 0o640

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a disk says when it has no room: the only failures of a write that are survived."""

_DIRECT_BYTES_MAX: Final = 1 << 20
"""Handed to the disk at once: what somebody else writes and syncs meanwhile waits behind that much, and not more."""

DIRECT_BLOCK_BYTES: Final = 4096
"""A page, and no less than the logical block of any disk: what `File.write_direct` deals in."""


class File(Protocol):
    """An open file. Positions are in bytes from its start; every call may raise OSError."""

    @property
    def path(self) -> str: ...
    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other; returns how many bytes were taken, which may be fewer."""
        ...

    def write_direct(self, buffers: Sequence[memoryview], position: int) -> int:
        """Like `pwritev`, past the page cache; raises EINVAL where the file system does not do that.

        The memory and the size of each buffer, and the position, are multiples of `DIRECT_BLOCK_BYTES`.
        """
        ...

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        """Fill the buffers one after the other; returns how many bytes there were, 0 at the end of the file."""
        ...

    def sync(self) -> None:
        """Make what was written durable, and the size with it (fdatasync)."""
        ...

    def size(self) -> int: ...
    def truncate(self, size_bytes: int) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files; every call may raise OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless it exists or `create` is set."""
        ...

    def open_direct(self, path: str) -> File:
        """Open a file that is there, to be written past the page cache.

        The memory and the size of what it writes at once, and the position, are multiples of the disk's logical
        block: mostly `SECTOR_BYTES`, 4096 bytes at most. EINVAL, here or at the first write, where they are not, and
        where the file system does not do that.
        """
        ...

    def size(self, path: str) -> int:
        """Size in bytes; FileNotFoundError if there is no such file."""
        ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, in no order; FileNotFoundError if there is no such directory."""
        ...

    def make_directory(self, path: str) -> bool:
        """Make one directory level; False if it was there already."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name, replacing a file of that name in one step."""
        ...

    def unlink(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None:
        """Make the names in this directory durable."""
        ...

    def watch(self, path: str) -> None:
        """Have `sync_all` of `path` tell this process of everything that could not be written from now on. Else what
        another process was told of, one that synced the same file system, counts as told.
        """
        ...

    def sync_all(self, path: str) -> None:
        """Make everything in `path` durable: cheaper than many single syncs. A directory directly in it may be a link
        to another file system, or be mounted there; deeper ones may not.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Space that the file system of `path` still has for this process."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system of `path`."""
        ...


class SystemFile:
    """A descriptor. Closed once, by its owner. Its errors name the file, which the system's own do not."""

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
        # The flag belongs to an open file and not to a call, and readers of the other descriptor want their cache. It
        # is not kept: two descriptors of each file in a cache are more than many a process may have.
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
    """The buffers, as many at a time as have `bytes_max`, and a longer one alone."""
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
    """The operating system's files. Safe to share between threads, and across a fork until it is told to `watch`:
    the kernel notes with each open descriptor which errors were told, and forks have the same one.
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
    """A descriptor on each file system that a directory, or one directly in it, is on."""
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
    """The disk that a hidden setting names as "module:callable"; the operating system's own for an empty string."""
    if not factory:
        return SystemDisk()
    module, _, name = factory.partition(":")
    made: Disk = getattr(importlib.import_module(module), name)()
    return made


# -- small verbs over the seam -----------------------------------------------------------------------------------------


def write_all(file: File, buffers: list[Buffer], position: int) -> int:
    """Write every byte of the buffers at `position`, however the kernel splits it; returns the bytes written.

    Raises:
        OSError: a write failed, or took nothing (reported as EIO); what was written before it stays.
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
    """What is left of the buffers once their first `skip` bytes are gone."""
    left: list[Buffer] = []
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
        else:
            left.append(memoryview(buffer)[skip:] if skip else buffer)
            skip = 0
    return left


def read_at(file: File, position: int, size_bytes: int) -> bytearray:
    """Up to `size_bytes` from `position`; shorter only at the end of the file."""
    data = bytearray(size_bytes)
    view = memoryview(data)
    filled = 0
    while filled < size_bytes:
        got = file.preadv([view[filled:]], position + filled)
        if got <= 0:
            view.release()
            del data[filled:]
            break
        filled += got
    return data


def read_file(disk: Disk, path: str) -> bytearray:
    """The whole content of a small file; FileNotFoundError if there is none."""
    file = disk.open(path)
    try:
        return read_at(file, 0, file.size())
    finally:
        file.close()


def read_text(disk: Disk, path: str) -> str:
    """What a small file says, in a line; as `read_file`."""
    return read_file(disk, path).decode(errors="replace").strip()


def replace_file(disk: Disk, path: str, data: Buffer) -> None:
    """Put `data` in the file's place in one step that no crash can halve."""
    write_aside(disk, path, data)
    disk.rename(path + ".tmp", path)
    disk.sync_directory(os.path.dirname(path))


def write_aside(disk: Disk, path: str, data: Buffer, *, sync: bool = True) -> None:
    """The first half of `replace_file`: `path`.tmp, not yet renamed, which must not happen before it is synced."""
    file = disk.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        write_all(file, [data], 0)
        if sync:
            file.sync()
    finally:
        file.close()


def make_directories(disk: Disk, path: str) -> list[str]:
    """Make a directory and whatever is missing above it; returns the directories that got a new name, to be synced."""
    try:
        made = disk.make_directory(path)
    except FileNotFoundError:
        parents = make_directories(disk, os.path.dirname(path))
        disk.make_directory(path)
        return [*parents, os.path.dirname(path)]
    return [os.path.dirname(path)] if made else []


def exists(disk: Disk, path: str) -> bool:
    """Whether there is a file (or directory) of this name."""
    try:
        disk.size(path)
    except FileNotFoundError:
        return False
    return True


# -- descriptors -------------------------------------------------------------------------------------------------------


class FileCache:
    """Open files, least recently used closed first, none while somebody uses it.

    Ten thousand partitions have more files than a process may have descriptors. `acquire` and `release` come in
    pairs; a file in use is never closed, so the limit is passed when more than `limit` are in use at once. Safe
    between threads.
    """

    def __init__(self, disk: Disk, limit: int = 512) -> None:
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._by_path: OrderedDict[str, _Entry] = OrderedDict()  # oldest use first
        self._in_use: dict[int, _Entry] = {}  # by identity of the file

    def acquire(self, path: str, *, create: bool = False) -> File:
        """The open file; the caller gives it back with `release`. Raises OSError as `Disk.open` does."""
        with self._lock:
            entry = self._by_path.get(path)
            if entry is None:
                entry = self._by_path[path] = _Entry(self._disk.open(path, create=create))
                if len(self._by_path) > self._limit:
                    self._close_oldest(entry)
            else:
                self._by_path.move_to_end(path)
            entry.users += 1
            self._in_use[id(entry.file)] = entry
            return entry.file

    def release(self, file: File) -> None:
        """One user less; a file that was forgotten meanwhile is closed with its last user."""
        with self._lock:
            entry = self._in_use[id(file)]
            entry.users -= 1
            if not entry.users:
                del self._in_use[id(file)]
                if entry.forgotten:
                    file.close()

    def forget(self, path: str) -> None:
        """The name is gone or means another file from now on: close this one, now or with its last user."""
        with self._lock:
            entry = self._by_path.pop(path, None)
            if entry is None:
                return
            entry.forgotten = True
            if not entry.users:
                entry.file.close()

    def close(self) -> None:
        """Close every file; nobody may use one any more."""
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
