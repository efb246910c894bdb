"""Where tables are: a directory of this machine, or a place in an object store.

A relative path is relative to the pipeline's file. An address such as ``s3://bucket/path`` goes through
``millstream.objects``, so credentials and endpoint come from the environment and from the files of the cloud's own
tools (``objects.credentials``), on the driver and on every worker. A small file (``write``) appears whole or not at
all: on a disk by a rename, in a store by one request. A large file (``create``) may be used once it is closed. For a
store, a worker keeps it on its own disk and uploads it then.
"""

import functools
import io
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Protocol, cast

from millstream.errors import Rejected, Unavailable
from millstream.model.quantities import FilePosition
from millstream.objects import ABSENT, Conflict, NotFound, ObjectInfo, ObjectKey, ObjectStore, open_store
from millstream.objects.credentials import aws_settings
from millstream.objects.errors import Unsupported
from millstream.pipeline.model import Pipeline

_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*)://")
_FILE: Final = re.compile(r"^file:(//|(?=/))")
_SCHEMES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}
_CHUNK: Final = 8 << 20
_READ_AHEAD: Final = 1 << 20


class Stream(Protocol):
    """A file that is being written. It is complete once it is closed."""

    def write(self, data: Any, /) -> int: ...

    def tell(self) -> int: ...

    def close(self) -> None: ...


