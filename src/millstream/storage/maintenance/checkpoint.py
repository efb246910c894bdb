"""Checkpoints: segments made durable, so that the write-ahead log's frames are void and their files can be used again.

::

    mark    every log that changed: how far it is durable, summaries of its segments, its state      (in slices)
    write   each log's bytes up to its mark into its segments                             (in slices, spread over time)
    sync    the worker: segments, index blocks, small files, directories, and last the WAL's state files
    free    WAL files of which every frame is older than the marks

A frame is void only when the ``state`` files say so durably, and they are written after everything else: a crash
anywhere before repeats the replay, which is harmless. A mark is what was durable when some tick was closed, to the
byte and with the timestamps of that moment, so nothing here waits for the write-ahead log: a full one is exactly what
a checkpoint has to help.

A hundred logs of which each gathered most of a megabyte would be a hundred megabytes at once, and every write to the
write-ahead log would wait behind them. So there is a schedule: at least ``_BYTES_PER_S``, and everything is written by
the time that the write-ahead log has grown by half of what makes the next checkpoint due. What comes after the writes
is spread, too (``storage.throttle``). Nothing is spread once that time has come (``hurry``), or if anybody waits: a
caller that asked for the end, a full log, the next checkpoint.

A full disk fails a checkpoint, not the shard: its marks are taken again by the next one, which ``ShardStorage`` tries
every second. When the write-ahead log is full and a checkpoint has nothing to make void (the disk has no room for its
first file), another would not either, and none follows. A failed sync ends the shard. One checkpoint runs at a time;
requests during one are answered by the next. Of a log that failed nothing is written: before its frames are
void, its records are copied to a file of its own (``recovery.set_aside``). An unexpected exception of a file of one log
fails that log: this checkpoint makes nothing void, and the next one starts at once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from millstream.format.epochs import encode_log_state
from millstream.format.names import EPOCHS_FILE, PRODUCERS_SUFFIX, offset_name
from millstream.format.producers import encode_producers
from millstream.format.wal import FrameSequence, WalState, encode_wal_state
from millstream.model.quantities import Offset
from millstream.storage.disk import DiskFault
from millstream.storage.messages.commands import Checkpoint, Checkpointed, Hurry
from millstream.storage.segments.read_faults import raise_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.config.settings import Settings
    from millstream.format.index import SegmentSummary
    from millstream.helper.link import CallId
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import Term
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.messages.commands import WorkerLink
    from millstream.storage.wal.wal import Wal
    from millstream.telemetry.metrics import StatsSlab

_SHARE: Final = 0.3
"""Share of the core for marking and writing while there is other work."""

_BYTES_PER_S: Final = 16 * 1024 * 1024
"""Minimum rate of writing, so that a crash has little to replay once producers pause: 128 MiB in eight seconds."""

_STEP_US: Final = 10_000
"""Interval between two checks of the schedule."""

_PART_SEGMENTS: Final = 500
"""Maximum number of segments named in one message."""

SNAPSHOT_BYTES: Final = 64 * 1024
"""Maximum bytes of a log that a start replays to rebuild its producers. A checkpoint saves the producers after that
many bytes.
"""

_SNAPSHOT_FILES: Final = 2
"""Snapshots kept of each log: if the newest does not verify, the one before is used."""


class CheckpointHost(Protocol):
    """What checkpoints need of their shard's storage."""

    reactor: Reactor
    worker: WorkerLink
    stats: StatsSlab
    settings: Settings
    wal: Wal
    term: Term
    """Stored in the write-ahead log's ``state`` file."""

    @property
    def dirty_logs(self) -> dict[OpenLog, None]:
        """Logs that changed, in the order in which they did."""
        ...

    def fail(self, fault: DiskFault, reason: str) -> None:
        """Stop the shard."""
        ...

    def disk_full(self, errno: int) -> None:
        """The disk said that it is full."""
        ...

    def log_broke(self, log: OpenLog, verb: str, what: str) -> None:
        """The worker met ``what`` in a verb of a log, which fails."""
        ...


