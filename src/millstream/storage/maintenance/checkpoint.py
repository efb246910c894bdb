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
requests that come meanwhile are answered by the next. Of a log that failed nothing is written: before its frames are
void, its records are copied to a file of its own (``recovery.set_aside``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from millstream.format.epochs import encode_log_state
from millstream.format.names import EPOCHS_FILE, PRODUCERS_SUFFIX, offset_name
from millstream.format.producers import encode_producers
from millstream.format.wal import WalState, encode_wal_state
from millstream.model.quantities import Offset
from millstream.storage.messages.commands import Checkpoint, Hurry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.format.index import SegmentSummary
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import Term
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.messages.commands import Checkpointed, Command
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
    stats: StatsSlab
    wal: Wal
    wal_directory: str
    checkpoint_bytes: int
    """A checkpoint is due when the write-ahead log has grown by this number of bytes."""
    term: Term
    """Stored in the write-ahead log's ``state`` file."""
    dirty_logs: dict[OpenLog, None]
    """Logs that changed, in the order in which they did."""

    def send(self, command: Command) -> None:
        """Send a command to the worker."""
        ...

    def fail(self, reason: str) -> None:
        """Stop the shard."""
        ...

    def disk_full(self, errno: int) -> None:
        """The disk said that it is full."""
        ...


class _LogCapture:
    """One log as it was when the checkpoint captured it."""

    __slots__ = ("files", "generation", "log", "old", "position", "rolled", "segments", "snapshot", "state")

    def __init__(self, log: OpenLog, snapshot_bytes: int) -> None:
        self.log = log
        end = log.durable_end
        self.position = end.position
        self.rolled = [one for one in log.rolled if one.end <= end.position]
        log.rolled = [one for one in log.rolled if one.end > end.position]
        self.segments: list[tuple[Segment, SegmentSummary]] = [(one, one.summary()) for one in self.rolled]
        segment = end.segment
        if end.position > segment.stream and segment not in self.rolled and not segment.dead:
            self.segments.append((segment, segment.summary_at(end)))
        self.files: list[tuple[str, bytes]] = []
        self.old: list[int] = []
        """Offsets of snapshots whose files are removed when this one is there."""

        self.generation = log.generation
        self.state = log.state_dirty
        self.snapshot = False
        if self.state:
            self.files.append((f"{log.directory}/{EPOCHS_FILE}", encode_log_state(log.durable_state())))
        snapshots = log.snapshots
        if snapshots.wanted or self.position - snapshots.position >= snapshot_bytes:
            self.add_snapshot()

    @property
    def unwritten(self) -> int:
        """Bytes up to the mark that are not in the segments yet."""
        return max(0, self.position - self.log.written_position)

    def add_snapshot(self) -> None:
        """Save the producers as of the mark."""
        log = self.log
        data = None if log.producer_snapshot is None else log.producer_snapshot()
        if data is not None:
            offset = log.snapshot_offset
            log.snapshots.note(offset, data)
            name = offset_name(offset, PRODUCERS_SUFFIX)
            self.files.append((f"{log.directory}/{name}", encode_producers(offset, data)))
        log.snapshots.position = self.position
        log.snapshots.wanted = False
        self.snapshot = True
        self.old = log.snapshots.files[:-_SNAPSHOT_FILES]

    @property
    def remove(self) -> list[str]:
        """Files that are not needed once this checkpoint is durable."""
        return [f"{self.log.directory}/{offset_name(Offset(one), PRODUCERS_SUFFIX)}" for one in self.old]

    def give_back(self) -> None:
        """The checkpoint failed: what was marked is still to be done."""
        log = self.log
        # Not what a cut of the log's end made active again.
        log.rolled = [one for one in self.rolled if one.sealed and not one.dead and one not in log.rolled] + log.rolled
        log.state_dirty = log.state_dirty or self.state
        log.snapshots.wanted = log.snapshots.wanted or self.snapshot


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
        self._captures: list[_LogCapture] = []
        self._waiting: list[Callable[[], None]] = []  # for the next checkpoint
        self._answering: list[Callable[[], None]] = []  # for the one that runs
        self._when_idle: list[Callable[[], None]] = []
        self._sent = False  # the worker is at it
        self._changes: dict[int, int] = {}  # changes of files that the worker has yet to make, their notes' frames
        self._cuts: dict[OpenLog, int] = {}  # logs whose end is being cut, and a frame at or before their note's
        self._aside: dict[int, tuple[str, int]] = {}
        """Logs that failed, by group: their directory, and the last frame that has something of them."""
        self._sent_aside: list[int] = []
        self._again = False
        self._next_id = 1
        self._covered = 0
        self._begun_us = 0
        self._writes = 0
        self._next_capture = 0
        self._bytes = 0  # to be written by the one that runs
        self._asked_bytes = 0  # of them, those that the logs were asked to write
        self._hurry = False
        self.snapshot_bytes = SNAPSHOT_BYTES
        self.running = False
        self.refused = False
        """The last one found the disk full."""

        self.wal_bytes = 0
        """Bytes of the write-ahead log when the last checkpoint began."""

        stats = storage.stats
        self._count = stats.counter("checkpoints")
        self._latency = stats.histogram("checkpoint_latency")

    def request(self, done: Callable[[], None] | None = None) -> None:
        """Have a checkpoint that covers everything durable now; ``done`` when it is over."""
        if done is not None:
            self._waiting.append(done)
        if self.running:
            self._again = self._again or done is not None
            self.hurry()
            return
        self._begin()

    def due(self) -> None:
        """Begin a checkpoint, because ``checkpoint.ms`` have passed since a change."""
        if self.running:
            self._again = True
        self.request()

    def look(self) -> None:
        """Called after every tick: begin a checkpoint, or hurry the one that runs, if it is time."""
        grown = self._storage.wal.written_bytes - self.wal_bytes
        if 2 * grown >= self._storage.checkpoint_bytes:
            self.hurry()
            if grown >= self._storage.checkpoint_bytes:
                self.request()

    def hurry(self) -> None:
        """Let the running checkpoint, if there is one, finish as soon as possible."""
        if self.running and not self._hurry:
            self._hurry = True
            if self._sent:
                self._storage.send(Hurry(self._next_id - 1))

    def _begin(self, *, hurry: bool = False) -> None:
        storage = self._storage
        self.running = True
        self._again = False
        self._answering, self._waiting = self._waiting, []
        self._hurry = hurry or bool(self._answering) or storage.wal.full
        self._begun_us = storage.reactor.now_us()
        # The note of a cut or a trim is needed until the files show it.
        needed = [*self._changes.values(), *self._cuts.values()]
        self._covered = min([storage.wal.durable_sequence, *(frame - 1 for frame in needed)])
        self.wal_bytes = storage.wal.written_bytes
        self._captures = []
        logs = list(storage.dirty_logs)
        storage.reactor.background("checkpoint", self._capture(logs), _SHARE, self._captured)

    def _capture(self, logs: list[OpenLog]) -> Generator[None, None, None]:
        dirty = self._storage.dirty_logs
        for log in logs:
            dirty.pop(log, None)
            log.dirty = False
            if not log.closed:
                try:
                    self._captures.append(_LogCapture(log, self.snapshot_bytes))
                except Exception as error:  # noqa: BLE001 - the boundary
                    log.failed("checkpoint", error)
            yield

    def _captured(self) -> None:
        self._writes = len(self._captures) + 1
        self._next_capture = self._asked_bytes = 0
        self._bytes = sum(capture.unwritten for capture in self._captures)
        self._write_due()

    def _write_due(self) -> None:
        self._storage.reactor.background("checkpoint", self._write(), _SHARE, self._wrote_due)

    def _write(self) -> Generator[None, None, None]:
        due = self._due_bytes()
        while self._next_capture < len(self._captures) and (self._hurry or self._asked_bytes <= due):
            capture = self._captures[self._next_capture]
            self._next_capture += 1
            self._asked_bytes += capture.unwritten
            written = _Once(self._written)
            try:
                behind, durable = capture.log.behind, capture.log.durable_position
                # Up to now, not to the mark: logs that were marked together would be full together.
                behind.write(durable)
                behind.when_written(min(capture.position, durable), written)
            except Exception as error:  # noqa: BLE001 - the boundary
                capture.log.failed("write behind", error)
                written()
            yield

    def _due_bytes(self) -> int:
        """The share of the bytes to write that should have been written by now."""
        storage = self._storage
        grown = storage.wal.written_bytes - self.wal_bytes
        return max(
            self._bytes * 2 * grown // storage.checkpoint_bytes,
            _BYTES_PER_S * (storage.reactor.now_us() - self._begun_us) // 1_000_000,
        )

    def _wrote_due(self) -> None:
        if self._next_capture < len(self._captures):
            self._storage.reactor.call_later(_STEP_US, self._write_due)
        else:
            self._written()

    def _written(self) -> None:
        """One log, or the loop over all logs, is finished."""
        self._writes -= 1
        if self._writes:
            return
        storage = self._storage
        captures = [capture for capture in self._captures if not capture.log.closed]
        if any(capture.generation != capture.log.generation for capture in captures):
            # A log's end was cut meanwhile: what was marked of it is no more.
            self._take_back()
            self._waiting, self._answering = self._answering + self._waiting, []
            self._begin(hurry=self._hurry)
            return
        number = self._next_id
        self._next_id += 1
        segments: list[tuple[str, SegmentSummary]] = []
        files: list[tuple[str, bytes]] = []
        remove: list[str] = []
        for capture in captures:
            segments += [(one.path, summary) for one, summary in capture.segments if not one.dead]
            files += capture.files
            remove += capture.remove
            if len(segments) >= _PART_SEGMENTS:
                storage.send(Checkpoint(number, segments, files, remove, last=False))
                segments, files, remove = [], [], []
        self._sent = True
        aside = [(group, directory) for group, (directory, _) in self._aside.items()]
        self._sent_aside = [group for group, _ in aside]
        state = WalState(self._covered + 1, storage.wal.files.next_generation, term=storage.term)
        wal_state = storage.wal_directory, encode_wal_state(state)
        throttled = not self._hurry
        storage.send(Checkpoint(number, segments, files, remove, wal_state, throttled=throttled, aside=aside))

    def finished(self, reply: Checkpointed) -> None:
        """The worker's answer."""
        storage = self._storage
        self._sent = False
        if reply.errno and not reply.synced:
            storage.fail(f"checkpoint: {reply.what}: {os.strerror(reply.errno)}")
            return
        self.running = False
        self.refused = reply.errno != 0
        if reply.errno:
            self._take_back()
            self._waiting = self._answering + self._waiting
            self._answering = []
            self._now_idle()
            storage.disk_full(reply.errno)
            return
        for capture in self._captures:
            if capture.old:  # of few of the thousands that there may be
                capture.log.guard("checkpoint", capture.log.snapshots.removed, capture.old)
        self._captures = []
        for group in self._sent_aside:
            if group in self._aside and self._aside[group][1] <= self._covered:
                del self._aside[group]
        storage.wal.release(self._covered + 1)
        self._count.inc()
        self._latency.observe(storage.reactor.now_us() - self._begun_us)
        answering, self._answering = self._answering, []
        for done in answering:
            done()
        self._now_idle()
        if (self._again or (storage.wal.full and self.would_free)) and not self.running:
            self._begin()

    def set_aside(self, log: OpenLog) -> None:
        """A log failed: the next checkpoints move what the write-ahead log has of it to its ``quarantine`` file."""
        self._aside[log.group] = (log.directory, self._storage.wal.last_sequence)

    def is_setting_aside(self, group: RaftGroupId) -> bool:
        """Whether the write-ahead log may have something of a log that failed."""
        return group in self._aside

    @property
    def sets_aside(self) -> bool:
        """Whether the write-ahead log may have something of any log that failed."""
        return bool(self._aside)

    def forget_aside(self, group: RaftGroupId) -> None:
        """The files of a log that failed are removed."""
        self._aside.pop(group, None)

    @property
    def would_free(self) -> bool:
        """Whether frames became durable that the last checkpoint did not cover: one more would make them void."""
        return self._storage.wal.durable_sequence > self._covered

    def wait_for_change(self, number: int) -> None:
        """A note is durable that stands for a change of files until ``change_made``."""
        self._changes[number] = min([self._storage.wal.durable_sequence, *self._cuts.values()])

    def keep_note(self, log: OpenLog, *, keep: bool) -> None:
        """The note of a cut of the log's end was just added: no checkpoint makes it void until this is called again. By
        then the log shows the cut, and what is left to do to its files is known to ``wait_for_change``.
        """
        if keep:
            self._cuts[log] = self._storage.wal.durable_sequence + 1
        else:
            self._cuts.pop(log, None)

    def change_made(self, number: int) -> None:
        """The files have the change, perhaps not durably; the next checkpoint syncs them."""
        del self._changes[number]

    @property
    def changing(self) -> bool:
        """Whether files have yet to be cut or removed."""
        return bool(self._changes or self._cuts)

    def _now_idle(self) -> None:
        idle, self._when_idle = self._when_idle, []
        for callback in idle:
            callback()

    def _take_back(self) -> None:
        """The checkpoint failed: the next one takes these logs again."""
        for capture in self._captures:
            capture.give_back()
            if not capture.log.closed:
                capture.log.dirty = True
                self._storage.dirty_logs[capture.log] = None
        self._captures = []

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back when no checkpoint is on its way to the disk: at once, or when this one is over."""
        if self._sent:
            self._when_idle.append(callback)
            self.hurry()
        else:
            callback()
