"""Compaction of a shard's logs, one at a time: finds the dirtiest, has the cleaner rewrite it, takes over the result.

::

    look ──► checkpoint ──► gather keys ──► rewrite a merge ──► put ──► take over ──► … ──► end
    every log.cleaner.backoff.ms          └───── for each merge of segments ─────┘

Before anything is read, a checkpoint has put the segments and their indexes on the disk and made void what the
write-ahead log holds of them, so recovery never replays into a file that compaction made. It has saved the producers,
too: of a producer's batches compaction leaves the last, while he may ask again for any of his last five. While the
cleaner works, the log can be appended to, read, trimmed and deleted. A result is taken over only if the segments it was
made of are still the log's; from the moment when the file is to get its name until the reactor knows that it has, no
segment is dropped (``Log.replacing``). Taking over is one step on the reactor: the new segment is in the list, the old
ones' ranges are out of the cache. Old files go ``file.delete.delay.ms`` later, when no read of them can be running.

Of a transaction the marker goes last, in two passes at least. One pass finds that no batch of the transaction is left,
notes a delete horizon in the marker's batch, and drops an aborted transaction from the partition's list. The snapshot
of producers at the start of the next pass makes that durable. Only then, and after ``delete.retention.ms``, is the
marker removed: neither a reader nor a restart ever finds an aborted transaction listed whose marker was removed.

What can go wrong: a damaged batch, or a file that cannot be read, makes the partition *uncleanable* until the broker
starts again, with one line in the log. The partition is served, and none of its files is changed. A full disk ends the
pass, the next round tries again. A sync that failed stops the shard. Records are never lost to a crash: see
``storage.compaction.cleaner``.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from millstream.core.compaction import Rules, dirtiest, group_segments, segments_to_rewrite, stretch_of
from millstream.core.key_map import SLOT_BYTES
from millstream.format.epochs import epochs_between
from millstream.model.quantities import BytePosition, Offset
from millstream.storage.compaction.inputs import aborted_in, facts_of, source_of, target_of
from millstream.storage.disk import FULL, DiskFault
from millstream.storage.log.cutting import drop_segments
from millstream.storage.log.segment_list import Segment
from millstream.storage.messages.commands import (
    Done,
    EndPass,
    GatherKeys,
    Interrupt,
    KeysGathered,
    PutRewritten,
    Remove,
    Rewrite,
    Rewritten,
    RewrittenPut,
)
from millstream.storage.segments.read_faults import HelperFault, raise_fault
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.config.settings import Settings
    from millstream.core.compaction import Stretch
    from millstream.shard.reactor import Reactor
    from millstream.shard.timers import Timer
    from millstream.storage.log.cache import CacheMemory
    from millstream.storage.log.log import Log
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.shard_reads import ShardReads
    from millstream.storage.messages.commands import WorkerLink
    from millstream.storage.wal.wal import Wal
    from millstream.telemetry.metrics import StatsSlab

R = TypeVar("R", KeysGathered, Rewritten, RewrittenPut)

_SHARE: Final = 0.05
_SLICE_LOGS: Final = 64
"""Maximum number of logs that one slice skips. Examining a log takes a slice of its own."""


class CompactionHost(Protocol):
    """What compaction needs of its shard's storage."""

    reactor: Reactor
    worker: WorkerLink
    settings: Settings
    stats: StatsSlab
    wal: Wal
    memory: CacheMemory
    reads: ShardReads

    @property
    def logs(self) -> dict[int, Log]:
        """The open logs."""
        ...

    @property
    def accepts_writes(self) -> bool:
        """Whether the disk has space."""
        ...

    def now_ms(self) -> int:
        """Wall clock."""
        ...

    def changed(self, log: OpenLog) -> None:
        """The next checkpoint has to cover the log."""
        ...

    def checkpoint(self, done: Callable[[], None]) -> None:
        """Make everything durable so far durable in the segments; ``done`` when it is."""
        ...

    def fail(self, fault: DiskFault, reason: str) -> None:
        """Stop the shard."""
        ...


class _Merge:
    """Neighbouring segments of a log that become one."""

    __slots__ = ("new", "segments")

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.new: Segment | None = None
        """What they became, once the cleaner has written it."""