class Location:
    """A directory of a disk, or a prefix in a store. Values only: it travels to workers."""

    def __init__(self, address: str) -> None:
        """``address`` is absolute: a path or a URI."""
        self.address = address.rstrip("/")

    def __truediv__(self, name: str) -> "Location":
        return Location(f"{self.address}/{name}")

    @property
    def is_local(self) -> bool:
        return not _ADDRESS.match(self.address)

    @property
    def store(self) -> ObjectStore:
        """The store behind an address.

        Raises:
            Rejected: there are no tables in stores of this kind, or the extra for them is not installed.
        """
        scheme, _, rest = self.address.partition("://")
        if scheme not in _SCHEMES:
            raise Rejected(f"{self.address}: tables are on disks, or at s3://, gs:// and az://, not at {scheme}://")
        return _opened(f"{_SCHEMES[scheme]}://{rest}")

    def make(self) -> None:
        """Create the directory, and those above it; a store has none.

        Raises:
            Unavailable: it cannot be created.
        """
        if not self.is_local:
            return
        try:
            os.makedirs(self.address, exist_ok=True)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise Unavailable(f"the directory {self.address} cannot be made: {reason}") from error

    def remove(self) -> None:
        """Remove a directory with everything in it; nothing happens if it is not there."""
        if not self.is_local:
            self.store.delete([info.key for info in self.store.list()])
        elif os.path.isdir(self.address):
            shutil.rmtree(self.address)

    def files(self, suffix: str) -> list[str]:
        """Sorted names of the directory's own files that end with ``suffix``; empty if there is no directory."""
        if not self.is_local:
            found = (info.key for info in self.store.list())
            return sorted(key for key in found if "/" not in key and key.endswith(suffix))
        try:
            with os.scandir(self.address) as entries:
                return sorted(entry.name for entry in entries if entry.is_file() and entry.name.endswith(suffix))
        except FileNotFoundError:
            return []

    def has(self, name: str) -> bool:
        """Whether a file is there; ``name`` may be a path below this place."""
        if self.is_local:
            return os.path.exists(f"{self.address}/{name}")
        return self.store.head(ObjectKey(name)) is not None

    def read(self, name: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""
        if self.is_local:
            with open(f"{self.address}/{name}", "rb") as file:
                return file.read()
        found = self.store.head(ObjectKey(name))
        if found is None:
            raise FileNotFoundError(f"{self.address}/{name}")
        try:
            return bytes(self.store.get(found.key, FilePosition(0), FilePosition(found.size_bytes)))
        except NotFound as error:
            raise FileNotFoundError(f"{self.address}/{name}") from error

    def open_file(self, name: str) -> BinaryIO:
        """A large file, for reads at any position. Raises FileNotFoundError."""
        if self.is_local:
            return open(f"{self.address}/{name}", "rb")
        found = self.store.head(ObjectKey(name))
        if found is None:
            raise FileNotFoundError(f"{self.address}/{name}")
        return cast("BinaryIO", io.BufferedReader(_Ranges(self.store, found), _READ_AHEAD))

    def remove_file(self, name: str) -> None:
        if self.is_local:
            os.remove(f"{self.address}/{name}")
        else:
            self.store.delete([ObjectKey(name)])

    def write(self, name: str, content: bytes, *, sync: bool = False) -> None:
        """Write a file, whole or not at all; on a disk it outlives a crash only with ``sync``."""
        if not self.is_local:
            self.store.put(ObjectKey(name), [content])
            return
        temporary = f"{self.address}/.new-{os.getpid()}-{name}"
        with open(temporary, "wb") as file:
            file.write(content)
        if sync:
            _sync(temporary)
        os.replace(temporary, f"{self.address}/{name}")
        if sync:
            _sync(self.address)

    def require_conditional_writes(self, what: str) -> None:
        """Check that a store can refuse to overwrite an object (If-None-Match); a disk always can. ``what`` names the
        tables that need that.

        Raises:
            Rejected: the store overwrites.
        """
        if self.is_local:
            return
        key = ObjectKey(f"_millstream/probe-{uuid.uuid4().hex}")
        try:
            for content in (b"1", b"2"):
                self.store.put(key, [content], ABSENT)
        except Conflict:
            return
        except Unsupported as error:
            raise Rejected(_unconditional(self.address, what)) from error
        finally:
            self.store.delete([key])
        raise Rejected(_unconditional(self.address, what))

    def create(self, name: str) -> Stream:
        """Start a large file; ``name`` may be a path below this place."""
        if self.is_local:
            if "/" in name:
                os.makedirs(os.path.dirname(f"{self.address}/{name}"), exist_ok=True)
            return open(f"{self.address}/{name}", "wb")
        return _Upload(self.store, ObjectKey(name))


class _Ranges(io.RawIOBase):
    """An object as a file: a read is a request for a range."""

    def __init__(self, store: ObjectStore, info: ObjectInfo) -> None:
        self._store = store
        self._info = info
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._info.size_bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        end = min(self._at + len(buffer), self._info.size_bytes)
        count = max(0, end - self._at)
        if count:
            buffer[:count] = self._store.get(self._info.key, FilePosition(self._at), FilePosition(end))
        self._at += count
        return count


class _Upload:
    """A file on this machine's disk that becomes an object when it is closed."""

    def __init__(self, store: ObjectStore, key: ObjectKey) -> None:
        self.closed = False
        self._store = store
        self._key = key
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (until it is closed)

    def write(self, data: Any, /) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        """The upload starts when the file is closed."""

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._file.seek(0)
            self._store.put_stream(self._key, self._chunks())
        finally:
            self._file.close()

    def _chunks(self) -> Iterator[bytes]:
        while chunk := self._file.read(_CHUNK):
            yield chunk


def _unconditional(address: str, what: str) -> str:
    return (
        f"{address}: the store writes over an object although that is forbidden in the request (If-None-Match), and "
        f"{what} need that, or two writers undo each other. Take a store with conditional writes, or an Iceberg table, "
        "whose commits go to its catalog"
    )


def store_options(location: Location) -> dict[str, str]:
    """Options that Delta's library does not find by itself: the settings in the files of Amazon's tools, and whether
    the endpoint is without TLS. Keys in these files may be renewed, so call this again for each use.
    """
    if location.is_local:
        return {}
    found: dict[str, str] = {}
    if _SCHEMES.get(location.address.partition("://")[0]) == "s3":
        settings = aws_settings(os.environ)
        found = {f"aws_{name}": value for name, value in settings.items()}
        plain = settings.get("endpoint", "").startswith("http://")
    else:
        plain = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true")
    return {**found, "allow_http": "true"} if plain else found


@functools.lru_cache(maxsize=32)
def _opened(url: str) -> ObjectStore:
    return open_store(url)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def local_path(address: str) -> str:
    """The path in an address of this machine's disk: ``file:///t`` or, as Java writes it, ``file:/t``. Any other
    text stays as it is.
    """
    return _FILE.sub("", address)


def absolute(target: str, directory: str) -> str:
    """A declared path or address, made absolute."""
    target = local_path(target)
    if _ADDRESS.match(target):
        return target.rstrip("/")
    return os.path.normpath(os.path.join(directory, os.path.expanduser(target)))


def state_directory(pipeline: Pipeline, directory: str) -> str:
    """Where a pipeline keeps its checkpoints."""
    if pipeline.state is not None:
        return os.path.join(directory, os.path.expanduser(pipeline.state))
    return os.path.join(directory, ".millstream", pipeline.pipeline)
