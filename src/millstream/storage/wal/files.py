"""Which file of the write-ahead log the next frame goes to: files go round, and none is used again before it is free.

A file is *current*, *used* (it holds frames that are still needed), or *free*. New ones are made by the worker,
zero-filled, one ahead of the need, until there are `limit`. It takes its time for one (`storage.throttle`) until the
current file is half full, or a frame waits for it. `release` frees those of which every frame is below the
number given; the caller has seen to it that the frames are void durably: the segments are synced and the ``state``
file says so.

Each use of a file has a generation of its own. Its upper half rises with every use; the lower half is drawn at
random, so that no payload can be made up to look like a frame of the file that it lies in.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.format.names import wal_name
from millstream.format.wal import FILE_HEADER_BYTES
from millstream.storage.messages.commands import HurryFile, PrepareFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.messages.commands import Command

_SALT_BITS: Final = 32


class WalFiles:
    """The files of one shard's write-ahead log. `number`, `position` and `generation` say where the next frame goes.

    `files` are the numbers of those in `directory`, all of them free. `send` sends a command to the worker; `ready` or
    `refused` follows one that prepares a file.
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
        self._directory = directory
        self._send = send
        self.file_bytes = file_bytes
        self._limit = max(2, limit)
        self._free: deque[int] = deque(sorted(files))
        self._used: deque[tuple[int, int]] = deque()  # (file, last sequence in it), oldest first
        self._known = len(files)
        self._next_number = max(files, default=-1) + 1
        self._preparing = False
        self._hurried = False
        self._no_space = False
        self.number = -1
        self.position = 0
        self.generation = next_generation

    def fits(self, size: int) -> bool:
        """Whether a frame of `size` bytes fits the current file."""
        return self.number >= 0 and self.position + size <= self.file_bytes

    def take(self, next_sequence: int) -> bool:
        """Make the next free file the current one, from frame `next_sequence` on; False when there is none."""
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
        """A frame of `size` bytes has the place at `position`."""
        self.position += size
        if self._preparing and self.position > self.file_bytes // 2:
            self.hurry()

    def _prepare_ahead(self) -> None:
        if not self._free and not self._preparing and not self._no_space and self._known < self._limit:
            self._preparing = True
            self._hurried = False
            path = f"{self._directory}/{wal_name(self._next_number)}"
            self._send(PrepareFile(self._next_number, path, self.file_bytes))

    def prepare_now(self) -> bool:
        """A file is needed: have one made if none is free and there may be one more; whether one is on its way."""
        self._prepare_ahead()
        self.hurry()
        return self._preparing

    def hurry(self) -> None:
        """Have the file that is being made finished without pauses, if there is one."""
        if self._preparing and not self._hurried:
            self._hurried = True
            self._send(HurryFile(self._next_number))

    def ready(self, number: int) -> None:
        """The file that was asked for is there."""
        self._preparing = False
        self._known += 1
        self._next_number = number + 1
        self._free.append(number)

    def refused(self) -> None:
        """It could not be made for want of space: go on with those there are until `try_again`."""
        self._preparing = False
        self._no_space = True

    def try_again(self) -> None:
        """There may be space now."""
        self._no_space = False
        self._prepare_ahead()

    def release(self, needed_sequence: int) -> None:
        """Frames below `needed_sequence` are void: free the files that hold no other."""
        while self._used and self._used[0][1] < needed_sequence:
            self._free.append(self._used.popleft()[0])

    @property
    def used_bytes(self) -> int:
        """Files that hold needed frames, the current one included."""
        return (len(self._used) + (self.number >= 0)) * self.file_bytes

    @property
    def next_generation(self) -> int:
        """A generation above every one that was used."""
        return ((self.generation >> _SALT_BITS) + 1) << _SALT_BITS