class _LogCapture:
    """One log as it was when the checkpoint captured it."""

    __slots__ = ("files", "generation", "log", "old", "position", "rolled", "segments", "snapshot", "state")

    def __init__(self, log: OpenLog, snapshot_bytes: int) -> None:
        self.log = log
        end = log.ends.durable
        self.position = end.position
        self.rolled = [one for one in log.files.rolled if one.end <= end.position]
        log.files.rolled = [one for one in log.files.rolled if one.end > end.position]
        self.segments: list[tuple[Segment, SegmentSummary]] = [(one, one.summary()) for one in self.rolled]
        segment = end.segment
        if end.position > segment.stream and segment not in self.rolled and not segment.dead:
            self.segments.append((segment, end.summary()))
        self.files: list[tuple[str, bytes]] = []
        self.old: list[int] = []
        """Offsets of snapshots whose files are removed when this one is there."""

        self.generation = log.ends.generation
        self.state = log.files.state_dirty
        self.snapshot = False
        if self.state:
            self.files.append((f"{log.directory}/{EPOCHS_FILE}", encode_log_state(log.durable_state())))
        snapshots = log.files.snapshots
        if snapshots.wanted or self.position - snapshots.position >= snapshot_bytes:
            self.add_snapshot()

    @property
    def unwritten(self) -> int:
        """Bytes up to the mark that are not in the segments yet."""
        return max(0, self.position - self.log.ends.written_position)

    def add_snapshot(self) -> None:
        """Save the producers as of the mark."""
        log = self.log
        data = None if log.owner.producer_snapshot is None else log.owner.producer_snapshot()
        if data is not None:
            offset = log.snapshot_offset
            log.files.snapshots.note(offset, data)
            name = offset_name(offset, PRODUCERS_SUFFIX)
            self.files.append((f"{log.directory}/{name}", encode_producers(offset, data)))
        log.files.snapshots.position = self.position
        log.files.snapshots.wanted = False
        self.snapshot = True
        self.old = log.files.snapshots.files[:-_SNAPSHOT_FILES]

    @property
    def remove(self) -> list[str]:
        """Files that are not needed once this checkpoint is durable."""
        return [f"{self.log.directory}/{offset_name(Offset(one), PRODUCERS_SUFFIX)}" for one in self.old]

    def give_back(self) -> None:
        """The checkpoint failed: what was marked is still to be done."""
        log = self.log
        # Not what a cut of the log's end made active again.
        log.files.rolled = [
            one for one in self.rolled if one.sealed and not one.dead and one not in log.files.rolled
        ] + log.files.rolled
        log.files.state_dirty = log.files.state_dirty or self.state
        log.files.snapshots.wanted = log.files.snapshots.wanted or self.snapshot


class Change:
    """A change of files for which the write-ahead log has a note in frame ``sequence``, or in a later one."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: FrameSequence) -> None:
        self.sequence = sequence


class FileChanges:
    """Changes of files that the worker has yet to make. The write-ahead log must keep the notes that stand for them."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._changes: set[Change] = set()
        self._cuts: dict[OpenLog, FrameSequence] = {}
        """Logs whose end is being cut, and a frame at or before the one with the note."""

    def __bool__(self) -> bool:
        return bool(self._changes or self._cuts)

    def wait(self) -> Change:
        """A note is durable that stands for a change of files until ``made``."""
        change = Change(min([self._wal.durable_sequence, *self._cuts.values()]))
        self._changes.add(change)
        return change

    def made(self, change: Change) -> None:
        """The files have the change, perhaps not durably; the next checkpoint syncs them."""
        self._changes.remove(change)

    def keep_note(self, log: OpenLog, *, keep: bool) -> None:
        """The note of a cut of the log's end was just added: no checkpoint makes it void until this is called again. By
        then the log shows the cut, and ``wait`` was called for what is left to do to its files.
        """
        if keep:
            self._cuts[log] = FrameSequence(self._wal.durable_sequence + 1)
        else:
            self._cuts.pop(log, None)

    def last_void(self) -> FrameSequence:
        """The last frame that a checkpoint may make void."""
        needed = [*(change.sequence for change in self._changes), *self._cuts.values()]
        return FrameSequence(min([self._wal.durable_sequence, *(frame - 1 for frame in needed)]))


