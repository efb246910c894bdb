"""The seam for files, with chunks in the place of segments in the directories of event topics.

::

    <topic>-<uuid>/00000000000000000000.log     what the log says
                  /chunk-000000.meta .data .desc .idx .crc     what is on the disk

In a directory whose name ends with a partition's UUID, a segment's name means the chunk whose sidecar has that base
offset; opening it gives a file that is a ``ChunkSegment``. Every other name and directory is passed on. A new chunk has
the number after that of the last one, as Mofka wants it.

One process writes a directory at a time. What this object remembers of a chunk is dropped in a forked process, and read
again when the sidecar is not as long as it was.

Descriptors are forgotten after the names are removed, never before: a checkpoint that syncs the chunk in between would
open a file that is about to have no name, and the next chunk of that number would be written into it. The removal of a
chunk that an error of the disk ends can be repeated, and continues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeGuard

from millstream.errors import Corruption
from millstream.format.events.chunk import (
    SIDECAR_SUFFIX,
    SUFFIXES,
    ChunkEnds,
    chunk_name,
    parse_chunk_name,
)
from millstream.format.events.sidecar import SIDECAR_HEADER_BYTES, SidecarHeader
from millstream.format.names import STAGED_SUFFIX, parse_segment, segment_name
from millstream.model.events import ChunkId
from millstream.model.quantities import BytePosition, Offset
from millstream.storage.chunks.chunk_segment import CUT_ORDER, ChunkSegment, read_header
from millstream.storage.chunks.open_files import ChunkFileCache
from millstream.storage.disk import read_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.storage.disk import Buffer, Disk, File

_PARTITION: Final = re.compile(
    r".+-([0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})(?:\.[0-9]+"
    + re.escape(STAGED_SUFFIX)
    + ")?"
)
_OPEN_FILES_MAX: Final = 512
_SEGMENTS_MAX: Final = 256
"""Chunks whose batches are remembered, 16 bytes a batch."""


def holds_chunks(directory: str) -> bool:
    """Whether a directory is one of a partition of an event topic, by its name, or where such a log is received."""
    return _PARTITION.fullmatch(os.path.basename(directory)) is not None


def _owner(directory: str) -> bytes:
    """The UUID of the partition whose directory this is."""
    found = _PARTITION.fullmatch(os.path.basename(directory))
    assert found is not None, f"{directory} holds no chunks"
    return uuid.UUID(found[1]).bytes


def is_chunk_disk(disk: Disk) -> TypeGuard[ChunkDisk]:
    """Whether a disk has chunks in the place of segments."""
    return isinstance(disk, ChunkDisk)


class ChunkDisk:
    """A ``Disk`` over another one. Safe for threads."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._files = ChunkFileCache(self._disk, _OPEN_FILES_MAX)
        self._numbers: dict[str, dict[Offset, ChunkId]] = {}
        self._segments: OrderedDict[str, ChunkSegment] = OrderedDict()
        self._removing: dict[str, str] = {}
        """Paths of segments whose removal is not complete, and the stems of their chunks."""

    @property
    def files(self) -> ChunkFileCache:
        """The descriptors of chunk files."""
        return self._files

    # -- segments ------------------------------------------------------------------------------------------------------

    def segment(self, path: str, *, create: bool = False) -> ChunkSegment:
        """The chunk that a segment's path means, made if it is missing and ``create`` is set.

        Raises:
            FileNotFoundError: it does not exist.
            Corruption: its sidecar is damaged at the front.
        """
        with self._lock:
            if self._pid != os.getpid():
                self._begin()
            one = self._segments.get(path)
            if one is not None and (one.users or one.has_tail or self._is_as_known(one)):
                self._segments.move_to_end(path)
                return one
            directory, name = os.path.split(path)
            parsed = parse_segment(name)
            assert parsed is not None, f"{path} is no segment"
            base = Offset(parsed[0])
            try:
                one = self._load(directory, base)
            except FileNotFoundError:
                if not create:
                    raise
                one = self._make(directory, base)
            self._segments[path] = one
            self._segments.move_to_end(path)
            if len(self._segments) > _SEGMENTS_MAX:
                self._drop_oldest(path)
            return one

    def place(self, path: str) -> tuple[ChunkId, ChunkEnds]:
        """Number of the chunk that a segment's path means, and how far its files are written.

        Raises:
            FileNotFoundError: it does not exist.
        """
        one = self.segment(path)
        return one.chunk.id, one.chunk.ends

    def next_number(self, directory: str) -> ChunkId:
        """The number of the next chunk in a directory."""
        with self._lock:
            return ChunkId(max(self._scan(directory).values(), default=-1) + 1)

    def check_sidecars(self, directory: str) -> None:
        """Check the chunks of a closed log after recovery: what a crash left of events that were not durable was
        removed, so a sidecar with bytes after its last valid entry is damaged.

        Raises:
            Corruption: with the file.
        """
        with self._lock:
            known = self._scan(directory)
            for name in self._names(directory):
                number = parse_chunk_name(name)
                if number is None or not name.endswith(SIDECAR_SUFFIX) or number in known.values():
                    continue
                if self._disk.size(f"{directory}/{name}") > SIDECAR_HEADER_BYTES:
                    raise Corruption(f"{directory}/{name}: no sidecar header")
        for base in known:
            one = self.segment(f"{directory}/{segment_name(base)}")
            if one.sidecar_bytes > one.chunk.sidecar_end:
                path, end = one.chunk.path + SIDECAR_SUFFIX, one.chunk.sidecar_end
                raise Corruption(f"{path}: no sound entry at byte {end}, after event {one.chunk.next_offset - 1}")

    def sweep(self, directory: str) -> None:
        """Remove files of chunks that were being made, or being removed, when a crash came."""
        with self._lock:
            known = set(self._scan(directory).values())
            for name in self._names(directory):
                number = parse_chunk_name(name)
                if number is not None and number not in known:
                    self._disk.unlink(f"{directory}/{name}")

    def _is_as_known(self, one: ChunkSegment) -> bool:
        try:
            return self._disk.size(one.chunk.path + SIDECAR_SUFFIX) == one.sidecar_bytes
        except FileNotFoundError:
            return False

    def _load(self, directory: str, base: Offset) -> ChunkSegment:
        """Load the chunk with this base. The number that it had may be that of another one, or of none: another process
        has put other files in the directory.
        """
        number = self._numbers.get(directory, {}).get(base)
        if number is not None:
            with contextlib.suppress(FileNotFoundError):
                one = self._loaded(directory, number)
                if one.chunk.base_offset == base:
                    return one
        number = self._scan(directory).get(base)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{directory}/{segment_name(base)}")
        return self._loaded(directory, number)

    def _loaded(self, directory: str, number: ChunkId) -> ChunkSegment:
        return ChunkSegment.load(self._disk, self._files, f"{directory}/{chunk_name(number, '')}", number)

    def _make(self, directory: str, base: Offset) -> ChunkSegment:
        number = self.next_number(directory)
        stem = f"{directory}/{chunk_name(number, '')}"
        one = ChunkSegment.make(self._files, stem, SidecarHeader(number, base, _owner(directory)))
        self._numbers.setdefault(directory, {})[base] = number
        return one

    def _scan(self, directory: str) -> dict[Offset, ChunkId]:
        """The chunks of a directory by base offset, as their sidecars say."""
        found: dict[Offset, ChunkId] = {}
        for name in self._names(directory):
            number = parse_chunk_name(name)
            if number is None or not name.endswith(SIDECAR_SUFFIX):
                continue
            path = f"{directory}/{name}"
            file = self._disk.open(path)
            try:
                header = read_header(read_at(file, 0, SIDECAR_HEADER_BYTES), path.removesuffix(SIDECAR_SUFFIX))
            except FileNotFoundError:
                continue
            except Corruption as error:
                raise Corruption(f"{path}: {error.message}") from error
            finally:
                file.close()
            if header.chunk != number or header.partition_uuid != _owner(directory):
                raise Corruption(f"{path} belongs to another chunk or partition")
            found[header.base_offset] = number
        self._numbers[directory] = found
        return found

    def _names(self, directory: str) -> list[str]:
        try:
            return self._disk.list(directory)
        except FileNotFoundError:
            return []

    def _drop_oldest(self, newest: str) -> None:
        for path, one in self._segments.items():
            if not one.users and not one.has_tail and path != newest:
                del self._segments[path]
                return

    def forget(self, directory: str) -> None:
        """A directory was removed or renamed, or its files were replaced."""
        with self._lock:
            self._numbers.pop(directory, None)
            for known in (self._segments, self._removing):
                for path in [path for path in known if os.path.dirname(path) == directory]:
                    del known[path]
            self._files.forget_directory(directory)

    def close_segment(self, path: str) -> None:
        """Close the files of a segment without readers. It may be opened again."""
        with self._lock:
            one = self._segments.pop(path, None)
            if one is not None:
                for suffix in SUFFIXES:
                    self._files.forget(one.chunk.path + suffix)

    # -- Disk ----------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file; a segment of an event topic is a chunk."""
        if not _is_segment(path):
            return self._disk.open(path, create=create)
        with self._lock:
            one = self.segment(path, create=create)
            one.users += 1
        return _ChunkFile(self, one, path)

    def open_direct(self, path: str) -> File:
        """See ``Disk``. No chunk is opened like this."""
        return self._disk.open_direct(path)

    def size(self, path: str) -> int:
        """Size in bytes; of a segment of an event topic the size of its stream of batches."""
        return self.segment(path).size_bytes if _is_segment(path) else self._disk.size(path)

    def list(self, directory: str) -> list[str]:
        """Names in a directory; chunks as their files, and as the segments that they are once their log is whole."""
        names = self._disk.list(directory)
        if not holds_chunks(directory) or directory.endswith(STAGED_SUFFIX):
            return names
        with self._lock:
            return [*names, *map(segment_name, self._scan(directory))]

    def make_directory(self, path: str) -> bool:
        """See ``Disk``."""
        return self._disk.make_directory(path)

    def remove_directory(self, path: str) -> None:
        """See ``Disk``."""
        with self._lock:
            self._disk.remove_directory(path)
            if holds_chunks(path):
                self.forget(path)

    def rename(self, source: str, target: str) -> None:
        """See ``Disk``. A segment of an event topic keeps its name."""
        if _is_segment(source) or _is_segment(target):
            raise OSError(errno.EINVAL, "a chunk is not renamed", source)
        with self._lock:
            self._disk.rename(source, target)
            for one in (source, target):
                if holds_chunks(one):
                    self.forget(one)

    def unlink(self, path: str) -> None:
        """Remove a file; of a chunk the sidecar first: without it the other files are not a chunk."""
        if not _is_segment(path):
            self._disk.unlink(path)
            return
        with self._lock:
            if path not in self._removing:
                self._removing[path] = self.segment(path).chunk.path
            stem = self._removing[path]
            self._segments.pop(path, None)
            self._numbers.pop(os.path.dirname(path), None)
            for suffix in CUT_ORDER:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(stem + suffix)
                self._files.forget(stem + suffix)
            del self._removing[path]

    def sync_directory(self, path: str) -> None:
        """See ``Disk``."""
        self._disk.sync_directory(path)

    def watch(self, path: str) -> None:
        """See ``Disk``."""
        self._disk.watch(path)

    def sync_all(self, path: str) -> None:
        """See ``Disk``."""
        self._disk.sync_all(path)

    def free_bytes(self, path: str) -> int:
        """See ``Disk``."""
        return self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        """See ``Disk``."""
        return self._disk.total_bytes(path)


class _ChunkFile:
    """A handle of a chunk as a ``File``."""

    __slots__ = ("_closed", "_disk", "_segment", "path")

    def __init__(self, disk: ChunkDisk, segment: ChunkSegment, path: str) -> None:
        self._disk = disk
        self._segment = segment
        self._closed = False
        self.path = path

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._segment.write(buffers, BytePosition(position))

    def write_direct(self, buffers: Sequence[memoryview], position: int) -> int:
        """The four files of a chunk have no common blocks: through the page cache, like ``pwritev``."""
        return self._segment.write(buffers, BytePosition(position))

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        return self._segment.read_into(buffers, BytePosition(position))

    def preadv_cached(self, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        """Always ``BlockingIOError``: a batch is put together from four files."""
        raise BlockingIOError(errno.EAGAIN, f"{len(buffers)} buffers of byte {position} of a chunk", self.path)

    def sync(self) -> None:
        self._segment.sync()

    def size(self) -> int:
        return self._segment.size_bytes

    def truncate(self, size_bytes: int) -> None:
        self._segment.truncate(size_bytes)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._segment.users -= 1


def _is_segment(path: str) -> bool:
    directory, name = os.path.split(path)
    return parse_segment(name) is not None and holds_chunks(directory)
