"""The storage of one shard: its logs, their common write-ahead log and cache, and the helper processes.

Start, in the shard's process: ``processes.start`` (forks; before the reactor exists), then ``ShardStorage``, then
``open_log`` for each partition of this shard, after ``recovery.recover`` has run in a process of the supervisor's.
Stop: ``stop``, which makes everything durable in the segments and leaves a summary, so that the next start reads next
to nothing.

**Overload and full disks.** Appends that find no memory or no WAL space are refused with ``ArenaFull`` and nothing
happened. When the disk has less than ``storage.reserve.bytes`` left, or a segment write says that it is full,
``accepts_writes`` turns False: the partition layer refuses producers retriably, while the broker's own records, reads
and deletions continue in what is reserved. It recovers by itself: once a second the space is measured and what failed
is tried again.

**Fail-stop.** A write or sync of the write-ahead log that failed, a segment that could not be synced, a helper that
ended: the reactor is stopped with the reason, nothing more is acknowledged, and what was acknowledged is found by the
next start.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from millstream.format.names import wal_directory
from millstream.format.wal import FrameSequence
from millstream.helper.link import HelperLink
from millstream.model.replication import Term
from millstream.shard.process import EXIT_CHILD, EXIT_STORAGE
from millstream.storage.chunks import is_chunk_disk
from millstream.storage.compaction.compaction import Compaction
from millstream.storage.disk import FULL, DiskFault
from millstream.storage.log.cache import CacheMemory
from millstream.storage.log.lost import unmark
from millstream.storage.log.meters import LogMeters
from millstream.storage.log.shard_reads import ShardReads
from millstream.storage.log.write_behind import WRITE_BYTES_MIN
from millstream.storage.maintenance.adoption import StagedLogs, adopt
from millstream.storage.maintenance.checkpoint import Checkpointer
from millstream.storage.maintenance.housekeeping import Housekeeping
from millstream.storage.maintenance.removals import Removals
from millstream.storage.maintenance.space import Space
from millstream.storage.messages.commands import (
    Broke,
    Done,
    Failed,
    ForgetFiles,
    Prepared,
    Remove,
    WorkerLink,
    decode_reply,
)
from millstream.storage.processes.inspections import Inspections
from millstream.storage.recovery.summary import leave_summaries
from millstream.storage.registry import LogRegistry
from millstream.storage.segments.read_faults import HelperFault, raise_fault
from millstream.storage.wal.opening import open_files, open_state
from millstream.storage.wal.wal import Wal
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.settings import Settings
    from millstream.helper.link import CallId
    from millstream.iobuf import Arena
    from millstream.model.quantities import Offset, RaftGroupId
    from millstream.model.replication import LogPoint
    from millstream.shard.context import Shard
    from millstream.shard.process import ExitStatus
    from millstream.storage.disk import Disk
    from millstream.storage.log.log import Log
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.messages.commands import Cut
    from millstream.storage.processes.start import StorageProcesses


class ShardStorage:
    """The storage of one shard. Lifecycle: constructed once, ``stop`` once. Shard: its own, on the reactor."""

    def __init__(
        self, shard: Shard, settings: Settings, disk: Disk, data_dir: str, processes: StorageProcesses
    ) -> None:
        self.reactor = reactor = shard.reactor
        self.stats = stats = shard.stats
        self.disk = disk
        self.settings = settings
        self.data_dir = data_dir
        self.write_bytes_min = WRITE_BYTES_MIN
        self.meters = LogMeters(stats)
        self.worker: WorkerLink = HelperLink(processes.send)
        self.memory = CacheMemory(shard.arena, stats)
        self.wal = self._open_wal(wal_directory(data_dir, shard.id), processes)
        self.checkpointer = Checkpointer(self)
        self.space = Space(self)
        self.reads = ShardReads(reactor, shard.arena, stats, self.worker, self.disk, lambda: self.wal.tick.serial)
        self.inspections = Inspections(reactor, shard.arena, stats, self.worker)
        self.removals = Removals(reactor, self.worker)
        self.registry = LogRegistry(self)
        self.staging = StagedLogs(self)
        self.housekeeping = Housekeeping(self, settings.log_retention_check_interval_ms)
        self.compaction = Compaction(self, settings.shards)
        self._stop = _Stop(self, processes)
        processes.attach(reactor, self.wal.landed, self._received, self._stop.process_ended)
        self.wal.files.prepare_now()

    def _open_wal(self, directory: str, processes: StorageProcesses) -> Wal:
        """The write-ahead log of this shard. Recovery has made its frames void."""
        settings = self.settings
        state = open_state(self.disk, directory)
        self.term = Term(state.term)
        """Minimum Raft term for reopened logs. Raised after each crash, because the lost tail may have used later
        terms.
        """

        return Wal(
            self.reactor,
            self.stats,
            processes.slots,
            processes.submit,
            owner=self,
            files=open_files(
                self.disk, directory, state, settings.wal_bytes, settings.wal_file_bytes, self.worker.send
            ),
            pacing_us=settings.wal_pacing_us,
            next_sequence=FrameSequence(state.next_sequence),
        )

    @property
    def arena(self) -> Arena:
        """The memory of the shard."""
        return self.memory.arena

    @property
    def logs(self) -> dict[int, Log]:
        """The open logs, by Raft group."""
        return self.registry.logs

    @property
    def dirty_logs(self) -> dict[OpenLog, None]:
        """Logs that the next checkpoint covers."""
        return self.registry.dirty

    @property
    def accepts_writes(self) -> bool:
        """False while the disk is full: user data is to be refused with a retriable error."""
        return self.space.accepts_writes

    @property
    def stopping(self) -> bool:
        """Whether the shard is about to stop."""
        return self._stop.requested

    # -- logs ----------------------------------------------------------------------------------------------------------

    def cut_off(self, log: Log) -> None:
        """A verb of the log has raised: it changes no more, the turn's tick is whole again, and the next
        checkpoint puts its records aside. ``forget`` follows.

        Raises:
            AssertionError: something that logs share is not as it should be.
        """
        log.closed = True
        log.owner.silence()
        self.wal.mend(log)
        self.memory.put_back()
        self.dirty_logs.pop(log, None)
        self.checkpointer.failed_logs.add(log)
        log.files.replacing = False

    def close_log(self, log: Log, done: Callable[[], None] | None = None) -> None:
        """Release a log once everything of it is in its segments; nothing may be appended from now on."""

        def checkpointed() -> None:
            if not log.closed:
                self.forget(log)
            if done is not None:
                done()

        self.wal.when_durable(lambda: self.checkpointer.request(checkpointed))

    def adopt_log(
        self,
        log: Log,
        staged: str,
        end: LogPoint,
        end_offset: Offset,
        done: Callable[[], None],
        broke: Callable[[Exception], None] = raise_fault,
    ) -> None:
        """Put files that were staged for a log in its place (``segments.incoming``). The log is no more; ``done`` is
        called when they are there, durably, and the log may be opened again. They end at ``end``, ``end_offset``.
        ``broke`` is called with what the worker met if it met what it should not; the note is set aside then.

        Raises:
            ArenaFull: no room in the write-ahead log now; nothing has happened.
        """
        adopt(self, log, staged, end, end_offset, done, broke)
        self.staging.adopted(staged)

    def delete_log(self, log: Log, done: Callable[[], None]) -> None:
        """Release a log and remove its files; for ``done`` see ``Removals.remove``. Operations on it are void."""
        self.forget(log)
        self.compaction.when_idle(log, lambda: self.removals.remove(log.directory, done))
        self.staging.deleted(log.directory)

    def forget_files(self, directory: str, done: Callable[[], None]) -> None:
        """A log that has failed is about to be opened again, which may change its files: ``done`` is called when
        nothing of them is in the memory of helpers.
        """

        def forgotten(_: Done) -> None:
            if is_chunk_disk(self.disk):
                self.disk.forget(directory)
            done()

        self.reads.pages.forget(directory)
        self.worker.ask(ForgetFiles(self.worker.next_id(), directory), Done, forgotten, raise_fault)

    def found_again(self, log: Log) -> None:
        """A lost log was filled again: remove the files that were put aside."""
        unmark(self.disk, log.directory)
        self.removals.remove_aside(self.disk, log.directory)

    def delete_faulty(self, group: RaftGroupId, directory: str) -> None:
        """Remove the files of a partition whose log was refused when it was to be opened, or has failed."""
        self.checkpointer.failed_logs.discard(group)
        self.removals.remove(directory, lambda: None)

    def forget(self, log: Log) -> None:
        """The log is closed; running operations on it are void."""
        log.cache.close_open()
        log.closed = True
        self.reads.pages.forget(log.directory)
        log.owner.on_durable = log.owner.on_trimmed = None
        self.registry.forget(log)
        self.space.written(log)
        self.checkpointer.changes.keep_note(log, keep=False)
        self.compaction.forget(log)
        self.housekeeping.forget(log)
        log.behind.abandon()
        ranges = log.cache.clear()

        def release() -> None:
            for one in ranges:
                self.memory.give_back(one)

        # A submitted frame may still be read from these ranges. A running write has references of its own.
        self.wal.when_durable(release)

    # -- checkpoint and stop -------------------------------------------------------------------------------------------

    def checkpoint(self, done: Callable[[], None]) -> None:
        """Make everything durable so far durable in the segments, and free the write-ahead log; ``done`` when it is."""
        self.checkpointer.request(done)

    def when_set_aside(self, group: RaftGroupId, done: Callable[[], None]) -> None:
        """Call ``done`` once nothing of a log that failed is in the write-ahead log. Frames that are being written are
        waited for: a checkpoint before they are durable would not have them.
        """
        if group in self.checkpointer.failed_logs:
            again = partial(self.when_set_aside, group, done)
            self.wal.when_durable(lambda: self.checkpointer.request(again))
        else:
            done()

    def stop(self, done: Callable[[], None]) -> None:
        """Bring everything into the segments, leave a summary, end the helpers; ``done`` when they have ended.

        The caller has stopped appending. With a full disk this may not be possible; then the stop is as after a
        crash, and the next start replays the write-ahead log.
        """
        self._stop.begin(done)

    # -- the write-ahead log -------------------------------------------------------------------------------------------

    def tick_landed(self) -> None:
        """A tick is durable: start a checkpoint, or check the disk, if it is time."""
        self.memory.show()
        self.checkpointer.tick_landed()
        self.space.look_later()

    def wal_full(self) -> None:
        """Ticks wait for a free file."""
        if self.checkpointer.running or self.checkpointer.would_free:
            self.checkpointer.request()

    def _prepared(self, reply: Prepared) -> None:
        if not reply.errno:
            self.wal.file_ready(reply.number)
        elif reply.errno in FULL:
            self.wal.files.refused()
            self.disk_full(reply.errno)
        else:
            what = f"a file for the write-ahead log could not be made: {os.strerror(reply.errno)}"
            self.fail(DiskFault.WRITE, what)

    def fail(self, fault: DiskFault, reason: str) -> None:
        """Stop the shard, because the state of the disk is unknown."""
        self.stats.counter("storage_faults", kind=fault).inc()
        self.reactor.stop(EXIT_STORAGE, reason)

    # -- the worker ----------------------------------------------------------------------------------------------------

    def _received(self, message: bytes) -> None:
        """A message of the worker or the cleaner: the reply to a command, or about a log or a file."""
        reply = decode_reply(message)
        if isinstance(reply, Prepared):
            self._prepared(reply)
        elif isinstance(reply, Failed):
            self.fail(DiskFault.WRITE, reply.reason)
        elif isinstance(reply, Broke):
            self.worker.fail(reply.id, HelperFault(reply.what))
        else:
            self.worker.reply(reply)

    def log_broke(self, log: OpenLog, verb: str, what: str) -> None:
        """A helper has met ``what`` in a verb of a log: the log fails."""
        log.guard(verb, raise_fault, HelperFault(what))

    # -- space ---------------------------------------------------------------------------------------------------------

    def wrote(self, log: OpenLog) -> None:
        """Bytes of a log are in its segment: it found space."""
        self.space.written(log)

    def write_refused(self, log: OpenLog, errno: int) -> None:
        """A segment write found the disk full: it is tried again once a second."""
        self.space.write_refused(log, os.strerror(errno))

    def disk_full(self, errno: int) -> None:
        """The disk said that it is full."""
        self.space.disk_full(os.strerror(errno))

    # -- what logs tell ------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Wall clock."""
        return self.reactor.wall_ms()

    def rolled(self, log: OpenLog) -> None:
        """A segment was sealed."""
        self.meters.rolled.inc()
        self.changed(log)

    def changed(self, log: OpenLog) -> None:
        """The next checkpoint has to look at a log."""
        self.registry.changed(log)

    def change_files(self, log: OpenLog, command: Callable[[CallId], Cut | Remove]) -> None:
        """Have files of a log changed; the note that stands for it in the write-ahead log is needed until that is
        durable.
        """

        def carried_out(_: Done) -> None:
            self.checkpointer.changes.made(change)
            self.changed(log)  # not durable yet: one more checkpoint has to come

        def broke(fault: Exception) -> None:
            # The note is set aside with the records of the log.
            log.guard("change of files", raise_fault, fault)
            self.checkpointer.changes.made(change)

        change = self.checkpointer.changes.wait()
        asked = command(self.worker.next_id())
        for path in asked.paths if isinstance(asked, Remove) else [asked.path]:
            self.reads.pages.forget(path)
        self.worker.ask(asked, Done, carried_out, broke)

    def keep_note(self, log: OpenLog, *, keep: bool) -> None:
        """Keep the note of a cut that was just added, until the changes of its files are ordered."""
        self.checkpointer.changes.keep_note(log, keep=keep)

    def when_files_rest(self, log: OpenLog, callback: Callable[[], None]) -> None:
        """Call back when the cleaner does nothing with the log: at once, or after it has given up its work."""
        self.compaction.when_idle(log, callback)

    def when_no_checkpoint(self, callback: Callable[[], None]) -> None:
        """Call back when no checkpoint is on its way to the disk: at once, or when this one is over."""
        self.checkpointer.when_idle(callback)

    def segment_began(self, log: OpenLog, segment: Segment) -> None:
        """A segment got its first batch."""
        self.housekeeping.segment_began(log, segment)


