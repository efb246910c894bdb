"""A disk for real brokers that loses unsynced data in a crash, and fails on demand.

It is the ``storage.disk`` of every process of a broker that is started with ``--set
internal.disk.factory=millstream.testing.disk:FaultDisk`` and with ``MILLSTREAM_FAULT_DIR`` naming a directory. Writes
go to the real files, so that all processes see them. Before each change, an undo record is journalled in the fault
directory. A test kills the broker, calls ``apply_crash``, which undoes every change that no sync covered, and starts
the broker again: it then finds what a power failure would have left.

::

    fault directory   control      operations counted so far, and at which one to kill the broker
                      rules.json   faults to inject: which operation, on which path, what happens
                      journal-PID  undo records, one file a process

Durability: a write or a truncation is durable after a sync of its file that started later; a name (created, renamed,
removed) after such a sync of its directory; everything after ``sync_all``. With ``torn``, each 512-byte sector of an
undone write may have reached the disk, in any order, and each directory keeps some prefix of its changes.

The kill precedes the counted operation, and hits every process of the broker's process group at once.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import signal
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.format.wal import SECTOR_BYTES
from millstream.storage.disk import SystemDisk, SystemFile

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from millstream.model.quantities import FilePosition
    from millstream.storage.disk import Buffer, File

FAULT_DIR_VARIABLE: Final = "MILLSTREAM_FAULT_DIR"

WRITE: Final = 1
SYNC: Final = 2
NAME: Final = 4
SEND: Final = 8
"""Kinds of operations, counted in any combination."""

_CELLS: Final = struct.Struct("<QQQ")  # operations counted, kill at, kinds that count


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault. ``op`` is read, write, sync, name, open or free; ``path`` is a part of the file's path.

    A truncation counts as a write. ``name`` covers creation, renaming and removal of files and directories.

    ``error`` is an errno, ``delay_ms`` a delay; ``lie`` makes a sync return without syncing.
    """

    op: str
    path: str = ""
    error: int = 0
    delay_ms: int = 0
    lie: bool = False


class Change(msgspec.Struct, frozen=True, array_like=True):
    """An undo record. ``kind`` decides the meaning of the fields.

    write, truncate: ``data`` are the bytes that were at ``position``, the file had ``size`` bytes; ``length`` were
    written. create, mkdir: the name did not exist. rename: ``target`` had ``data`` (``size`` -1: did not exist).
    unlink: the file had ``data``. file, directory, all: a sync that started after ``number``.
    """

    number: int
    kind: str
    path: str
    position: int = 0
    data: bytes = b""
    size: int = -1
    length: int = 0
    target: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Change).decode