class FailedLogs:
    """Logs that failed. The next checkpoints move their records in the write-ahead log to ``quarantine`` files."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._logs: dict[RaftGroupId, tuple[str, FrameSequence]] = {}
        """By group: the directory, and the last frame that has something of the log."""
        self._sent: list[RaftGroupId] = []

    def __bool__(self) -> bool:
        return bool(self._logs)

    def __contains__(self, group: RaftGroupId) -> bool:
        return group in self._logs

    def add(self, log: OpenLog) -> None:
        """A log failed."""
        self._logs[log.group] = log.directory, FrameSequence(self._wal.last_sequence)

    def discard(self, group: RaftGroupId) -> None:
        """The files of a log that failed are removed."""
        self._logs.pop(group, None)

    def send(self) -> list[tuple[int, str]]:
        """Groups and directories for the worker's part of a checkpoint."""
        self._sent = list(self._logs)
        return [(group, directory) for group, (directory, _) in self._logs.items()]

    def moved(self, covered: FrameSequence) -> None:
        """A checkpoint that covers frames up to ``covered`` is durable."""
        for group in self._sent:
            if group in self._logs and self._logs[group][1] <= covered:
                del self._logs[group]


class _Pass:
    """One checkpoint, until the worker's reply."""

    def __init__(self, answering: list[Callable[[], None]], begun_us: int, *, hurry: bool) -> None:
        self.answering = answering
        """Callers that wait for its end."""
        self.begun_us = begun_us
        self.hurry = hurry
        self.captures: list[_LogCapture] = []
        self.number: CallId | None = None
        """Id of its last command; None until the worker has it."""
        self._unfinished = 0
        self._asked = 0
        self._asked_bytes = 0
        self._bytes = 0

    def captured(self) -> None:
        """All logs are captured."""
        self._unfinished = len(self.captures) + 1
        self._bytes = sum(capture.unwritten for capture in self.captures)

    def next_capture(self, due_bytes: int) -> _LogCapture | None:
        """The next log to write; None if ``due_bytes`` were requested, or all logs."""
        if self.all_asked or not (self.hurry or self._asked_bytes <= due_bytes):
            return None
        capture = self.captures[self._asked]
        self._asked += 1
        self._asked_bytes += capture.unwritten
        return capture

    @property
    def all_asked(self) -> bool:
        """Whether every log was requested to write."""
        return self._asked == len(self.captures)

    def written(self) -> bool:
        """One log, or the loop over all logs, is finished. Returns whether that was the last."""
        self._unfinished -= 1
        return not self._unfinished

    def due_bytes(self, now_us: int, grown_bytes: int, checkpoint_bytes: int) -> int:
        """The bytes that should have been requested by now. The write-ahead log has grown by ``grown_bytes``; the next
        checkpoint is due after ``checkpoint_bytes``.
        """
        by_growth = self._bytes * 2 * grown_bytes // checkpoint_bytes
        return max(by_growth, _BYTES_PER_S * (now_us - self.begun_us) // 1_000_000)

    def is_void(self) -> bool:
        """Whether the end of a log was cut since it was captured. Forgets logs that were closed."""
        self.captures = [capture for capture in self.captures if not capture.log.closed]
        return any(capture.generation != capture.log.ends.generation for capture in self.captures)


class _Once:
    """Calls back once, however often it is called."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class Checkpointer:
    """Runs checkpoints of one shard. ``request`` may be called at any time on the reactor."""

    def __init__(self, storage: CheckpointHost) -> None:
        self._storage = storage
        self.changes = FileChanges(storage.wal)
        self.failed_logs = FailedLogs(storage.wal)
        self._pass: _Pass | None = None
        self._waiting: list[Callable[[], None]] = []  # for the next checkpoint
        self._when_idle: list[Callable[[], None]] = []
        self._again = False
        self._timed = False  # a checkpoint by time is scheduled
        self._covered = FrameSequence(0)
        """The last frame that the newest checkpoint covers."""
        self._checkpoint_bytes = min(storage.settings.checkpoint_bytes, storage.settings.wal_bytes // 2)
        """A checkpoint is due when the write-ahead log has grown by this number of bytes."""
        self.snapshot_bytes = SNAPSHOT_BYTES
        self.refused = False
        """The last one found the disk full."""
        self._wal_bytes = 0
        """Bytes of the write-ahead log when the last checkpoint started."""
        self._count = storage.stats.counter("checkpoints")
        self._latency = storage.stats.histogram("checkpoint_latency")

    # -- when ----------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether a checkpoint is running."""
        return self._pass is not None

    def request(self, done: Callable[[], None] | None = None) -> None:
        """Run a checkpoint that covers everything durable now. ``done`` is called when it has ended."""
        if done is not None:
            self._waiting.append(done)
        if self._pass is not None:
            self._again = self._again or done is not None
            self.hurry()
            return
        self._begin()

    def _due(self) -> None:
        """Start a checkpoint, because ``checkpoint.ms`` have passed since a change."""
        self._timed = False
        if self._storage.dirty_logs and not self._storage.wal.closed:
            self._again = self._again or self.running
            self.request()

    def tick_landed(self) -> None:
        """Called after every tick: start a checkpoint, or hurry the running one, if it is time."""
        storage = self._storage
        grown = storage.wal.written_bytes - self._wal_bytes
        if 2 * grown >= self._checkpoint_bytes:
            self.hurry()
            if grown >= self._checkpoint_bytes:
                self.request()
        if not self._timed:
            self._timed = True
            storage.reactor.call_later(storage.settings.checkpoint_ms * 1000, self._due)

    def hurry(self) -> None:
        """Let the running checkpoint, if there is one, finish as soon as possible."""
        run = self._pass
        if run is not None and not run.hurry:
            run.hurry = True
            if run.number is not None:
                self._storage.worker.send(Hurry(run.number))

    @property
    def would_free(self) -> bool:
        """Whether frames became durable that the last checkpoint did not cover: one more would make them void."""
        return self._storage.wal.durable_sequence > self._covered

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back when no checkpoint is on its way to the disk: at once, or when this one has ended."""
        if self._pass is not None and self._pass.number is not None:
            self._when_idle.append(callback)
            self.hurry()
        else:
            callback()

    # -- a checkpoint --------------------------------------------------------------------------------------------------

    def _begin(self, *, hurry: bool = False) -> None:
        storage = self._storage
        self._again = False
        answering, self._waiting = self._waiting, []
        hurry = hurry or bool(answering) or storage.wal.full
        run = self._pass = _Pass(answering, storage.reactor.now_us(), hurry=hurry)
        self._covered = self.changes.last_void()
        self._wal_bytes = storage.wal.written_bytes
        logs = list(storage.dirty_logs)

        def captured() -> None:
            run.captured()
            self._write_due(run)

        storage.reactor.background("checkpoint", self._capture(run, logs), _SHARE, captured)

    def _capture(self, run: _Pass, logs: list[OpenLog]) -> Generator[None, None, None]:
        dirty = self._storage.dirty_logs
        for log in logs:
            dirty.pop(log, None)
            log.files.dirty = False
            if not log.closed:
                try:
                    run.captures.append(_LogCapture(log, self.snapshot_bytes))
                except Exception as error:  # noqa: BLE001 - the boundary
                    log.failed("checkpoint", error)
            yield

    def _write_due(self, run: _Pass) -> None:
        def wrote() -> None:
            if run.all_asked:
                self._written(run)
            else:
                self._storage.reactor.call_later(_STEP_US, lambda: self._write_due(run))

        self._storage.reactor.background("checkpoint", self._write(run), _SHARE, wrote)

    def _write(self, run: _Pass) -> Generator[None, None, None]:
        storage = self._storage
        grown = storage.wal.written_bytes - self._wal_bytes
        due = run.due_bytes(storage.reactor.now_us(), grown, self._checkpoint_bytes)
        while (capture := run.next_capture(due)) is not None:
            written = _Once(lambda: self._written(run))
            try:
                behind, durable = capture.log.behind, capture.log.ends.durable_position
                # Up to now, not to the mark: logs that were marked together would be full together.
                behind.write(durable)
                behind.when_written(min(capture.position, durable), written)
            except Exception as error:  # noqa: BLE001 - the boundary
                capture.log.failed("write behind", error)
                written()
            yield

    def _written(self, run: _Pass) -> None:
        """One log, or the loop over all logs, is finished."""
        if not run.written():
            return
        if run.is_void():
            self._give_back(run)
            self._begin(hurry=run.hurry)
        else:
            self._send(run)

    def _send(self, run: _Pass) -> None:
        """Have the worker make everything durable."""
        storage = self._storage
        number = run.number = storage.worker.next_id()
        segments: list[tuple[str, SegmentSummary]] = []
        files: list[tuple[str, bytes]] = []
        remove: list[str] = []
        for capture in run.captures:
            segments += [(one.path, summary) for one, summary in capture.segments if not one.dead]
            files += capture.files
            remove += capture.remove
            if len(segments) >= _PART_SEGMENTS:
                storage.worker.send(Checkpoint(number, segments, files, remove, last=False))
                segments, files, remove = [], [], []
        state = WalState(self._covered + 1, storage.wal.files.next_generation, term=storage.term)
        wal_state, aside = (storage.wal.files.directory, encode_wal_state(state)), self.failed_logs.send()
        last = Checkpoint(number, segments, files, remove, wal_state, throttled=not run.hurry, aside=aside)
        storage.worker.ask(last, Checkpointed, lambda reply: self._finished(run, reply), raise_fault)

    def _finished(self, run: _Pass, reply: Checkpointed) -> None:
        """The worker's reply."""
        storage = self._storage
        run.number = None
        if reply.errno and not reply.synced:
            storage.fail(DiskFault.SYNC, f"checkpoint: {reply.what}: {os.strerror(reply.errno)}")
            return
        self._pass = None
        self.refused = reply.errno != 0
        if reply.errno:
            self._give_back(run)
            self._now_idle()
            storage.disk_full(reply.errno)
        elif reply.broken:
            self._broke(run, dict(reply.broken))
        else:
            self._durable(run)

    def _durable(self, run: _Pass) -> None:
        storage = self._storage
        for capture in run.captures:
            if capture.old:  # of few of the thousands that there may be
                capture.log.guard("checkpoint", capture.log.files.snapshots.removed, capture.old)
        self.failed_logs.moved(self._covered)
        storage.wal.release(FrameSequence(self._covered + 1))
        self._count.inc()
        self._latency.observe(storage.reactor.now_us() - run.begun_us)
        for done in run.answering:
            done()
        self._now_idle()
        if (self._again or (storage.wal.full and self.would_free)) and not self.running:
            self._begin()

    def _broke(self, run: _Pass, broken: dict[str, str]) -> None:
        """Files of logs raised in the worker: these logs fail, and nothing is void yet. The next checkpoint takes the
        others again, and sets those aside.
        """
        for capture in run.captures:
            what = broken.get(capture.log.directory)
            if what is not None and not capture.log.closed:
                self._storage.log_broke(capture.log, "checkpoint", what)
        self._give_back(run)
        self._now_idle()
        if not self.running:
            self._begin(hurry=run.hurry)

    def _give_back(self, run: _Pass) -> None:
        """The checkpoint failed: the next one takes its logs again, and answers its callers."""
        for capture in run.captures:
            capture.give_back()
            if not capture.log.closed:
                capture.log.files.dirty = True
                self._storage.dirty_logs[capture.log] = None
        self._waiting = run.answering + self._waiting

    def _now_idle(self) -> None:
        idle, self._when_idle = self._when_idle, []
        for callback in idle:
            callback()
