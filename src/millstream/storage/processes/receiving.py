"""The worker's part in receiving a log from another replica: what arrives goes into files beside the log.

A log is received piece by piece, one command at a time, so its commands may run on any thread. A full disk, a damaged
batch and a write that fails are answers: the shard gives the attempt up and its log is as it was. After a restart
``resume`` finds what was received before.
"""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from millstream.errors import Corruption
from millstream.format.epochs import StoredVote, decode_log_state
from millstream.model.quantities import Offset
from millstream.storage.chunks import is_chunk_disk
from millstream.storage.disk import exists
from millstream.storage.messages.commands import Done
from millstream.storage.messages.receiving import Adopt, Resume, Resumed, Stage, Staged, StageEnd
from millstream.storage.no_room import once_there_is_room
from millstream.storage.processes.boundary import failed
from millstream.storage.segments.files import remove_deleted
from millstream.storage.segments.incoming import IncomingLog, put_in_place
from millstream.storage.segments.received import find_received

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.events.chunk import ChunkLimits
    from millstream.storage.disk import Disk
    from millstream.storage.messages.commands import Reply
    from millstream.storage.segments.files import SegmentFiles


class Receiving:
    """The worker's state of the logs that one shard receives: files being written, by directory."""

    def __init__(self, disk: Disk, files: SegmentFiles, arena: memoryview, wait: Callable[[float], object]) -> None:
        self._disk = disk
        self._files = files
        self._arena = arena
        self._wait = wait
        self._lock = threading.Lock()
        self._incoming: dict[str, IncomingLog] = {}
        """The log being received, by its directory."""

    def stage(self, command: Stage) -> Reply:
        """Write the next batches of a log."""
        incoming: IncomingLog | None = None
        try:
            incoming = self._of(command)
            spans = command.spans
            views = [self._arena[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)]
            incoming.add(views, command.now_ms)
        except Corruption as fault:
            return self._given_up(command, 0, fault.message)
        except OSError as error:
            return self._given_up(command, error.errno or errno.EIO, "")
        return Staged(command.id, 0, incoming.end_offset, "")

    def resume(self, command: Resume) -> Reply:
        """Continue the newest log that was received before the last restart. Unreadable directories are skipped."""
        asked = command.stage
        best, place = None, ""
        for directory in command.directories:
            try:
                found = find_received(self._disk, directory, asked.index_interval, asked.now_ms)
            except OSError:
                continue
            if found is None or found.generation < asked.generation:
                continue  # received when the log's files had lower generations
            if best is None or found.growing.end_offset > best.growing.end_offset:
                best, place = found, directory
        if best is None:
            return Resumed(asked.id, "")
        try:
            incoming = IncomingLog(
                self._disk, place, best.start, best.generation, asked.segment_bytes, asked.index_interval, None, best
            )
        except OSError:
            return Resumed(asked.id, "")
        with self._lock:
            before = self._incoming.get(place)
            self._incoming[place] = incoming
        if before is not None:
            before.close()
        end = Offset(best.growing.end_offset)
        return Resumed(asked.id, place, best.start, end, best.last_epoch, best.created_ms)

    def stage_end(self, command: StageEnd) -> Reply:
        """Complete the files of a log."""
        try:
            incoming = self._of(command.stage)
            incoming.finish(command.end_offset, decode_log_state(command.state), command.producers)
            if command.place and command.place != command.stage.directory:
                self._move(command.stage.directory, command.place)
        except Corruption as fault:
            return self._given_up(command.stage, 0, fault.message)
        except OSError as error:
            return self._given_up(command.stage, error.errno or errno.EIO, "")
        with self._lock:
            self._incoming.pop(command.stage.directory, None)
        return Staged(command.stage.id, 0, command.end_offset, "")

    def _move(self, directory: str, place: str) -> None:
        """Rename the directory of a complete log; the new name has its end as a Raft position. Raises OSError."""
        if exists(self._disk, place):
            remove_deleted(self._disk, place)  # left by an earlier attempt
        self._disk.rename(directory, place)
        self._disk.sync_directory(os.path.dirname(place))

    def adopt(self, command: Adopt) -> Reply:
        """Put a log that was received in its place."""
        if not exists(self._disk, command.staged):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command.staged)
        vote = StoredVote(command.term, command.voted_for)
        put = partial(put_in_place, self._disk, command.directory, command.staged, vote)
        swap = partial(self._files.swap_directory, command.directory, command.staged, put)
        try:
            once_there_is_room(swap, f"{command.staged} could not be put in its place", self._wait)
        except OSError as error:
            return failed(error, f"{command.staged} could not be put in its place")
        return Done(command.id)

    def _of(self, command: Stage) -> IncomingLog:
        with self._lock:
            incoming = self._incoming.get(command.directory)
        if incoming is None or command.first:
            if incoming is not None:
                incoming.close()
            incoming = IncomingLog(
                self._disk,
                command.directory,
                command.start,
                command.generation,
                command.segment_bytes,
                command.index_interval,
                None if command.chunk_limits is None else partial(self._is_full, command.chunk_limits),
            )
            with self._lock:
                self._incoming[command.directory] = incoming
        return incoming

    def _is_full(self, limits: ChunkLimits, path: str) -> bool:
        """Whether the chunk at a segment's path takes no more batches."""
        assert is_chunk_disk(self._disk), "an event topic needs a disk that keeps chunks"
        return limits.full(self._disk.place(path)[1])

    def _given_up(self, command: Stage, code: int, fault: str) -> Reply:
        with self._lock:
            incoming = self._incoming.pop(command.directory, None)
        if incoming is not None:
            incoming.close()
        return Staged(command.id, code, -1, fault)
