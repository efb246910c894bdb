"""The worker process of a shard: all file operations that may block, except the write-ahead log.

::

    reactor ◄──►  segments  write, cut, remove, in the order they were sent
            ◄──►  syncs     checkpoints
            ◄──►  chores    preparing WAL files
            ◄──►  batches   producers' batches that have to be opened (inspector.py)
            ◄──►  reads     cold reads, timestamps, logs that another replica sends; three of them, used in turn

Each lane has its own socket and thread, so that a long sync delays no cold read, and no command is passed between
threads. They share an interpreter lock, which matters little: all lanes but one wait in system calls, and that one
(batches) releases the lock while it compresses and every 5 ms. None of them is on the path of a produce to an ordinary
topic or of a fetch at the tail.

Errors are values in the replies. A full disk (ENOSPC, EDQUOT) is an errno that the shard survives. A failed sync, and
any other write error, is ``Failed``, and the shard stops with the reason. A damaged batch is a fault of that read
alone. A change of a log that has to read one of its files, such as the next chunk's, ends that log if it cannot, and so
does one whose file or directory another program has removed, replaced or locked. A removal or a truncation without
space on a full disk is repeated until it succeeds (``no_room``); later commands in its lane wait, because they may
concern the same names. Acknowledgements do not wait. When the shard has ended, so does the worker. An unexpected
exception of a command about one log ends that log (``boundary``), any other the process, and with it the shard.
"""

from __future__ import annotations

import errno
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from millstream.errors import Corruption
from millstream.format.wal import FrameSequence, decode_wal_state
from millstream.helper.serving import serve
from millstream.model.quantities import Offset, ShardId, TimestampMs
from millstream.storage.chunks import is_chunk_disk
from millstream.storage.disk import FULL, is_of_one_log
from millstream.storage.messages.commands import (
    Checkpoint,
    Checkpointed,
    Collect,
    Command,
    Cut,
    Done,
    Feed,
    FetchData,
    Find,
    FindRuns,
    ForgetFiles,
    Found,
    Hurry,
    HurryFile,
    Inspect,
    PrepareFile,
    Read,
    ReadDone,
    Remove,
    Removed,
    RemoveDirectory,
    Reply,
    RunsFound,
    Stop,
    Write,
    Written,
    decode_command,
    encode,
)
from millstream.storage.messages.receiving import Adopt, Resume, Stage, StageEnd
from millstream.storage.no_room import once_there_is_room
from millstream.storage.processes.boundary import broken, failed
from millstream.storage.processes.event_reader import EventReader
from millstream.storage.processes.inspector import Inspector
from millstream.storage.processes.new_wal_files import NewWalFiles
from millstream.storage.processes.receiving import Receiving
from millstream.storage.recovery.set_aside import set_aside
from millstream.storage.segments.broken_logs import BrokenLogs
from millstream.storage.segments.files import SegmentFiles, SyncFailed
from millstream.storage.segments.reads import Fault, Reader
from millstream.storage.wal.state import read_wal_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.helper.channel import HelperChannel
    from millstream.storage.disk import Disk
    from millstream.storage.segments.read_faults import ReadFaults
    from millstream.telemetry.metrics import StatsSlab


