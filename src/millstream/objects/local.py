"""An object store in a directory of this machine, or of a file system that several machines share.

::

    ROOT/<key>          one plain file an object: any tool can read it
    ROOT/.uploads/…     files of uploads in progress
    ROOT/.lock          held (flock) while an object changes

``put`` writes ``.uploads/<unique>`` and syncs file and name. Then, under the lock, it compares the version, renames the
file to its key and syncs the directory. A crash at any point leaves the old object or the new one, and perhaps a file
in ``.uploads``, which is removed when the store is opened after a day. Readers take no lock: a rename is atomic, and an
open file keeps its bytes.

A version is made of inode, size and modification time. The time is set to at least 1 ns after that of the replaced
object, so two successive objects never have the same version, even if the clock jumps.

A failed write or sync of an upload is ``Unavailable``: no object changed. A failure from the rename on is
``OutcomeUnknown``. The caller's next attempt writes a new file, and so trusts no sync that failed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import os
import time
import uuid
from typing import TYPE_CHECKING, Final

from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.model.quantities import TimestampMs
from millstream.objects.errors import Conflict, Denied, NotFound, ShortRead
from millstream.objects.store import ABSENT, ObjectInfo, ObjectKey, Version, check_folder, check_key, check_range
from millstream.objects.url import directory_url
from millstream.storage.disk import FULL, SystemDisk, make_directories, read_at, write_all

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from millstream.model.quantities import FilePosition
    from millstream.objects.store import Buffer
    from millstream.storage.disk import Disk

_UPLOADS: Final = ".uploads"
_LOCK: Final = ".lock"
_ABANDONED_NS: Final = 86_400 * 10**9
"""An upload that has not been written to for a day has no writer: one in progress writes all the time."""

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LocalStore:
    """Objects in the directory ``root`` (absolute), which is created with its parents.

    ``disk`` must be over files of the operating system; tests inject faults through it.
    """

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self._root = root.rstrip("/")
        self._disk = SystemDisk() if disk is None else disk
        self.url = directory_url(self._root)
        with self._errors("the directory could not be made", OutcomeUnknown):
            self._make(f"{self._root}/{_UPLOADS}")
        self._remove_abandoned()

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        check_key(key)
        return self._put(key, parts, expect)

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        check_key(key)
        return self._put(key, parts, None)

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        check_key(key)
        check_range(key, start, end)
        with self._errors(f"{key} could not be read", Unavailable):
            try:
                file = self._disk.open(self._path(key))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFound(f"{self.url} has no object {key}") from None
            try:
                file_bytes = file.size()
                data = read_at(file, start, max(0, min(end, file_bytes) - start))
            finally:
                file.close()
        if len(data) < end - start:
            raise ShortRead(f"{self.url}: the object {key} ends at byte {file_bytes}, before byte {end}")
        return memoryview(data)

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        check_key(key)
        with self._errors(f"{key} could not be examined", Unavailable):
            return self._info(key)

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        check_folder(folder)
        with self._errors(f"{folder or 'the directory'} could not be listed", Unavailable):
            for key in self._keys(folder):
                if key > after and (info := self._info(key)) is not None:
                    yield info

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            check_key(key)
        with self._errors("objects could not be removed", OutcomeUnknown), self._locked():
            for key in keys:
                self._remove(key)

    def close(self) -> None:
        """Nothing is kept open."""

    def _remove_abandoned(self) -> None:
        """Remove what crashed writers have left. Who may only read the store cannot, and has no use for it."""
        directory = f"{self._root}/{_UPLOADS}"
        with contextlib.suppress(OSError):
            for name in self._disk.list(directory):
                path = f"{directory}/{name}"
                if time.time_ns() - os.stat(path).st_mtime_ns > _ABANDONED_NS:
                    self._disk.unlink(path)

    def _put(self, key: ObjectKey, parts: Iterable[Buffer], expect: Version | None) -> Version:
        upload = f"{self._root}/{_UPLOADS}/{uuid.uuid4().hex}"
        try:
            self._write(key, upload, parts)
            with self._errors(f"{key} could not be written", OutcomeUnknown), self._locked():
                return self._publish(upload, key, expect)
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.unlink(upload)  # it may have its key already
            raise

    def _write(self, key: ObjectKey, upload: str, parts: Iterable[Buffer]) -> None:
        """Write and sync the upload. A failure changes no object. Errors of the iterator stay what they are."""
        what = f"{key} could not be uploaded"
        with self._errors(what, Unavailable):
            file = self._disk.open(upload, create=True)
        try:
            position = 0
            for part in parts:
                with self._errors(what, Unavailable):
                    position += write_all(file, [part], position)
            with self._errors(what, Unavailable):
                file.sync()
        finally:
            file.close()
        with self._errors(what, Unavailable):
            # POSIX does not promise that the sync of a rename's target directory covers the creation in another one.
            self._disk.sync_directory(os.path.dirname(upload))

    def _publish(self, upload: str, key: ObjectKey, expect: Version | None) -> Version:
        """Compare, and give the upload its key. The caller holds the lock."""
        present = self._info(key)
        if expect is not None and expect != (ABSENT if present is None else present.version):
            raise Conflict(f"{self.url}: the object {key} {_what_is(present, expect)}")
        path = self._path(key)
        if present is not None:
            modified_ns = os.stat(path).st_mtime_ns
            if os.stat(upload).st_mtime_ns <= modified_ns:
                os.utime(upload, ns=(modified_ns + 1, modified_ns + 1))
        try:
            self._make(os.path.dirname(path))
            self._disk.rename(upload, path)
        except (NotADirectoryError, FileExistsError, IsADirectoryError):
            raise Rejected(f"{self.url}: the key {key} is a folder of another key, or the other way round") from None
        self._disk.sync_directory(os.path.dirname(path))
        info = self._info(key)
        assert info is not None, "the object was renamed to its key under the lock"
        return info.version

    def _remove(self, key: ObjectKey) -> None:
        path = self._path(key)
        try:
            self._disk.unlink(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        # Folders exist only for their objects: an empty one is removed, so that it does not stand in the way of a key.
        folder = os.path.dirname(path)
        while folder != self._root and not self._disk.list(folder):
            self._disk.remove_directory(folder)
            folder = os.path.dirname(folder)
        self._disk.sync_directory(folder)

    def _info(self, key: ObjectKey) -> ObjectInfo | None:
        try:
            state = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not os.path.isfile(self._path(key)):
            return None
        version = Version(f"{state.st_ino:x}-{state.st_size:x}-{state.st_mtime_ns:x}")
        return ObjectInfo(key, state.st_size, version, TimestampMs(state.st_mtime_ns // 1_000_000))

    def _keys(self, folder: str) -> Iterator[ObjectKey]:
        """Keys below the folder in key order. A folder sorts as its name with ``/``, as in the other stores."""
        waiting = [folder]
        while waiting:
            key = heapq.heappop(waiting)
            if key and not key.endswith("/"):
                yield ObjectKey(key)
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for name in self._disk.list(f"{self._root}/{key}".rstrip("/")):
                    if not name.startswith("."):
                        below = key + name
                        heapq.heappush(waiting, below + "/" * os.path.isdir(f"{self._root}/{below}"))

    def _path(self, key: ObjectKey) -> str:
        return f"{self._root}/{key}"

    def _make(self, directory: str) -> None:
        named = make_directories(self._disk, directory)
        try:
            for one in named:
                self._disk.sync_directory(one)
        except OSError:
            # A later attempt would take the names for durable.
            path = directory
            with contextlib.suppress(OSError):
                for _ in named:
                    self._disk.remove_directory(path)
                    path = os.path.dirname(path)
            raise

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """The lock of the directory, for threads and processes alike: each call opens the file for itself."""
        fd = os.open(f"{self._root}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _errors(self, what: str, kind: type[OutcomeUnknown | Unavailable]) -> Generator[None]:
        """Translate the errors of the operating system."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in _FORBIDDEN:
                raise Denied(
                    f"{self.url}: {what}: {reason}. The user of the broker needs read and write permission"
                ) from error
            remedy = ". Free space on its file system" if error.errno in FULL else ""
            raise kind(f"{self.url}: {what}: {reason}{remedy}") from error


def _what_is(present: ObjectInfo | None, expect: Version) -> str:
    if present is None:
        return f"is gone, and version {expect} was expected"
    if expect == ABSENT:
        return "exists already"
    return f"has version {present.version}, and {expect} was expected"
