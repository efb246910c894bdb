"""Where the blocks of a cache are: slots of one size, in one file or in memory.

A slot of a file starts with a page that says whose block it has; the block follows. A block that is larger than a slot,
because its batches are, takes several slots, with a piece in each (`slots_of`). A reader of a slot that is being
filled gets a block that does not match its checksum, or None. Slots are numbers from 0 on and mean nothing after a
restart.

**Direct I/O.** Blocks are written past the page cache, which is worth more to the shard, unless ``io`` is
``buffered`` or the file system cannot. They are read through the page cache if ``io`` is ``buffered``, or with ``auto``
if the file is smaller than half of the memory that is free, since a block is read again within seconds.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import threading
from typing import TYPE_CHECKING, Final, Protocol

from millstream.errors import Corruption, Rejected

if TYPE_CHECKING:
    from millstream.format.manifest import ArchiveId
    from millstream.model.quantities import Offset

PAGE_BYTES: Final = 4096
SLOT_BYTES: Final = 320 * PAGE_BYTES
"""1.25 MiB: a block (`format.archive.ends_before`), and a page in front."""

PIECE_BYTES: Final = SLOT_BYTES - PAGE_BYTES
"""Of a block, in one slot."""

_HEADER: Final = struct.Struct("<8s16sIqI")
"""magic, topic id, partition, base offset, length"""

_MAGIC: Final = b"MSHOT\r\n\x01"
_PUNCH_HOLE: Final = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def slots_of(size_bytes: int) -> int:
    """Slots that a block of this size takes."""
    return max(1, -(-size_bytes // PIECE_BYTES))


class Slots(Protocol):
    """Where the blocks of a cache are."""

    def read(self, slot: int, owner: ArchiveId, base_offset: Offset, size_bytes: int) -> memoryview:
        """The piece of a block in a slot, which has this size. Raises Corruption if the slot holds anything else,
        OSError.
        """
        ...

    def write(self, slot: int, owner: ArchiveId, base_offset: Offset, piece: memoryview) -> None:
        """Fill a slot with at most `PIECE_BYTES`. Raises OSError. One thread at a time."""
        ...

    def free(self, slot: int) -> None:
        """Give back what a slot takes. Raises OSError."""
        ...

    def free_share(self) -> float:
        """Share of the space around it that is free. Raises OSError."""
        ...

    def close(self) -> None:
        """Give everything up."""
        ...


class MemorySlots:
    """Blocks in memory of this process."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[ArchiveId, Offset, memoryview]] = {}

    def read(self, slot: int, owner: ArchiveId, base_offset: Offset, size_bytes: int) -> memoryview:
        found = self._blocks.get(slot)
        if found is None or (*found[:2], len(found[2])) != (owner, base_offset, size_bytes):
            raise Corruption(f"slot {slot} of the warm cache holds another block")
        return found[2]

    def write(self, slot: int, owner: ArchiveId, base_offset: Offset, piece: memoryview) -> None:
        self._blocks[slot] = (owner, base_offset, piece)

    def free(self, slot: int) -> None:
        self._blocks.pop(slot, None)

    def free_share(self) -> float:
        return 1.0

    def close(self) -> None:
        self._blocks.clear()


class FileSlots:
    """Blocks in one file of a directory that belongs to the broker.

    The directory is absolute, is no symbolic link, belongs to the broker's user, and no other user may enter it. Raises
    Rejected or OSError if it cannot be used.
    """

    def __init__(self, directory: str, name: str, io: str = "auto", size_bytes: int = 0) -> None:
        """``size_bytes`` is what the file may grow to, for the choice of ``auto``."""
        check_directory(directory)
        path = f"{directory}/{name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno == errno.EWOULDBLOCK:
                raise Rejected(f"cache.path: {path} is in use by another broker") from None
            raise
        self._direct_fd = -1 if io == "buffered" else _open_direct(path)
        self.writes_direct = self._direct_fd >= 0
        self.reads_direct = self.writes_direct and (io == "direct" or size_bytes > _free_memory_bytes() // 2)
        self._staging = mmap.mmap(-1, SLOT_BYTES)  # direct I/O wants memory at page boundaries
        self._lock = threading.Lock()

    def read(self, slot: int, owner: ArchiveId, base_offset: Offset, size_bytes: int) -> memoryview:
        data = self._read(slot * SLOT_BYTES, -(-(PAGE_BYTES + size_bytes) // PAGE_BYTES) * PAGE_BYTES)
        if len(data) >= _HEADER.size:
            magic, topic, partition, base, length = _HEADER.unpack_from(data)
            block = data[PAGE_BYTES : PAGE_BYTES + length]
            name = (owner.topic_id.bytes, owner.partition_index, base_offset, size_bytes)
            if magic == _MAGIC and (topic, partition, base, length) == name and len(block) == length:
                return block
        raise Corruption(f"slot {slot} of the warm cache does not hold offset {base_offset}")

    def _read(self, position: int, length: int) -> memoryview:
        """What is there of whole pages."""
        if not self.reads_direct:
            return memoryview(os.pread(self._fd, length, position))
        buffer = mmap.mmap(-1, length)
        return memoryview(buffer)[: os.preadv(self._direct_fd, [buffer], position)]

    def write(self, slot: int, owner: ArchiveId, base_offset: Offset, piece: memoryview) -> None:
        head = _HEADER.pack(_MAGIC, owner.topic_id.bytes, owner.partition_index, base_offset, len(piece))
        end = PAGE_BYTES + len(piece)
        with self._lock:
            self._staging[: len(head)] = head
            self._staging[PAGE_BYTES:end] = piece
            padded = -(-end // PAGE_BYTES) * PAGE_BYTES
            with memoryview(self._staging) as whole:
                descriptor = self._direct_fd if self.writes_direct else self._fd
                written = os.pwritev(descriptor, [whole[:padded]], slot * SLOT_BYTES)
        if written != padded:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def free(self, slot: int) -> None:
        if _libc.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_long(slot * SLOT_BYTES), ctypes.c_long(SLOT_BYTES)):
            number = ctypes.get_errno()
            if number != errno.EOPNOTSUPP:
                raise OSError(number, os.strerror(number))

    def free_share(self) -> float:
        space = os.fstatvfs(self._fd)
        return space.f_bavail / max(1, space.f_blocks)

    def close(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
        if self._direct_fd >= 0:
            os.close(self._direct_fd)


_libc = ctypes.CDLL(None, use_errno=True)


def _open_direct(path: str) -> int:
    """A descriptor that goes past the page cache; -1 where the file system has none."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECT)
    except OSError:
        return -1


def _free_memory_bytes() -> int:
    """Memory that is free or could be freed, as the kernel estimates it; 0 if it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def check_directory(directory: str) -> None:
    """Make the directory. Raises Rejected or OSError if it is not for the broker's user alone."""
    if not os.path.isabs(directory):
        raise Rejected(f"cache.path: {directory!r} is no absolute directory")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Rejected(
            f"cache.path: {directory} must be a directory of the broker's user with mode 0700, and no symbolic link"
        )
