"""Adoption: a log that was received from another replica replaces the local one.

::

    StagedLogs.stage … stage_end      the worker writes and checks what arrives, beside the log
    adopt                             note in the write-ahead log ──durable──► the log is forgotten
                                      ──files rest, no checkpoint running──► the worker swaps the directories

Before the note is durable a crash shows the old log; after it the new one, because recovery completes the swap. The
note stays in the write-ahead log until then. What is received and not adopted is removed when it is dropped.

**A restart in the middle.** What was received stays, after an orderly stop and after a crash. The next attempt
continues it (``segments.received``); what was not continued after ``LEFT_US`` is removed. Two kinds never stay: chunks
of event topics, which belong to the name of their directory, and the empty logs of ``storage.log.lost``.

An unexpected exception in the worker fails the partition: its records and the note go to its ``quarantine`` file.
Overload: ``ArenaFull`` before the note. A full disk ends the attempt while files are received; the swap itself waits
for space.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from millstream.format.names import STAGED_SUFFIX, TOPICS_DIRECTORY, controller_directory, resumable
from millstream.format.wal import Kind
from millstream.storage.chunks import holds_chunks
from millstream.storage.messages.commands import Done
from millstream.storage.messages.receiving import Adopt, Resumed, Staged
from millstream.storage.segments.files import names_in
from millstream.storage.segments.read_faults import raise_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.helper.link import CallId
    from millstream.model.quantities import Offset
    from millstream.model.replication import LogPoint
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.storage.log.log import Log
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.maintenance.checkpoint import Checkpointer
    from millstream.storage.maintenance.removals import Removals
    from millstream.storage.messages.commands import WorkerLink
    from millstream.storage.messages.receiving import Resume, Stage, StageEnd
    from millstream.storage.wal.wal import Wal


LEFT_US: Final = 600_000_000
"""How long after a start the files that an earlier run received are kept for an attempt that continues them."""


class AdoptionHost(Protocol):
    """What this needs of its shard's storage."""

    reactor: Reactor
    worker: WorkerLink
    disk: Disk
    data_dir: str
    wal: Wal
    checkpointer: Checkpointer
    removals: Removals

    @property
    def logs(self) -> dict[int, Log]:
        """The open logs."""
        ...

    def when_files_rest(self, log: OpenLog, callback: Callable[[], None]) -> None:
        """Call back when the cleaner does nothing with the log."""
        ...

    def forget(self, log: Log) -> None:
        """The log is closed; running operations on it are void."""
        ...