class Faults:
    """The fault directory, for the test and for every process of the broker."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.directory / "control", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._fd, mmap.PAGESIZE)
        self._map = mmap.mmap(self._fd, mmap.PAGESIZE)
        self._threads = threading.Lock()
        self._pid = 0
        self._journal = -1
        self._rules: tuple[Rule, ...] = ()
        self._rules_stamp = 0

    # The test's side

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the broker."""
        return {FAULT_DIR_VARIABLE: str(self.directory)}

    @property
    def operations(self) -> int:
        """Number of operations of the counted kinds so far."""
        return _CELLS.unpack_from(self._map)[0]

    def kill_at(self, operation: int, kinds: int = WRITE | SYNC | NAME) -> None:
        """Kill the broker at the ``operation``-th operation of these kinds from now on."""
        with self._threads, _Locked(self._fd):
            _CELLS.pack_into(self._map, 0, 0, operation, kinds)

    def inject(self, *rules: Rule) -> None:
        """Replace the active faults. Without arguments none is active."""
        temporary = self.directory / "rules.new"
        temporary.write_bytes(msgspec.json.encode(rules))
        temporary.rename(self.directory / "rules.json")

    def close(self) -> None:
        """Close the directory, and stop counting and journalling."""
        self._map.close()
        os.close(self._fd)
        if self._pid == os.getpid():
            os.close(self._journal)

    # The broker's side

    def count(self, kind: int) -> int:
        """Count an operation and return its number among all journalled ones. Kills the broker if it is the chosen
        one.
        """
        with self._threads, _Locked(self._fd):
            counted, kill_at, kinds = _CELLS.unpack_from(self._map)
            (number,) = struct.unpack_from("<Q", self._map, 64)
            struct.pack_into("<Q", self._map, 64, number + 1)
            if kind & kinds:
                counted += 1
                _CELLS.pack_into(self._map, 0, counted, kill_at, kinds)
                if counted == kill_at:
                    os.killpg(os.getpgid(0), signal.SIGKILL)
                    time.sleep(60)  # this process is about to be killed, too
        return number + 1

    def journal(self, change: Change) -> None:
        """Write an undo record. The page cache outlives the process that wrote it."""
        data = _encode(change)
        with self._threads:
            if self._pid != os.getpid() or not os.fstat(self._journal).st_nlink:
                if self._pid == os.getpid():
                    os.close(self._journal)
                self._pid = os.getpid()
                path = self.directory / f"journal-{self._pid}"
                self._journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(self._journal, struct.pack("<I", len(data)) + data)

    def fault(self, op: str, path: str) -> Rule | None:
        """The rule for an operation. Raises its error, waits for its delay, and returns the rule."""
        try:
            stamp = os.stat(self.directory / "rules.json").st_mtime_ns
        except FileNotFoundError:
            return None
        if stamp != self._rules_stamp:
            self._rules = tuple(msgspec.json.decode((self.directory / "rules.json").read_bytes(), type=list[Rule]))
            self._rules_stamp = stamp  # last, because other threads compare it
        for rule in self._rules:
            if rule.op == op and rule.path in path:
                if rule.delay_ms:
                    time.sleep(rule.delay_ms / 1000)
                if rule.error:
                    raise OSError(rule.error, os.strerror(rule.error), path)
                return rule
        return None


