"""The storage of one shard: its logs, their common write-ahead log and cache, and the helper processes.

Start, in the shard's process: ``processes.start`` (forks; before the reactor exists), then ``ShardStorage``, then
``open_log`` for each partition of this shard, after ``recovery.recover`` has run in a process of the supervisor's.
Stop: ``stop``, which makes everything durable in the segments and leaves a summary, so that the next start reads next
to nothing.

**Overload and full disks.** Appends that find no memory or no WAL space are refused with ``ArenaFull`` and nothing
happened. When the disk has less than ``storage.reserve.bytes`` left, or a segment write says that it is full,
``accepts_writes`` turns False: the partition layer refuses producers retriably, while the broker's own records, reads
and deletions go on in what is reserved. It recovers by itself: once a second the space is measured and what failed
is tried again.

**Fail-stop.** A write or sync of the write-ahead log that failed, a segment that could not be synced, a helper that
ended: the reactor is stopped with the reason, nothing more is acknowledged, and what was acknowledged is found by the
next start.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.format.events.chunk import log_directory
from millstream.format.names import controller_directory, wal_directory
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.model.replication import Term
from millstream.shard.process import EXIT_CHILD, EXIT_STORAGE
from millstream.storage.compaction.compaction import Compaction
from millstream.storage.disk import FULL
from millstream.storage.log.cache import CacheMemory
from millstream.storage.log.cold_reads import ColdReads
from millstream.storage.log.event_log import limits_of, open_event_log
from millstream.storage.log.event_reads import EventReads
from millstream.storage.log.log import Log
from millstream.storage.log.lost import load_replica, unmark
from millstream.storage.log.open_log import LogFacts
from millstream.storage.log.opening import repair_note
from millstream.storage.log.timestamps import Timestamps
from millstream.storage.log.write_behind import WRITE_BYTES_MIN
from millstream.storage.maintenance.adoption import StagedLogs, adopt
from millstream.storage.maintenance.checkpoint import Checkpointer
from millstream.storage.maintenance.housekeeping import Housekeeping
from millstream.storage.maintenance.removals import Removals
from millstream.storage.maintenance.space import Space
from millstream.storage.messages.commands import (
    Broke,
    Checkpointed,
    Command,
    DataFetched,
    Done,
    EventsFed,
    Failed,
    Found,
    Inspected,
    KeysGathered,
    Prepared,
    ReadDone,
    Removed,
    Reply,
    Rewritten,
    RewrittenPut,
    Written,
    decode_reply,
)
from millstream.storage.messages.receiving import Resumed, Staged
from millstream.storage.processes.boundary import EVENT_READ, LOOK_UP, READ, HelperFault
from millstream.storage.processes.inspections import Inspections
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.set_aside import is_set_aside, replay_set_aside
from millstream.storage.recovery.summary import leave_summaries, open_summarized, read_opened
from millstream.storage.segments.read_faults import ReadFaults, raise_fault
from millstream.storage.wal.opening import open_files, open_state
from millstream.storage.wal.wal import Wal
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.settings import Settings
    from millstream.config.topic_properties import TopicConfig
    from millstream.model.quantities import Offset
    from millstream.model.replication import LogPoint
    from millstream.shard.context import Shard
    from millstream.shard.process import ExitStatus
    from millstream.storage.disk import Disk
    from millstream.storage.log.log_staging import LogStaging
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.processes.start import StorageProcesses


class ShardStorage:
    """The storage of one shard. Lifecycle: constructed once, ``stop`` once. Shard: its own, on the reactor."""

    def __init__(
        self, shard: Shard, settings: Settings, disk: Disk, data_dir: str, processes: StorageProcesses
    ) -> None:
        self.reactor = reactor = shard.reactor
        self.arena = shard.arena
        self.stats = stats = shard.stats
        self.disk = disk
        self.settings = settings
        self.data_dir = data_dir
        self.wal_directory = wal_directory(data_dir, shard.id)
        self.accepts_writes = True
        """False while the disk is full: user data is to be refused with a retriable error."""

        self.write_bytes_min = WRITE_BYTES_MIN
        self.stopping = False
        self.logs: dict[int, Log] = {}
        self.dirty_logs: dict[OpenLog, None] = {}  # in the order in which they changed
        self.cache_hits = stats.counter("cache_hits")
        self.cache_misses = stats.counter("cache_misses")
        self.cache_read_bytes = stats.counter("read_bytes", source="cache")
        self._written_bytes = stats.counter("segment_written_bytes")
        self._rolled = stats.counter("segments_rolled")
        self._deleted = stats.counter("segments_deleted")
        self._partitions = stats.gauge("log_partitions")
        self._processes = processes
        self._summaries = read_opened(disk, data_dir)
        self._expected: dict[int, Callable[[], None]] = {}
        self._next_expected = 1
        self._checkpoint_timer = False
        self._stop_done: Callable[[], None] | None = None
        self._ended = 0
        self.memory = CacheMemory(shard.arena, stats)
        self.wal = self._open_wal()
        self.checkpointer = Checkpointer(self)
        self._space = Space(self)
        self.read_faults = read_faults = ReadFaults(stats)
        self.cold_reads = ColdReads(reactor, shard.arena, stats, self.send, read_faults)
        self.timestamps = Timestamps(self.send, read_faults)
        self.event_reads = EventReads(reactor, shard.arena, self.send, read_faults)
        self.inspections = Inspections(reactor, shard.arena, stats, self.send, self.expect)
        self.removals = Removals(reactor, self.send)
        self._staged = StagedLogs(self)
        self.staging: LogStaging = self._staged
        self.housekeeping = Housekeeping(self, settings.log_retention_check_interval_ms)
        self.compaction = Compaction(self, settings.shards)
        self._hears = self._hearers()
        processes.attach(reactor, self.wal.landed, lambda reply: self.replied(decode_reply(reply)), self._process_ended)
        self.wal.files.prepare_now()

    def _open_wal(self) -> Wal:
        """The write-ahead log of this shard, its files void: recovery has seen to that."""
        directory, settings = self.wal_directory, self.settings
        state = open_state(self.disk, directory)
        self.term = Term(state.term)
        """Minimum Raft term for reopened logs. Raised after each crash, because the lost tail may have used later
        terms.
        """

        wal_files = open_files(self.disk, directory, state, settings.wal_bytes, settings.wal_file_bytes, self.send)
        wal = Wal(
            self.reactor,
            self.stats,
            self._processes.slots,
            self._processes.submit,
            files=wal_files,
            pacing_us=settings.wal_pacing_us,
            next_sequence=state.next_sequence,
        )
        wal.on_full = self._wal_full
        wal.on_landed = self._landed
        wal.on_failure = self.fail
        wal.on_no_room = self.disk_full
        self.checkpoint_bytes = min(settings.checkpoint_bytes, settings.wal_bytes // 2)
        return wal

    # -- logs ----------------------------------------------------------------------------------------------------------

    def open_log(
        self,
        group: RaftGroupId,
        directory: str,
        name: str,
        config: TopicConfig,
        clean: bool,
        *,
        replicated: bool = False,
        expected: bool = False,
    ) -> Log:
        """Open the log of a group; an empty one if it has no files yet. Blocks for a few file reads.

        Args:
            group: number of the Raft group, unique in the cluster's life.
            directory: where its files are or will be.
            name: what people call it, "topic/partition".
            config: of the topic.
            clean: the last stop was an orderly one, or the log is new: what that stop noted may be used.
            replicated: its group has several voters.
            expected: one of several replicas that was here before, so that it must have files (``lost``).

        Raises:
            Corruption: its durable files are damaged; the log must not be served.
        """
        if group in self.logs:
            raise AssertionError(f"group {group} is opened twice")
        self._replay_set_aside(directory, name, config, replicated=replicated)
        summary = self._summaries.pop(group, None)
        loaded = open_summarized(self.disk, directory, summary) if clean and summary is not None else None
        if loaded is None:
            note, aside = repair_note(name, self.stats), not config.has_events
            now_ms, several = self.now_ms(), {"replicated": replicated, "expected": expected}
            loaded = load_replica(self.disk, directory, now_ms, note, **several, aside=aside)
        topic = name.rpartition("/")[0] if group else ""
        facts = LogFacts(RaftGroupId(group), directory, name, topic)
        log = self.logs[group] = (open_event_log if config.has_events else Log)(self, facts, config, loaded)
        self._partitions.add(1)
        if log.refresh().size_bytes:
            self.housekeeping.segment_began(log, log.segments_list.active)
        return log

    def _replay_set_aside(self, directory: str, name: str, config: TopicConfig, *, replicated: bool) -> None:
        """What a failure of the log has put beside its segments goes into them."""
        if not is_set_aside(self.disk, directory):
            return
        limits = limits_of(config) if config.has_events else None
        place = LogPlace(directory, name, config.segment_bytes, replicated, limits)
        replay_set_aside(self.disk, self.data_dir, place, self.now_ms(), repair_note(name, self.stats))

    def cut_off(self, log: Log) -> None:
        """A verb of the log has raised: nothing of it changes any more, the turn's tick is whole again, and the next
        checkpoint puts its records aside. ``forget`` follows.

        Raises:
            AssertionError: something that logs share is not as it should be.
        """
        log.closed = True
        log.on_durable = log.on_persisted = log.on_trimmed = None
        self.wal.mend(log)
        self.memory.put_back()
        self.dirty_logs.pop(log, None)
        self.checkpointer.set_aside(log)
        log.replacing = False

    def open_partition_log(
        self,
        group: RaftGroupId,
        topic_id: bytes,
        topic: str,
        partition: int,
        config: TopicConfig,
        *,
        clean: bool,
        replicated: bool = False,
        expected: bool = False,
    ) -> Log:
        """``open_log`` for a partition of a topic; group 0, the controller's log, is opened with ``controller_log``."""
        directory = log_directory(self.data_dir, topic_id, topic, PartitionIndex(partition), events=config.has_events)
        name = f"{topic}/{partition}"
        return self.open_log(group, directory, name, config, clean, replicated=replicated, expected=expected)

    def open_controller_log(
        self, config: TopicConfig, *, clean: bool, replicated: bool = False, expected: bool = False
    ) -> Log:
        """The log of group 0."""
        directory = controller_directory(self.data_dir)
        group = RaftGroupId(0)
        return self.open_log(group, directory, "controller", config, clean, replicated=replicated, expected=expected)

    def close_log(self, log: Log, done: Callable[[], None] | None = None) -> None:
        """Release a log once everything of it is in its segments; nothing may be appended any more."""

        def checkpointed() -> None:
            if not log.closed:
                self.forget(log)
            if done is not None:
                done()

        self.wal.when_durable(lambda: self.checkpointer.request(checkpointed))

    def adopt_log(self, log: Log, staged: str, end: LogPoint, end_offset: Offset, done: Callable[[], None]) -> None:
        """Put files that were staged for a log in its place (``segments.incoming``). The log is no more; ``done`` is
        called when they are there, durably, and the log may be opened again. They end at ``end``, ``end_offset``.

        Raises:
            ArenaFull: no room in the write-ahead log now; nothing has happened.
        """
        adopt(self, log, staged, end, end_offset, done)
        self._staged.adopted(staged)

    def delete_log(self, log: Log, done: Callable[[], None]) -> None:
        """Release a log and remove its files; for ``done`` see ``Removals.remove``. Operations on it are void."""
        self.forget(log)
        self.compaction.when_idle(log, lambda: self.removals.remove(log.directory, done))
        self._staged.deleted(log.directory)

    def found_again(self, log: Log) -> None:
        """A lost log was filled again: remove the files that were put aside."""
        unmark(self.disk, log.directory)
        self.removals.remove_aside(self.disk, log.directory)

    def delete_faulty(self, group: RaftGroupId, directory: str) -> None:
        """Remove the files of a partition whose log was refused when it was to be opened, or has failed."""
        self.checkpointer.forget_aside(group)
        self.removals.remove(directory, lambda: None)

    def expect(self, done: Callable[[], None]) -> int:
        """Return a number for a command that is answered with ``Done``; ``done`` is called then."""
        number = self._next_expected
        self._next_expected += 1
        self._expected[number] = done
        return number

    def forget(self, log: Log) -> None:
        """The log is no more; what is under way for it is void."""
        log.close_range()
        log.closed = True
        log.on_durable = log.on_trimmed = None
        self.logs.pop(log.group, None)
        self.dirty_logs.pop(log, None)
        self._space.written(log)
        self.checkpointer.keep_note(log, keep=False)
        self._partitions.add(-1)
        self.compaction.forget(log)
        self.housekeeping.forget(log)
        log.behind.abandon()
        ranges = log.cache.clear()

        def release() -> None:
            for one in ranges:
                self.memory.give_back(one)

        # A frame under way may still be read from these ranges.
        self.wal.when_durable(release)

    # -- checkpoint and stop -------------------------------------------------------------------------------------------

    def checkpoint(self, done: Callable[[], None]) -> None:
        """Make everything durable so far durable in the segments, and free the write-ahead log; ``done`` when it is."""
        self.checkpointer.request(done)

    def stop(self, done: Callable[[], None]) -> None:
        """Bring everything into the segments, leave a summary, end the helpers; ``done`` when they have ended.

        The caller has stopped appending. With a full disk this may not be possible; then the stop is as after a
        crash, and the next start replays the write-ahead log.
        """
        self.stopping = True
        self._staged.stop()
        self.inspections.stop()
        finish = partial(self.checkpointer.request, lambda: self._stopped(done))
        self.compaction.stop(lambda: self.wal.when_durable(finish))

    def _stopped(self, done: Callable[[], None]) -> None:
        if not self.wal.idle or self.dirty_logs or self.checkpointer.changing:
            # Something was appended after all (an offset commit that was under way), or files are still being cut.
            self.wal.when_durable(lambda: self.checkpointer.request(lambda: self._stopped(done)))
            return
        self._stop_done = done
        self.wal.close()
        self.cold_reads.stop()
        self.timestamps.stop()
        self.event_reads.stop()
        self.removals.stop()
        self._processes.stop_worker()

    def _process_ended(self, name: str, status: ExitStatus | None) -> None:
        if not self.stopping or not self.wal.closed or (status is not None and status.code):
            self.reactor.stop(EXIT_CHILD, f"{name} {status}")
            return
        self._ended += 1
        if self._ended == self._processes.count:
            self._processes.detach()
            self._leave_summary()
            if self._stop_done is not None:
                self._stop_done()

    def _leave_summary(self) -> None:
        if self.removals.pending:
            # After a clean stop nobody would look for it.
            operator_log.warning("files of deleted topics are left: the next start removes them and looks at each log")
            return
        if self.checkpointer.sets_aside:
            operator_log.warning("a partition failed while the shard stopped: the next start replays the log")
            return
        leave_summaries(self.disk, self.wal_directory, self.wal, self.term, self.logs.values())

    # -- the write-ahead log -------------------------------------------------------------------------------------------

    def _landed(self) -> None:
        """Called after every tick: begin a checkpoint, or check the disk, if it is time."""
        self.memory.show()
        self.checkpointer.look()
        if not self._checkpoint_timer:
            self._checkpoint_timer = True
            self.reactor.call_later(self.settings.checkpoint_ms * 1000, self._checkpoint_due)
        self._space.look_later()

    def _checkpoint_due(self) -> None:
        self._checkpoint_timer = False
        if self.dirty_logs and not self.wal.closed:
            self.checkpointer.due()

    def _wal_full(self) -> None:
        if self.checkpointer.running or self.checkpointer.would_free:
            self.checkpointer.request()

    def _prepared(self, reply: Prepared) -> None:
        if not reply.errno:
            self.wal.file_ready(reply.number)
        elif reply.errno in FULL:
            self.wal.files.refused()
            self.disk_full(reply.errno)
        else:
            self.fail(f"a file for the write-ahead log could not be made: {os.strerror(reply.errno)}")

    def fail(self, reason: str) -> None:
        """Stop the shard, because the state of the disk is unknown."""
        synced = "sync" in reason or "durable" in reason
        self.stats.counter("storage_faults", kind="sync_error" if synced else "write_error").inc()
        self.reactor.stop(EXIT_STORAGE, reason)

    # -- the worker ----------------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a command to the worker; it leaves at the end of the turn."""
        self._processes.send(command)

    def _hearers(self) -> dict[type[Reply], Callable[[Any], None]]:
        return {
            Written: self._written,
            ReadDone: self.cold_reads.finished,
            Checkpointed: self.checkpointer.finished,
            Found: self.timestamps.finished,
            EventsFed: self.event_reads.finished,
            DataFetched: self.event_reads.finished,
            Inspected: self.inspections.finished,
            Prepared: self._prepared,
            KeysGathered: self.compaction.gathered,
            Rewritten: self.compaction.rewritten,
            RewrittenPut: self.compaction.put,
            Done: lambda reply: self._expected.pop(reply.id)(),
            Removed: self.removals.finished,
            Staged: self._staged.finished,
            Resumed: self._staged.resumed,
            Failed: lambda reply: self.fail(reply.reason),
            Broke: self._broke,
        }

    def replied(self, reply: Reply) -> None:
        """Hand a reply of the worker to its handler."""
        self._hears[type(reply)](reply)

    def _written(self, reply: Written) -> None:
        log = self.logs.get(reply.group)
        if log is not None:
            if not reply.errno:
                self._space.written(log)
            log.guard("write behind", log.behind.written, reply.errno, reply.bytes)

    def _broke(self, reply: Broke) -> None:
        """A helper has met in a command about one log what no command meets."""
        fault = HelperFault(reply.what)
        if reply.group >= 0:
            log = self.logs.get(reply.group)
            if log is not None:
                log.guard(reply.verb, raise_fault, fault)
            return
        reads = {READ: self.cold_reads, LOOK_UP: self.timestamps, EVENT_READ: self.event_reads}
        reads[reply.verb].broke(reply, fault)

    # -- space ---------------------------------------------------------------------------------------------------------

    def write_refused(self, log: OpenLog, errno: int) -> None:
        """A segment write found the disk full: it is tried again once a second."""
        self._space.write_refused(log, os.strerror(errno))

    def disk_full(self, errno: int) -> None:
        """The disk said that it is full."""
        self._space.disk_full(os.strerror(errno))

    # -- what logs tell ------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Wall clock."""
        return self.reactor.wall_ms()

    def rolled(self, log: OpenLog) -> None:
        """A segment was sealed."""
        self._rolled.inc()
        self.changed(log)

    def changed(self, log: OpenLog) -> None:
        """The next checkpoint has to look at a log."""
        if not log.dirty and not log.closed:
            log.dirty = True
            self.dirty_logs[log] = None

    def change_files(self, log: OpenLog, command: Callable[[int], Command]) -> None:
        """Have files of a log changed; the note that stands for it in the write-ahead log is needed until that is
        durable.
        """

        def carried_out() -> None:
            self.checkpointer.change_made(number)
            self.changed(log)  # not durable yet: one more checkpoint has to come

        number = self.expect(carried_out)
        self.checkpointer.wait_for_change(number)
        self.send(command(number))

    def keep_note(self, log: OpenLog, *, keep: bool) -> None:
        """Keep the note of a cut that was just added, until the changes of its files are ordered."""
        self.checkpointer.keep_note(log, keep=keep)

    def when_files_rest(self, log: OpenLog, callback: Callable[[], None]) -> None:
        """Call back when the cleaner does nothing with the log: at once, or after it has given up its work."""
        self.compaction.when_idle(log, callback)

    def when_no_checkpoint(self, callback: Callable[[], None]) -> None:
        """Call back when no checkpoint is on its way to the disk: at once, or when this one is over."""
        self.checkpointer.when_idle(callback)

    def segment_began(self, log: OpenLog, segment: Segment) -> None:
        """A segment got its first batch."""
        self.housekeeping.segment_began(log, segment)

    def segments_dropped(self, log: OpenLog, dropped: list[Segment]) -> None:
        """Segments were trimmed."""
        _ = log
        self._deleted.inc(len(dropped))

    def count_written(self, count: int) -> None:
        """Bytes went into a segment."""
        self._written_bytes.inc(count)
