"""The files of one write-ahead log: which file takes the next frame, and which files are free again.

A file is *current* (it takes the next frame), *used* (it holds frames that recovery may need), or *free*. Files are
used in turn. The worker prepares new files, filled with zeros: one ahead of the need (``FilePreparation``). It fills a
file at a low rate (``storage.throttle``) until the current file is half full or a frame waits for a file. ``release``
frees the files whose frames are all below a given sequence. Its caller guarantees that those frames are void after a
crash, too: the segments are synced, and the ``state`` file is durable.

Each use of a file has a generation (64 bits). The upper 32 bits rise with every use. The lower 32 bits are random, so
that no producer can craft a payload that recovery takes for a frame of the file.
"""

from __future__ import annotations

import secrets
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from millstream.format.names import wal_name
from millstream.format.wal import FILE_HEADER_BYTES
from millstream.storage.messages.commands import HurryFile, PrepareFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.wal import FrameSequence
    from millstream.storage.messages.commands import Command

_SALT_BITS: Final = 32


class State(Enum):
    """Of the preparation of files."""

    IDLE = auto()
    PREPARING = auto()
    """The worker fills a file at a low rate."""
    HURRIED = auto()
    """The worker fills a file without pauses."""
    REFUSED = auto()
    """The disk had no space for a file; none is requested before ``try_again``."""


class FilePreparation:
    """What the shard has asked the worker for: at most one file at a time, and no more than ``limit`` files in all.

    ``files`` are the numbers of the files that exist. ``send`` sends a command to the worker.
    """

    def __init__(
        self, directory: str, file_bytes: int, limit: int, files: list[int], send: Callable[[Command], None]
    ) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._limit = max(2, limit)
        self._send = send
        self._count = len(files)
        self._next_number = max(files, default=-1) + 1
        self.state = State.IDLE

    @property
    def is_running(self) -> bool:
        """Whether the worker is preparing a file."""
        return self.state in (State.PREPARING, State.HURRIED)

    def request(self) -> None:
        """Request a file, unless one is in preparation, the last was refused, or there are ``limit`` files."""
        if self.state is State.IDLE and self._count < self._limit:
            self.state = State.PREPARING
            path = f"{self._directory}/{wal_name(self._next_number)}"
            self._send(PrepareFile(self._next_number, path, self._file_bytes))

    def hurry(self) -> None:
        """Ask the worker to finish the file in preparation, if there is one, without pauses."""
        if self.state is State.PREPARING:
            self.state = State.HURRIED
            self._send(HurryFile(self._next_number))

    def ready(self) -> None:
        """The worker has prepared the file."""
        self.state = State.IDLE
        self._count += 1
        self._next_number += 1

    def refused(self) -> None:
        """The worker found no disk space for the file."""
        self.state = State.REFUSED

    def try_again(self) -> None:
        """The disk may have space again."""
        if self.state is State.REFUSED:
            self.state = State.IDLE


class WalFiles:
    """The files of one shard's write-ahead log. The next frame goes to byte ``position`` of file ``number``, with
    ``generation``; ``number`` is -1 before the first ``take``.

    ``files`` are the numbers of the files in ``directory``; all of them are free. ``send`` sends a command to the
    worker. The owner calls ``ready`` or ``refused`` when the worker has answered a ``PrepareFile``.
    """

    def __init__(
        self,
        directory: str,
        file_bytes: int,
        limit: int,
        *,
        next_generation: int,
        files: list[int],
        send: Callable[[Command], None],
    ) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self._preparation = FilePreparation(directory, file_bytes, limit, files, send)
        self._free: deque[int] = deque(sorted(files))
        self._used: deque[tuple[int, int]] = deque()  # (file, last sequence in it), oldest first
        self.number = -1
        self.position = 0
        self.generation = next_generation

    def fits(self, size: int) -> bool:
        """Whether a frame of ``size`` bytes fits the current file."""
        return self.number >= 0 and self.position + size <= self.file_bytes

    def take(self, next_sequence: FrameSequence) -> bool:
        """Make the next free file the current one. Its first frame has ``next_sequence``. False: no file is free."""
        if not self._free:
            return False
        if self.number >= 0:
            self._used.append((self.number, next_sequence - 1))
        self.number = self._free.popleft()
        self.position = FILE_HEADER_BYTES
        self.generation = self.next_generation | secrets.randbits(_SALT_BITS)
        self._prepare_ahead()
        return True

    def advance(self, size: int) -> None:
        """Reserve ``size`` bytes at ``position`` for a frame."""
        self.position += size
        if self._preparation.state is State.PREPARING and self.position > self.file_bytes // 2:
            self.hurry()

    def _prepare_ahead(self) -> None:
        if not self._free:
            self._preparation.request()

    def prepare_now(self) -> bool:
        """Request a new file if none is free and there are fewer than ``limit``. Whether one is being prepared."""
        self._prepare_ahead()
        self.hurry()
        return self._preparation.is_running

    def hurry(self) -> None:
        """Ask the worker to finish the file in preparation, if there is one, without pauses."""
        self._preparation.hurry()

    def ready(self, number: int) -> None:
        """The worker has prepared file ``number``: it is free."""
        self._preparation.ready()
        self._free.append(number)

    def refused(self) -> None:
        """The worker found no disk space for a new file. None is requested again before ``try_again``."""
        self._preparation.refused()

    def try_again(self) -> None:
        """The disk may have space again: request a file if one is needed."""
        self._preparation.try_again()
        self._prepare_ahead()

    def release(self, needed_sequence: FrameSequence) -> None:
        """Free the used files whose frames are all below ``needed_sequence`` (exclusive)."""
        while self._used and self._used[0][1] < needed_sequence:
            self._free.append(self._used.popleft()[0])

    @property
    def used_bytes(self) -> int:
        """Bytes of the used files and the current file, at their full size."""
        return (len(self._used) + (self.number >= 0)) * self.file_bytes

    @property
    def next_generation(self) -> int:
        """Smallest generation above all that were used; its lower 32 bits are zero."""
        return ((self.generation >> _SALT_BITS) + 1) << _SALT_BITS