class _Stop:
    """The orderly stop of one shard's storage, and the end of its helper processes."""

    def __init__(self, storage: ShardStorage, processes: StorageProcesses) -> None:
        self._storage = storage
        self._processes = processes
        self._ended = 0
        self._done: Callable[[], None] | None = None
        self.requested = False

    def begin(self, done: Callable[[], None]) -> None:
        """See ``ShardStorage.stop``."""
        storage = self._storage
        self.requested = True
        storage.staging.stop()
        storage.inspections.stop()
        finish = partial(storage.checkpointer.request, lambda: self._end_helpers(done))
        storage.compaction.stop(lambda: storage.wal.when_durable(finish))

    def _end_helpers(self, done: Callable[[], None]) -> None:
        storage = self._storage
        if not storage.wal.idle or storage.dirty_logs or storage.checkpointer.changes:
            # Something was appended after all (an offset commit that was running), or files are still being cut.
            storage.wal.when_durable(lambda: storage.checkpointer.request(lambda: self._end_helpers(done)))
            return
        self._done = done
        storage.wal.close()
        storage.reads.stop()
        storage.removals.stop()
        self._processes.stop_worker()

    def process_ended(self, name: str, status: ExitStatus | None) -> None:
        """A helper process has ended. If it was not asked to, the shard stops with the reason."""
        storage = self._storage
        if not self.requested or not storage.wal.closed or (status is not None and status.code):
            storage.reactor.stop(EXIT_CHILD, f"{name} {status}")
            return
        self._ended += 1
        if self._ended == self._processes.count:
            self._processes.detach()
            self._leave_summary()
            if self._done is not None:
                self._done()

    def _leave_summary(self) -> None:
        storage = self._storage
        if storage.removals.pending:
            # After a clean stop the next start would not look for them.
            operator_log.warning("files of deleted topics are left: the next start removes them and looks at each log")
            return
        if storage.checkpointer.failed_logs:
            operator_log.warning("a partition failed while the shard stopped: the next start replays the log")
            return
        leave_summaries(storage.disk, storage.wal.files.directory, storage.wal, storage.term, storage.logs.values())