class _Totals:
    """What a pass has done so far, for its line in the log."""

    __slots__ = ("after_bytes", "before_bytes", "records", "removed_records")

    def __init__(self) -> None:
        self.before_bytes = 0
        self.after_bytes = 0
        self.records = 0
        self.removed_records = 0


class _Meters:
    """What the metrics say of compaction on one shard."""

    __slots__ = (
        "_last_run",
        "_latency",
        "_removed_records",
        "_runs",
        "cleaned_bytes",
        "dirty_percent",
        "read_bytes",
        "uncleanable",
    )

    def __init__(self, stats: StatsSlab) -> None:
        self._runs = stats.counter("log_cleaner_runs")
        self._latency = stats.histogram("log_cleaner_run_latency")
        self._removed_records = stats.counter("log_cleaner_removed_records")
        self._last_run = stats.gauge("log_cleaner_last_run")
        self.read_bytes = stats.counter("log_cleaner_read_bytes")
        self.cleaned_bytes = stats.counter("log_cleaner_cleaned_bytes")
        self.dirty_percent = stats.gauge("log_cleaner_max_dirty_percent")
        self.uncleanable = stats.gauge("log_cleaner_uncleanable_partitions")

    def finished(self, took_us: int, removed_records: int, now_ms: int) -> None:
        """A pass over one log is done."""
        self._runs.inc()
        self._latency.observe(took_us)
        self._removed_records.inc(removed_records)
        self._last_run.set(now_ms // 1000)


class _Run:
    """One pass over one log."""

    def __init__(self, log: Log, stretch: Stretch, begun_us: int) -> None:
        self.log = log
        self.stretch = stretch
        self.begun_us = begun_us
        self.generation = log.ends.generation
        self.start_offset = log.ends.durable_start
        self.end_offset = Offset(0)
        self.merges: list[list[Segment]] = []
        self.merge = _Merge([])
        self.producers: dict[int, int] = {}
        self.marked: dict[int, int] = {}
        self.emptied: list[int] = []
        self.totals = _Totals()


class _Replaced:
    """Files of segments that were replaced."""

    __slots__ = ("log", "paths")

    def __init__(self, log: Log, paths: list[str]) -> None:
        self.log = log
        self.paths = paths


class Compaction:
    """Chooses the logs of a shard to compact, and hands them to the cleaner. One per shard, on its reactor."""

    def __init__(self, storage: CompactionHost, shards: int) -> None:
        self._storage = storage
        self._shards = shards
        self._enabled: bool = storage.settings.log_cleaner_enable
        self.follow(storage.settings)
        self._run: _Run | None = None
        self._awaited = False  # the cleaner has yet to reply
        self._stopping = False
        self._uncleanable: set[int] = set()
        self._when_idle: list[Callable[[], None]] = []
        self._old: dict[_Replaced, Timer] = {}
        self._meters = _Meters(storage.stats)
        if self._enabled:
            storage.reactor.call_later(self._backoff_us, self.look)

    def follow(self, settings: Settings) -> None:
        """Take over settings that changed. They bound the next pass; a wait that has started continues unchanged."""
        self._backoff_us: int = settings.log_cleaner_backoff_ms * 1000
        self._load_percent = int(settings.log_cleaner_io_buffer_load_factor * 100)
        self._buffer_bytes: int = max(settings.log_cleaner_dedupe_buffer_size // self._shards, 2 * SLOT_BYTES)
        self._bytes_per_second: float = settings.log_cleaner_io_max_bytes_per_second / self._shards
        self._cpu_percent: int = settings.log_cleaner_cpu_percent

    # -- which log -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at all logs, in slices; compact the dirtiest if it is due."""
        if self._stopping or self._run is not None:
            return
        found: list[tuple[Log, Stretch]] = []

        def finished() -> None:
            if self._stopping:
                return
            self._meters.dirty_percent.set(max((int(stretch.ratio * 100) for _, stretch in found), default=0))
            found[:] = [(log, stretch) for log, stretch in found if not log.closed]
            chosen = dirtiest([(stretch, log.config.min_cleanable_dirty_ratio) for log, stretch in found])
            if chosen is None or not self._storage.accepts_writes:
                self._storage.reactor.call_later(self._backoff_us, self.look)
            else:
                log, stretch = found[chosen]
                self._guarded(log, self._begin, log, stretch)

        self._storage.reactor.background("compaction", self._look_at_all(found), _SHARE, finished)

    def _look_at_all(self, found: list[tuple[Log, Stretch]]) -> Generator[None, None, None]:
        for count, log in enumerate(list(self._storage.logs.values())):
            examined = True
            try:
                examined = self._look_at(log, found)
            except Exception as error:  # noqa: BLE001 - the boundary
                log.failed("compaction", error)
            if examined or count % _SLICE_LOGS == 0:
                yield

    def _look_at(self, log: Log, found: list[tuple[Log, Stretch]]) -> bool:
        """Whether a log may be compacted; ``found`` gets it if there is anything in it."""
        if log.closed or log.ends.cutting or not self.compacts(log) or log.group in self._uncleanable:
            return False
        drop_segments(log)  # a crash may have come between a trim and its deed
        stretch = self.stretch(log)
        if stretch.clean_bytes + stretch.dirty_bytes:
            found.append((log, stretch))
        return True

    @staticmethod
    def compacts(log: Log) -> bool:
        """Whether this log's topic is compacted."""
        return log.group != 0 and "compact" in log.config.cleanup_policy

    def stretch(self, log: Log) -> Stretch:
        """The part of a log that can be compacted now."""
        config = log.config
        return stretch_of(
            facts_of(log, self._storage.now_ms()),
            clean_offset=log.files.clean_offset,
            start_offset=log.ends.durable_start,
            stable_offset=log.stable_offset,
            now_ms=self._storage.now_ms(),
            rules=Rules(config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms),
        )

    # -- a pass --------------------------------------------------------------------------------------------------------

    def _begin(self, log: Log, stretch: Stretch) -> None:
        """Bring everything that will be read into the segments, and free it from the write-ahead log."""
        storage = self._storage
        run = self._run = _Run(log, stretch, storage.reactor.now_us())
        written = storage.wal.durable_sequence
        log.files.snapshots.wanted = True
        storage.changed(log)
        # A snapshot says nothing after a crash that takes what it was taken of.
        gather = partial(self._guarded, log, self._gather, run, written)
        storage.checkpoint(lambda: storage.wal.when_durable(gather))

    def _gather(self, run: _Run, written: int) -> None:
        if self._run is not run:
            return  # it was given up
        log, end, storage = run.log, run.stretch.end_offset, self._storage
        segments = [one for one in log.files.segments.all() if one.sealed and one.base_offset < end]
        if self._is_void(run) or storage.wal.needed_sequence <= written or not segments:
            # A note in the write-ahead log still stands for a change of files, and holds older frames with it.
            self._end(run, again=False)
            return
        if any(one.end > log.ends.written_position or one in log.files.rolled for one in segments):
            raise AssertionError(f"{log.name}: a checkpoint left something of offsets below {end}")
        first = run.stretch.first_dirty_offset
        room = (end - first) * 100 // self._load_percent + 2
        self._ask(
            GatherKeys(
                storage.worker.next_id(),
                [source_of(one) for one in segments if one.end_offset > first],
                Offset(first),
                min(self._buffer_bytes, room * SLOT_BYTES),
                self._load_percent,
                self._bytes_per_second,
                self._cpu_percent,
                aborted_in(log, Offset(end)),
            ),
            KeysGathered,
            self._gathered,
        )

    def _gathered(self, run: _Run, reply: KeysGathered) -> None:
        self._meters.read_bytes.inc(reply.bytes)
        if self._failed(run, reply.errno, reply.fault):
            return
        if reply.end_offset <= run.stretch.first_dirty_offset:
            self._give_up(run, "log.cleaner.dedupe.buffer.size has no room for the keys of one batch")
            return
        run.end_offset = Offset(reply.end_offset)
        if run.log.owner.active_producers is not None:
            run.producers = run.log.owner.active_producers()
        if run.log.owner.producers is not None:
            run.marked = run.log.owner.producers.marked_epochs()
        facts = facts_of(run.log, self._storage.now_ms())
        segments = run.log.files.segments.all()[: segments_to_rewrite(facts, reply.end_offset)]
        place = 0
        for count in group_segments(facts[: len(segments)], run.log.sizes.segment_bytes):
            run.merges.append(segments[place : place + count])
            place += count

        def durable() -> None:
            if self._run is run:  # else it was given up
                self._guarded(run.log, self._next_merge, run)

        # A producer's trace may go where a later batch of his follows, and that one has to survive a crash.
        self._storage.wal.when_durable(durable)

    def _next_merge(self, run: _Run) -> None:
        log = run.log
        if self._is_void(run):
            self._end(run, again=False)
            return
        while run.merges:
            run.merge = _Merge([one for one in run.merges.pop(0) if not one.dead])  # the log may have been trimmed
            if run.merge.segments:
                break
        else:
            self._finish(run)
            return
        config = log.config
        start, end = run.merge.segments[0].base_offset, run.merge.segments[-1].end_offset
        path, generation = target_of(run.merge.segments)
        self._ask(
            Rewrite(
                self._storage.worker.next_id(),
                [source_of(one) for one in run.merge.segments],
                path,
                start,
                generation,
                run.merge.segments[-1].created_ms,
                log.sizes.index_interval,
                self._storage.now_ms(),
                config.delete_retention_ms,
                {number: offset for number, offset in run.producers.items() if start <= offset < end},
                aborted_in(log, run.end_offset),
                run.marked,
                epochs_between(log.raft.epochs, start, end),
            ),
            Rewritten,
            self._rewritten,
        )

    def _rewritten(self, run: _Run, reply: Rewritten) -> None:
        self._meters.read_bytes.inc(reply.read_bytes)
        if self._failed(run, reply.errno, reply.fault):
            return
        path, _ = target_of(run.merge.segments)
        if self._is_void(run):
            self._end(run, again=False, path=path)
        elif any(one.dead for one in run.merge.segments):
            self._storage.worker.send(EndPass(path))  # trimmed in the meantime: the next pass compacts the rest
            self._end(run, again=True)
        else:
            assert reply.summary is not None
            summary = reply.summary
            run.log.files.replacing = True
            run.totals.records += reply.records
            run.totals.removed_records += reply.gone
            run.emptied += reply.emptied
            run.totals.before_bytes += sum(one.size_bytes for one in run.merge.segments)
            run.totals.after_bytes += summary.size_bytes
            # Its place in the stream is given to it with its place in the list.
            run.merge.new = Segment.of(run.log.directory, summary, BytePosition(0), run.log.sizes.index_interval)
            self._ask(PutRewritten(self._storage.worker.next_id(), path), RewrittenPut, self._put)

    def _put(self, run: _Run, reply: RewrittenPut) -> None:
        run.log.files.replacing = False
        if reply.fault:
            raise HelperFault(f"{reply.fault} in a helper process")
        if reply.errno in FULL and not reply.named:
            drop_segments(run.log)  # a trim may have waited for this
            self._storage.worker.send(EndPass(target_of(run.merge.segments)[0]))
            self._failed(run, reply.errno, "")
            return
        if reply.errno and not run.log.closed:
            assert run.merge.new is not None
            what = f"{run.log.name}: {run.merge.new.path} could not be synced: {os.strerror(reply.errno)}"
            self._storage.fail(DiskFault.SYNC, what)
            return
        self._take_over(run)

    def _take_over(self, run: _Run) -> None:
        log, new = run.log, run.merge.new
        assert new is not None
        if log.closed:
            self._end(run, again=False)
            return
        old = run.merge.segments
        for segment in old:
            segment.dead = True
        # Out of the cache, and with them what was trimmed before; all of it is written.
        while (oldest := log.cache.oldest) is not None and oldest.segment.dead:
            log.forget_oldest(oldest)
            self._storage.memory.give_back(oldest)
        log.files.segments.replace(old, new)
        self._remove_later(log, [one.path for one in old])
        self._meters.cleaned_bytes.inc(new.size_bytes)
        drop_segments(log)  # a trim may have waited for this
        self._next_merge(run)

    def _finish(self, run: _Run) -> None:
        """Everything was rewritten: the log is clean up to that offset."""
        log, storage = run.log, self._storage
        log.files.clean_offset = run.end_offset
        if log.owner.producers is not None:
            log.owner.producers.transactions.forget(run.emptied)
        log.files.state_dirty = True
        storage.changed(log)
        took_us = storage.reactor.now_us() - run.begun_us
        self._meters.finished(took_us, run.totals.removed_records, storage.now_ms())
        operator_log.at(log.name).info(
            "compacted up to offset %d: %d bytes became %d, %d records kept, %d removed, in %d ms",
            run.end_offset,
            run.totals.before_bytes,
            run.totals.after_bytes,
            run.totals.records,
            run.totals.removed_records,
            took_us // 1000,
        )
        self._end(run, again=True)

    def _end(self, run: _Run, *, again: bool, path: str = "") -> None:
        """The pass is over. Look for another log now, or later."""
        assert self._run is run
        self._run = None
        self._storage.worker.send(EndPass(path))
        idle, self._when_idle = self._when_idle, []
        for callback in idle:
            callback()
        if not self._stopping:
            self._storage.reactor.call_later(0 if again else self._backoff_us, self.look)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _guarded(self, log: Log, step: Callable[..., None], *arguments: object) -> None:
        """A step of a pass, behind the boundary of its log: if it fails, the pass is over."""
        log.guard("compaction", step, *arguments)
        run = self._run
        if log.closed and run is not None and run.log is log and not self._awaited:
            self._end(run, again=True)

    def _is_void(self, run: _Run) -> bool:
        return run.log.closed or self._stopping or run.log.ends.generation != run.generation or run.log.ends.cutting

    def _failed(self, run: _Run, number: int, fault: str) -> bool:
        """Whether the cleaner failed; the pass is over then."""
        log = run.log
        gone = log.closed or (number == errno.ENOENT and log.ends.durable_start > run.start_offset)
        if fault and not gone:
            self._give_up(run, fault)
        elif fault or number:
            if number != errno.ECANCELED and not gone:
                where = operator_log.at(log.name)
                tail = "tried again later" if number in FULL else "the partition is left as it is for now"
                where.warning("not compacted: %s; %s", os.strerror(number), tail)
            self._end(run, again=False)
        return bool(fault or number)

    def _give_up(self, run: _Run, reason: str) -> None:
        log = run.log
        self._uncleanable.add(log.group)
        self._meters.uncleanable.set(len(self._uncleanable))
        operator_log.at(log.name).error("not compacted until the next start: %s", reason)
        self._end(run, again=True)

    # -- conversation --------------------------------------------------------------------------------------------------

    def _ask(
        self, command: GatherKeys | Rewrite | PutRewritten, kind: type[R], step: Callable[[_Run, R], None]
    ) -> None:
        """Send a command of the current pass to the cleaner. ``step`` is called with the reply, behind the boundary."""

        def answered(reply: R) -> None:
            run = self._run
            if run is None:
                raise AssertionError("the cleaner answers, and there is no pass")
            self._awaited = False
            self._guarded(run.log, step, run, reply)

        self._awaited = True
        self._storage.worker.ask(command, kind, answered, raise_fault)

    # -- old files, closing, stopping ----------------------------------------------------------------------------------

    def _remove_later(self, log: Log, paths: list[str]) -> None:
        old = _Replaced(log, paths)
        delay_us = log.config.file_delete_delay_ms * 1000
        self._old[old] = self._storage.reactor.call_later(delay_us, lambda: self._remove_now(old))

    def _remove_now(self, old: _Replaced) -> None:
        self._old.pop(old).cancel()
        worker = self._storage.worker
        failed = partial(old.log.guard, "removal of segments", raise_fault)
        for path in old.paths:
            self._storage.reads.pages.forget(path)
        worker.ask(Remove(worker.next_id(), old.paths), Done, _nothing, failed)

    @property
    def is_busy(self) -> bool:
        """Whether a pass is running."""
        return self._run is not None

    def forget(self, log: OpenLog) -> None:
        """A log is closed."""
        self._uncleanable.discard(log.group)
        self._meters.uncleanable.set(len(self._uncleanable))

    def when_idle(self, log: OpenLog | None, callback: Callable[[], None]) -> None:
        """Call back when the cleaner does nothing with a log (or any): at once, or when what it does is given up."""
        run = self._run
        if run is None or (log is not None and run.log is not log):
            callback()
            return
        self._when_idle.append(callback)
        if self._awaited:
            self._storage.worker.send(Interrupt())
        else:
            self._end(run, again=False)  # it waits for a checkpoint, which a full disk may hold up for long

    def stop(self, done: Callable[[], None]) -> None:
        """Start nothing more, cancel the running pass, remove superfluous files; then call ``done``."""
        self._stopping = True

        def idle() -> None:
            for old in list(self._old):
                self._remove_now(old)
            done()

        self.when_idle(None, idle)


def _nothing(_: Done) -> None:
    """Callback of a removal whose end is not awaited."""