class Worker:
    """Executes commands, one call each. It knows no threads and no sockets: tests call it directly, and pass another
    ``wait`` than sleep.
    """

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        arena: memoryview,
        direct_bytes_min: int | None,
        faults: ReadFaults,
        wait: Callable[[float], object] = time.sleep,
        stats: StatsSlab | None = None,
    ) -> None:
        self._disk = disk
        self._wait = wait
        self.files = SegmentFiles(disk, data_dir, arena, direct_bytes_min, faults)
        self.new_wal_files = NewWalFiles(disk, arena, direct_bytes_min)
        self.reader = Reader(self.files, arena)
        inspector = Inspector(arena)
        events = EventReader(disk, arena, stats)
        receiving = Receiving(disk, self.files, arena, wait)
        self._parts: list[Checkpoint] = []
        self._handlers: dict[type[Command], Callable[..., Reply | None]] = {
            Write: self._write,
            Cut: self._cut,
            Remove: self._remove,
            RemoveDirectory: self._remove_directory,
            ForgetFiles: self._forget_files,
            Checkpoint: self._checkpoint,
            Hurry: self._hurry,
            Read: self._read,
            FindRuns: self._find_runs,
            Find: self._find,
            Feed: events.feed,
            FetchData: events.fetch,
            PrepareFile: self.new_wal_files.prepare,
            HurryFile: self.new_wal_files.hurry,
            Inspect: inspector.inspect,
            Collect: inspector.collect,
            Resume: receiving.resume,
            Stage: receiving.stage,
            StageEnd: receiving.stage_end,
            Adopt: receiving.adopt,
        }

    def carry_out(self, command: Command) -> Reply | None:
        """Execute the command. Returns its reply, if it has one now."""
        try:
            return self._handlers[type(command)](command)
        except Exception as error:  # noqa: BLE001 - the boundary
            return broken(command, error)

    def finish(self) -> None:
        """Make the last changes durable, mainly deletions. Raises OSError if that fails."""
        self.files.sync()
        self.files.sync_directories()

    def _write(self, command: Write) -> Reply:
        try:
            return Written(command.id, 0, self.files.write(command))
        except OSError as error:
            if error.errno in FULL and not is_of_one_log(error):
                return Written(command.id, error.errno or 0, 0)
            return failed(error, f"{command.path} could not be written")

    def _cut(self, command: Cut) -> Reply:
        try:
            once_there_is_room(partial(self.files.cut, command), f"{command.path} could not be cut", self._wait)
        except OSError as error:
            return failed(error, f"{command.path} could not be cut")
        self.reader.forget(command.path)
        return Done(command.id)

    def _remove(self, command: Remove) -> Reply:
        try:
            for path in command.paths:
                once_there_is_room(partial(self.files.remove, path), f"{path} could not be removed", self._wait)
                self.reader.forget(path)
        except OSError as error:
            return failed(error, f"{error.filename} could not be removed")
        return Done(command.id)

    def _remove_directory(self, command: RemoveDirectory) -> Reply:
        try:
            self.files.remove_directory(command.directory)
        except OSError as error:
            return Removed(command.id, error.errno or errno.EIO)
        return Removed(command.id, 0)

    def _forget_files(self, command: ForgetFiles) -> Reply:
        for path in self.files.forget_files(command.directory):
            self.reader.forget(path)
        if is_chunk_disk(self._disk):
            self._disk.forget(command.directory)
        return Done(command.id)

    def _checkpoint(self, command: Checkpoint) -> Reply | None:
        self._parts.append(command)
        if not command.last:
            return None
        parts, self._parts = self._parts, []
        if command.throttled:
            self.files.throttle.begin(command.id)
        removed = self.files.removed_directories()
        try:
            return self._make_durable(command, parts)
        finally:
            self.files.throttle.end()
            self.files.forget_removed(removed)

    def _hurry(self, command: Hurry) -> None:
        self.files.throttle.hurry(command.id)

    def _make_durable(self, command: Checkpoint, parts: list[Checkpoint]) -> Reply:
        try:
            self.files.sync()
        except OSError as error:
            what = f"{error.filename or 'segments'} could not be synced"
            return Checkpointed(command.id, error.errno or errno.EIO, synced=False, what=what)
        broken_logs = BrokenLogs()
        try:
            if command.aside and command.state is not None:
                self._set_aside(command.aside, *command.state)
            for part in parts:
                self.files.finish(part, broken_logs)
        except OSError as error:
            full = error.errno in FULL and not isinstance(error, SyncFailed)
            return Checkpointed(
                command.id,
                error.errno or errno.EIO,
                synced=full,
                what=f"{error.filename or 'a directory'} could not be made durable",
            )
        except Corruption as error:  # nothing says what is in the segments: the state that logs of a shard share
            return Checkpointed(command.id, errno.EIO, synced=False, what=error.message)
        return Checkpointed(command.id, 0, synced=True, what="", broken=list(broken_logs.found.items()))

    def _set_aside(self, logs: list[tuple[int, str]], directory: str, state: bytes) -> None:
        before, _ = read_wal_state(self._disk, directory)
        upto = FrameSequence(decode_wal_state(state).next_sequence - 1)
        shard = ShardId(int(os.path.basename(directory)))
        directories = {group: place for group, place in logs if not self.files.is_removed(place)}
        set_aside(self._disk, directory, shard, directories, state=before, upto=upto)

    def _read(self, command: Read) -> Reply:
        try:
            found = self.reader.read(command)
        except (Fault, Corruption) as fault:
            return ReadDone(command.id, 0, 0, 0, str(fault), command.offset)
        except OSError as error:
            return ReadDone(command.id, error.errno or errno.EIO, 0, 0, "", command.offset)
        return ReadDone(command.id, 0, found.size_bytes, found.need_bytes, "", Offset(found.end_offset))

    def _find_runs(self, command: FindRuns) -> Reply:
        index = self.files.index(command.path, command.base_offset)
        return RunsFound(command.id, index.runs(command.offset))

    def _find(self, command: Find) -> Reply:
        try:
            found = self.reader.find(command)
        except (Fault, Corruption) as fault:
            return Found(command.id, 0, Offset(-1), TimestampMs(-1), -1, str(fault))
        except OSError as error:
            return Found(command.id, error.errno or errno.EIO, Offset(-1), TimestampMs(-1), -1, "")
        if found is None:
            return Found(command.id, 0, Offset(-1), TimestampMs(-1), -1, "")
        return Found(command.id, 0, *found, fault="")


def run_worker(worker: Worker, channels: list[HelperChannel]) -> int:
    """The process: one thread per lane, until each got ``Stop`` or the shard has ended.

    The replies of the first lane are gathered: no reply to the first write of several is needed before the last.
    """

    def carry_out(command: Command) -> bytes | None:
        reply = worker.carry_out(command)
        return None if reply is None else encode(reply)

    serve(channels, decode_command, Stop, carry_out, gather_first=True)
    worker.finish()
    return 0