class _Locked:
    """The lock of the control file: counting is one step over all processes. Threads of one process need their own
    lock.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


class FaultFile(SystemFile):
    """A file whose changes can be undone."""

    __slots__ = ("_faults",)

    def __init__(self, path: str, fd: int, faults: Faults) -> None:
        super().__init__(path, fd)
        self._faults = faults

    def _now_at(self) -> str:
        """The present path of the file, which may have been renamed since it was opened."""
        return os.readlink(f"/proc/self/fd/{self._fd}")

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._before_write(buffers, position)
        return super().pwritev(buffers, position)

    def _before_write(self, buffers: Sequence[Buffer], position: int) -> None:
        path = self._now_at()
        self._faults.fault("write", path)
        number = self._faults.count(WRITE)
        length = sum(map(len, buffers))
        size = os.fstat(self._fd).st_size
        with open(f"/proc/self/fd/{self._fd}", "rb", buffering=0) as seen:  # a direct file cannot read single bytes
            old = os.pread(seen.fileno(), length, position)
        self._faults.journal(Change(number, "write", path, position, old, size, length))

    def write_direct(self, buffers: Sequence[memoryview], position: int) -> int:
        self._before_write(buffers, position)
        return super().write_direct(buffers, position)

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        self._faults.fault("read", self.path)
        return super().preadv(buffers, position)

    def preadv_cached(self, buffers: Sequence[bytearray | memoryview], position: FilePosition) -> int:
        self._faults.fault("read", self.path)
        return super().preadv_cached(buffers, position)

    def sync(self) -> None:
        path = self._now_at()
        rule = self._faults.fault("sync", path)
        if rule is not None and rule.lie:
            return
        number = self._faults.count(SYNC)
        super().sync()
        self._faults.journal(Change(number, "file", path))

    def truncate(self, size_bytes: int) -> None:
        path = self._now_at()
        self._faults.fault("write", path)
        number = self._faults.count(WRITE)
        size = os.fstat(self._fd).st_size
        old = os.pread(self._fd, max(0, size - size_bytes), size_bytes)
        self._faults.journal(Change(number, "truncate", path, size_bytes, old, size))
        super().truncate(size_bytes)


class FaultDisk(SystemDisk):
    """The disk of one process, with undo journal and faults. Forked children share the counting."""

    def __init__(self) -> None:
        super().__init__()
        self._faults = Faults(os.environ[FAULT_DIR_VARIABLE])

    def close(self) -> None:
        """Close the fault directory, for tests that create many disks in one process."""
        self._faults.close()

    def open(self, path: str, *, create: bool = False) -> File:
        self._faults.fault("open", path)
        if create and not os.path.exists(path):
            self._faults.fault("name", path)
            number = self._faults.count(NAME)
            self._faults.journal(Change(number, "create", os.path.realpath(path)))
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return FaultFile(path, os.open(path, flags, 0o640), self._faults)

    def open_direct(self, path: str) -> File:
        self._faults.fault("open", path)
        return FaultFile(path, os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC), self._faults)

    def make_directory(self, path: str) -> bool:
        if os.path.isdir(path):
            return False
        self._faults.fault("name", path)
        number = self._faults.count(NAME)
        self._faults.journal(Change(number, "mkdir", os.path.realpath(path)))
        return super().make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._faults.fault("name", path)
        number = self._faults.count(NAME)
        super().remove_directory(path)
        self._faults.journal(Change(number, "rmdir", os.path.realpath(path)))

    def rename(self, source: str, target: str) -> None:
        self._faults.fault("name", target)
        number = self._faults.count(NAME)
        source, target = os.path.realpath(source), os.path.realpath(target)
        old = Path(target).read_bytes() if os.path.isfile(target) else None
        size = -1 if old is None else len(old)
        self._faults.journal(Change(number, "rename", source, 0, old or b"", size, 0, target))
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._faults.fault("name", path)
        number = self._faults.count(NAME)
        path = os.path.realpath(path)
        self._faults.journal(Change(number, "unlink", path, 0, Path(path).read_bytes()))
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self._faults.fault("sync", path)
        number = self._faults.count(SYNC)
        super().sync_directory(path)
        self._faults.journal(Change(number, "directory", os.path.realpath(path)))

    def sync_all(self, path: str) -> None:
        self._faults.fault("sync", path)
        number = self._faults.count(SYNC)
        super().sync_all(path)
        self._faults.journal(Change(number, "all", ""))

    def free_bytes(self, path: str) -> int:
        try:
            self._faults.fault("free", path)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return 0
        return super().free_bytes(path)


def kill_at_send(node: object) -> None:
    """A shard hook (``internal.shard.hook``): network sends of this shard count as operations."""
    _ = node
    from millstream.net.connection import Connection

    faults = Faults(os.environ[FAULT_DIR_VARIABLE])
    send: Callable[[Any], None] = Connection._send  # pyright: ignore[reportPrivateUsage]

    def counted(connection: Any) -> None:
        if connection.responses.outbox.queued_bytes:
            faults.count(SEND)
        send(connection)

    Connection._send = counted  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


# -- after the crash ---------------------------------------------------------------------------------------------------


def apply_crash(directory: str | os.PathLike[str], rng: random.Random, *, torn: bool = True) -> int:
    """Undo the changes that were not durable when the broker died, and return their number. The journals are emptied.

    All processes of the broker must have ended.
    """
    changes: list[Change] = []
    for journal in Path(directory).glob("journal-*"):
        changes += _read(journal.read_bytes())
        journal.unlink()
    changes.sort(key=lambda change: change.number)
    undone = _not_durable(changes, rng, torn=torn)
    lost = {change.number for change in undone}
    names = _Names()
    for change in reversed(changes):
        if change.number in lost:
            _undo(change, names, rng, torn=torn)
        elif change.kind == "rename":
            names.moved(change.path, change.target)
        elif change.kind in ("unlink", "rmdir"):
            names.moved(change.path, None)
    return len(undone)


def _read(data: bytes) -> list[Change]:
    """The whole records of a journal. The last one may be truncated; its change then never happened."""
    found: list[Change] = []
    position = 0
    while position + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, position)
        record = data[position + 4 : position + 4 + size]
        if len(record) < size:
            break
        found.append(_decode(record))
        position += 4 + size
    return found


def _not_durable(changes: list[Change], rng: random.Random, *, torn: bool) -> list[Change]:
    """The changes that no later sync covered. With ``torn`` some prefix of each directory's changes stays."""
    files: dict[str, int] = {}
    directories: dict[str, int] = {}
    everything = 0
    lost: list[Change] = []
    for change in reversed(changes):
        match change.kind:
            case "file":
                files.setdefault(change.path, change.number)
            case "directory":
                directories.setdefault(change.path, change.number)
            case "all":
                everything = max(everything, change.number)
            case "write" | "truncate":
                if change.number > max(everything, files.get(change.path, 0)):
                    lost.append(change)
            case _:
                where = os.path.dirname(change.target or change.path)
                if change.number > max(everything, directories.get(where, 0)):
                    lost.append(change)
                # Before this change the name meant another file, or none, so its later syncs do not cover that one.
                synced = files.pop(change.target, 0)
                files.pop(change.path, 0)
                if synced:  # under its later name, with what was written under the earlier one
                    files[change.path] = synced
    if not torn:
        return lost
    kept_until: dict[str, int] = {}
    for change in lost:
        if change.kind not in ("write", "truncate"):
            where = os.path.dirname(change.target or change.path)
            if where not in kept_until:
                kept_until[where] = rng.choice([0, change.number, rng.randint(0, change.number)])
    return [
        change
        for change in lost
        if change.kind in ("write", "truncate")
        or change.number > kept_until[os.path.dirname(change.target or change.path)]
    ]


