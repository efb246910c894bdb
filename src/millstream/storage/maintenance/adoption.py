"""A log that is received from another replica, and takes the place of the one here.

::

    StagedLogs.stage … stage_end      the worker writes and checks what arrives, beside the log
    adopt                             note in the write-ahead log ──durable──► the log is forgotten
                                      ──files rest, no checkpoint under way──► the worker swaps the directories

Before the note is durable a crash shows the old log; after it the new one, because recovery completes the swap. The
note stays in the write-ahead log until then. What is received and not adopted is removed when it is dropped, at the
latest by the next start.

Overload: `ArenaFull` before the note. A full disk ends the attempt while files are received; the swap itself waits for
space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.format.wal import Kind
from millstream.storage.messages.receiving import Adopt

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.quantities import Offset
    from millstream.model.replication import LogPoint
    from millstream.storage.log.log import Log
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.maintenance.checkpoint import Checkpointer
    from millstream.storage.maintenance.removals import Removals
    from millstream.storage.messages.commands import Command
    from millstream.storage.messages.receiving import Stage, Staged, StageEnd
    from millstream.storage.wal.wal import Wal


class AdoptionHost(Protocol):
    """What this needs of its shard's storage."""

    wal: Wal
    checkpointer: Checkpointer
    removals: Removals

    def send(self, command: Command) -> None:
        """Send a command to the worker."""
        ...

    def expect(self, done: Callable[[], None]) -> int:
        """A number for a command that is answered with `Done`."""
        ...

    def when_files_rest(self, log: OpenLog, callback: Callable[[], None]) -> None:
        """Call back when the cleaner does nothing with the log."""
        ...

    def forget(self, log: Log) -> None:
        """The log is no more; what is under way for it is void."""
        ...


class StagedLogs:
    """Commands to the worker about logs that are received. At most one is under way for each log."""

    def __init__(self, storage: AdoptionHost) -> None:
        self._storage = storage
        self._calls: dict[int, Callable[[Staged], None]] = {}
        self._next_id = 1
        self._kept: set[str] = set()
        """Directories of logs that are being received."""
        self._removing: set[str] = set()
        """Directories of logs of which an earlier attempt is being removed."""

    def next_id(self) -> int:
        """A number for the next command."""
        self._next_id += 1
        return self._next_id - 1

    def stage(self, command: Stage, done: Callable[[Staged], None]) -> None:
        """Write batches that have arrived. The bytes stay in the arena until ``done``."""
        self._calls[command.id] = done
        self._kept.add(command.directory)
        self._storage.send(command)

    def stage_end(self, command: StageEnd, done: Callable[[Staged], None]) -> None:
        """Complete the files."""
        self._calls[command.stage.id] = done
        self._kept |= {command.stage.directory, command.place} - {""}
        self._storage.send(command)

    def finished(self, reply: Staged) -> None:
        """The worker's answer."""
        self._calls.pop(reply.id)(reply)

    def drop(self, log_directory: str, directory: str) -> None:
        """Remove what was received into ``directory``; nothing is under way for it."""
        self._kept.discard(directory)
        self._removing.add(log_directory)
        self._storage.removals.remove(directory, lambda: self._removing.discard(log_directory))

    def is_busy(self, log_directory: str) -> bool:
        """Whether what was received for a log before is still being removed."""
        return log_directory in self._removing

    def adopted(self, directory: str) -> None:
        """What was received into ``directory`` is in its place."""
        self._kept.discard(directory)

    def moved(self, directory: str) -> None:
        """What was received into ``directory`` has another name now."""
        self._kept.discard(directory)

    def stop(self) -> None:
        """The shard stops: remove what is there, nobody goes on with it."""
        for directory in self._kept:
            self._storage.removals.remove(directory, _nothing)
        self._kept.clear()


def adopt(
    storage: AdoptionHost, log: Log, staged: str, end: LogPoint, end_offset: Offset, done: Callable[[], None]
) -> None:
    """What `ShardStorage.adopt_log` does."""
    directory = log.directory

    def durable() -> None:
        def swapped() -> None:
            storage.checkpointer.change_made(number)
            done()

        number = storage.expect(swapped)
        storage.checkpointer.wait_for_change(number)
        command = Adopt(number, directory, staged, log.vote.term, log.vote.voted_for)
        storage.forget(log)

        def rests() -> None:
            # A checkpoint that is about to name files of the old log must not find the new one.
            storage.checkpointer.when_idle(lambda: storage.send(command))

        storage.when_files_rest(log, rests)

    storage.wal.add_note(log, Kind.ADOPT, end_offset, end.position, (0, 0, 0), durable, end.term)
    log.cutting = True


def _nothing() -> None:
    """Nobody waits for the removal."""