class StagedLogs:
    """Commands to the worker about logs that are received. At most one is running for each log."""

    def __init__(self, storage: AdoptionHost) -> None:
        self._storage = storage
        self._kept: set[str] = set()
        """Directories of logs that are being received."""
        self._removing: Counter[str] = Counter()
        """Directories of logs, and how many earlier attempts of each are being removed."""
        self._left = find_left(storage.disk, storage.data_dir)
        """Directories of logs, and what an earlier start has received of each."""
        if self._left:
            storage.reactor.call_later(LEFT_US, self._remove_left)

    def next_id(self) -> CallId:
        """A number for the next command."""
        return self._storage.worker.next_id()

    def stage(self, command: Stage, done: Callable[[Staged], None]) -> None:
        """Write batches that have arrived. The bytes stay in the arena until ``done``."""
        self._kept.add(command.directory)
        self._storage.worker.ask(command, Staged, done, raise_fault)

    def stage_end(self, command: StageEnd, done: Callable[[Staged], None]) -> None:
        """Complete the files."""
        self._kept |= {command.stage.directory, command.place} - {""}
        self._storage.worker.ask(command, Staged, done, raise_fault)

    def left_of(self, log_directory: str) -> list[str]:
        """Directories with what an earlier start received of a log. They are the caller's from now on."""
        return self._left.pop(log_directory, [])

    def put_back(self, log_directory: str, directories: list[str]) -> None:
        """Return a directory that ``left_of`` gave and that was not used; the next attempt may use it."""
        self._left[log_directory] = directories
        self._storage.reactor.call_later(LEFT_US, self._remove_left)

    def resume(self, command: Resume, done: Callable[[Resumed], None]) -> None:
        """Continue one of the directories of ``left_of``."""

        def resumed(reply: Resumed) -> None:
            if reply.directory:
                self._kept.add(reply.directory)
            done(reply)

        self._storage.worker.ask(command, Resumed, resumed, raise_fault)

    def deleted(self, log_directory: str) -> None:
        """Remove the received files of a deleted log."""
        self._storage.removals.remove_aside(self._storage.disk, log_directory)
        for directory in self.left_of(log_directory):
            self.drop(log_directory, directory)

    def _remove_left(self) -> None:
        """Remove the received files of this shard's logs that no attempt has continued."""
        for log in list(self._storage.logs.values()):
            for directory in self.left_of(log.directory):
                self.drop(log.directory, directory)

    def drop(self, log_directory: str, directory: str) -> None:
        """Remove ``directory`` with its received files; no command for it is running."""

        def gone() -> None:
            self._removing[log_directory] -= 1

        self._kept.discard(directory)
        self._removing[log_directory] += 1
        self._storage.removals.remove(directory, gone)

    def is_busy(self, log_directory: str) -> bool:
        """Whether files that were received for the log earlier are still being removed."""
        return self._removing[log_directory] > 0

    def adopted(self, directory: str) -> None:
        """The files that were received into ``directory`` are in their place."""
        self._kept.discard(directory)

    def moved(self, directory: str) -> None:
        """The received files in ``directory`` were renamed."""
        self._kept.discard(directory)

    def stop(self) -> None:
        """The shard stops: remove received files that the next start cannot continue."""
        for directory in self._kept:
            if holds_chunks(directory):
                self._storage.removals.remove(directory, _nothing)
        self._kept.clear()


def find_left(disk: Disk, data_dir: str) -> dict[str, list[str]]:
    """What an earlier start has received and not put in place, by the directory of the log."""
    root = f"{data_dir}/{TOPICS_DIRECTORY}"
    found: dict[str, list[str]] = {}
    places = [controller_directory(data_dir).rpartition("/")[0], *(f"{root}/{name}" for name in names_in(disk, root))]
    for place in places:
        try:
            names = names_in(disk, place)
        except NotADirectoryError:
            continue
        for name in names:
            if resumable(name):
                log = f"{place}/{name.removesuffix(STAGED_SUFFIX).rpartition('.')[0]}"
                found.setdefault(log, []).append(f"{place}/{name}")
    return found


def adopt(
    storage: AdoptionHost,
    log: Log,
    staged: str,
    end: LogPoint,
    end_offset: Offset,
    done: Callable[[], None],
    broke: Callable[[Exception], None],
) -> None:
    """What ``ShardStorage.adopt_log`` does."""
    directory = log.directory

    def durable() -> None:
        def swapped(_: Done) -> None:
            storage.checkpointer.changes.made(change)
            done()

        def failed(fault: Exception) -> None:
            storage.checkpointer.failed_logs.add(log)  # the note among them: opening the log again completes the swap
            storage.checkpointer.changes.made(change)
            broke(fault)

        change = storage.checkpointer.changes.wait()
        command = Adopt(storage.worker.next_id(), directory, staged, log.raft.vote.term, log.raft.vote.voted_for)
        storage.forget(log)

        def rests() -> None:
            # A checkpoint that is about to name files of the old log must not find the new one.
            storage.checkpointer.when_idle(lambda: storage.worker.ask(command, Done, swapped, failed))

        storage.when_files_rest(log, rests)

    storage.wal.add_note(log, Kind.ADOPT, end_offset, end.position, (0, 0, 0), durable, end.term)
    log.ends.cutting = True


def _nothing() -> None:
    """Default callback without effect."""