class _Names:
    """The present names of files, followed backwards in time."""

    def __init__(self) -> None:
        self._moves: list[tuple[str, str | None]] = []

    def moved(self, source: str, target: str | None) -> None:
        """Record a rename, or a removal (``target`` is None)."""
        self._moves.append((source, target))

    def now(self, path: str) -> str | None:
        """The present path of a file that was called ``path``; None if it was removed."""
        for source, target in reversed(self._moves):
            if path == source or path.startswith(source + "/"):
                if target is None:
                    return None
                path = target + path[len(source) :]
            elif path == target:
                return None
        return path


def _undo(change: Change, names: _Names, rng: random.Random, *, torn: bool) -> None:
    path = names.now(change.path)
    if path is None:
        return
    try:
        match change.kind:
            case "write":
                _unwrite(path, change, rng, torn=torn)
            case "truncate":
                with open(path, "r+b") as file:
                    file.truncate(change.size)
                    os.pwrite(file.fileno(), change.data, change.position)
            case "create":
                os.unlink(path)
            case "mkdir":
                shutil.rmtree(path)
            case "rmdir":
                os.mkdir(path)
            case "rename":
                os.rename(change.target, path)
                if change.size >= 0:
                    Path(change.target).write_bytes(change.data)
            case _:
                Path(path).write_bytes(change.data)
    except FileNotFoundError:
        # The kill came between the record and the change, or the file was in an undone directory.
        return


def _unwrite(path: str, change: Change, rng: random.Random, *, torn: bool) -> None:
    """Restore the former bytes, except in sectors that reached the disk by themselves."""
    end = change.position + change.length
    keep_share = rng.random() if torn and rng.random() < 0.5 else 0.0
    with open(path, "r+b") as file:
        now = os.fstat(file.fileno()).st_size
        if now < change.position:
            return  # the write never happened
        size = max(change.size, change.position) if keep_share else change.size
        for start in range(change.position - change.position % SECTOR_BYTES, end, SECTOR_BYTES):
            first, stop = max(start, change.position), min(start + SECTOR_BYTES, end)
            if keep_share and rng.random() < keep_share:
                size = max(size, min(stop, now))
                continue
            old = change.data[first - change.position : stop - change.position]
            old += bytes(stop - first - len(old))
            os.pwrite(file.fileno(), old, first)
        file.truncate(max(size, change.size))
