"""The state of one open log and the elementary steps on it. The verbs in the modules beside act on it.

::

    next_offset ≥ durable_offset ≥ what is in the segment ≥ …                ≥ start_offset
      appended     synced in the WAL   (write-behind, write_behind.py)           (trimming, cutting.py)

``Log`` is the public face. The verbs (``placing``, ``cutting``, ``cold_reads``, ``timestamps``, ``header_replay``) know
this module, neither ``Log`` nor each other. ``LogHost`` says what a log needs of the shard that it lives on.

Shard: the log's home, on its reactor. Nothing here waits, and nothing here makes a system call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from millstream.core.retention import roll_jitter_ms
from millstream.format.epochs import LogState, epoch_at
from millstream.model.quantities import BytePosition, Offset
from millstream.model.replication import RaftPosition, Term
from millstream.storage.log.cache import PLACE_BYTES, LogCache, NoRange, Range
from millstream.storage.log.controls import ControlEntries
from millstream.storage.log.segment_list import LogEnd, Segment, SegmentList
from millstream.storage.log.snapshots import Snapshots
from millstream.storage.log.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.topic_properties import TopicConfig
    from millstream.core.producer_state import ProducerState
    from millstream.iobuf import Arena
    from millstream.model.quantities import RaftGroupId
    from millstream.storage.disk import Disk
    from millstream.storage.log.cache import CacheMemory
    from millstream.storage.log.log_staging import LogStaging
    from millstream.storage.log.opening import LoadedLog
    from millstream.storage.messages.commands import Command
    from millstream.storage.segments.read_faults import ReadFaults
    from millstream.storage.wal.wal import Wal

NO_EPOCH: Final = -1


class LogHost(Protocol):
    """What a log needs of its shard: ``ShardStorage`` in production."""

    wal: Wal
    memory: CacheMemory
    arena: Arena
    disk: Disk
    read_faults: ReadFaults
    staging: LogStaging
    write_bytes_min: int
    """Durable bytes of a busy log that are written to its segment in one piece, at least."""

    def now_ms(self) -> int:
        """Wall clock."""
        ...

    def send(self, command: Command) -> None:
        """Send a command to the worker."""
        ...

    def change_files(self, log: OpenLog, command: Callable[[int], Command]) -> None:
        """Have files of the log cut or removed by the command made of the number given. Until that is durable, the
        write-ahead log keeps the note that stands for the change.
        """
        ...

    def keep_note(self, log: OpenLog, *, keep: bool) -> None:
        """Keep the note of a cut that was just added in the write-ahead log, until this is called again: the log is cut
        in memory, and the changes of its files are ordered (``change_files``).
        """
        ...

    def when_files_rest(self, log: OpenLog, callback: Callable[[], None]) -> None:
        """Call back when the cleaner does nothing with the log: at once, or after it has given up its work."""
        ...

    def when_no_checkpoint(self, callback: Callable[[], None]) -> None:
        """Call back when no checkpoint is on its way to the disk: at once, or when this one is over."""
        ...

    def write_refused(self, log: OpenLog, errno: int) -> None:
        """A segment write found the disk full; ``log.behind.advance`` follows once there may be space."""
        ...

    def changed(self, log: OpenLog) -> None:
        """The next checkpoint has to cover the log."""
        ...

    def segment_began(self, log: OpenLog, segment: Segment) -> None:
        """A segment got its first batch, or its age limit changed."""
        ...

    def rolled(self, log: OpenLog) -> None:
        """A segment was sealed."""
        ...

    def segments_dropped(self, log: OpenLog, dropped: list[Segment]) -> None:
        """Segments were trimmed."""
        ...

    def count_written(self, count: int) -> None:
        """Bytes went into a segment."""
        ...


class LogFacts(NamedTuple):
    """What a log is called and where it lives; never changes while it is open."""

    group: RaftGroupId
    directory: str
    name: str
    """What people call it: topic/partition."""
    topic: str
    """Empty for the controller's log."""


class OpenLog:
    """One open log. Lifecycle: ``ShardStorage.open_log`` … ``close_log`` or ``delete_log``.

    Every field has one writer, named with its law below; everybody else reads.
    """

    __slots__ = (
        "_config",
        "active_producers",
        "behind",
        "cache",
        "clean_offset",
        "closed",
        "committed",
        "controls",
        "cutting",
        "directory",
        "dirty",
        "durable_end",
        "durable_offset",
        "durable_position",
        "durable_start",
        "durable_vote",
        "epoch",
        "epochs",
        "first_unstable",
        "generation",
        "group",
        "host",
        "index_interval",
        "local_start",
        "local_wanted",
        "lost",
        "name",
        "next_offset",
        "move_start",
        "no_range",
        "on_durable",
        "on_failed",
        "on_persisted",
        "on_trimmed",
        "open_range",
        "producer_snapshot",
        "producers",
        "range_level",
        "replacing",
        "retained_elsewhere",
        "rolled",
        "segment_bytes",
        "segment_ms",
        "segments_list",
        "snapshots",
        "start_offset",
        "state_dirty",
        "tick_serial",
        "topic",
        "vote",
        "write_term",
        "written_position",
    )

    def __init__(self, host: LogHost, facts: LogFacts, config: TopicConfig, loaded: LoadedLog) -> None:
        self.host = host
        self.group, self.directory, self.name, self.topic = facts
        self.closed = False
        """Final. Set by ``ShardStorage`` when the log is closed or deleted; nothing of the log changes afterwards."""
        self._set(config)
        segments = _open_segments(facts.directory, loaded, self.index_interval, host.now_ms())
        stream = segments[-1].end
        self.segments_list = SegmentList(segments)
        self.rolled: list[Segment] = []
        """Sealed since the last checkpoint. Written by ``roll``, checkpoints and cuts."""

        # Where the log is
        self.next_offset: Offset = loaded.next_offset
        """Where the next batch goes. Moved by ``Log.write`` and by a cut; ≥ ``durable_offset``."""
        self.durable_offset: Offset = self.next_offset
        """End (exclusive) of what is synced in the write-ahead log. Moved by ``became_durable`` and by a cut."""
        self.durable_position: BytePosition = stream
        """The same in the log's stream; moves together with ``durable_offset``."""
        self.written_position: BytePosition = stream
        """End of what is in the segments' page cache; ≤ ``durable_position``. Moved by ``WriteBehind`` and by a cut."""
        self.start_offset: Offset = loaded.state.start_offset
        """First offset that readers may see; never moves back. Equal to ``durable_start``, seen by readers after it."""
        self.durable_start: Offset = self.start_offset
        """The start offset that a crash now would leave. Moved by ``cutting.trim_prefix`` when its note is durable."""
        self.generation = 0
        """How often the end was cut. What was remembered of the end before a cut is void after it."""
        self.cutting = False
        """The end is being cut: nothing may be appended until that is durable."""
        self.replacing = False
        """Compaction puts a file in the place of others: no segment may go meanwhile. Written by ``Compaction``."""

        # What it remembers beside its bytes
        self.epochs: list[tuple[Term, Offset]] = list(loaded.state.epochs)
        """(leader epoch, its first offset), both rising. Those whose offset is below ``durable_offset`` are durable."""
        self.epoch: Term | int = self.epochs[-1][0] if self.epochs else NO_EPOCH
        """The last of ``epochs``; ``NO_EPOCH`` without any."""
        self.vote = self.durable_vote = loaded.state.vote
        """Term and vote of the replica as saved last, and as a crash now would leave them."""
        self.clean_offset: Offset = loaded.state.clean_offset
        """End (exclusive) of what compaction has rewritten. Written by ``Compaction``."""
        self.state_dirty = False
        """The ``epochs`` file says something else than ``durable_state``."""
        self.dirty = False
        """The log is in its shard's list of logs that the next checkpoint covers."""
        self.controls = ControlEntries(loaded.state.base, loaded.state.controls)
        """Control entries, which say the Raft position of every offset. Those that end at or before ``durable_end`` are
        durable.
        """
        self.snapshots = Snapshots(loaded.producers, loaded.snapshot_files, stream)

        self.cache = LogCache()
        self.no_range = NoRange(stream)
        """Stands for the open range while there is none; its ``stream`` is where the next range starts."""
        self.open_range: Range = self.no_range
        """The range that the next batch goes to; the newest of ``cache``, or ``no_range``."""
        self.range_level = 0
        """Place in ``cache.LADDER`` of the open range's size."""
        self.write_term = Term(0)
        """The group's term at the newest write, which may be later than that of the entries written. Set by the group
        of several voters before it writes; a sole voter leaves it at 0.
        """
        self.durable_end: LogEnd = self.end()
        """The newest end that is synced: a checkpoint may bring this into segments. Moves with ``durable_offset``."""
        self.behind = WriteBehind(self, host)
        self.tick_serial = 0
        """The tick that has records of this log: ``Wal`` and ``Log.write`` enter a log into each tick once."""

        self._no_listeners()
        self._start_files(loaded)

    def _start_files(self, loaded: LoadedLog) -> None:
        """Where the files start, which may be later than the log."""
        self.lost = loaded.lost
        """What was durable here is gone, and the leader has not made up for it. Written by ``Log.found_again``."""
        self.local_start: Offset = loaded.state.local_start
        """Segments that end at or before it are archived, and not here any more. Moved by ``cutting.trim_local``."""
        self.local_wanted: Offset = self.local_start
        """What ``local_start`` becomes with the next checkpoint."""
        self.retained_elsewhere = False
        """The owner of the archive applies retention, to both parts of the log."""

    def _no_listeners(self) -> None:
        """Nobody listens yet: the partition sets these when it is made."""
        self.on_durable: Callable[[int], None] | None = None
        """Called with the new ``durable_offset``, at most once a tick."""
        self.on_persisted: Callable[[RaftPosition, Term], None] | None = None
        """Called with the Raft position up to which the log is durable, and the ``write_term`` of the newest write
        there; at most once a tick, and not while the end is being cut: the cut has a callback of its own."""
        self.on_trimmed: Callable[[], None] | None = None
        """Called when ``start_offset`` has moved."""
        self.producer_snapshot: Callable[[], bytes | None] | None = None
        """Gives the producers' state as of ``snapshot_offset``; called by checkpoints."""
        self.committed: Callable[[], int] | None = None
        """Gives the offset below which no truncation takes anything (exclusive); None if the log is never cut."""
        self.producers: ProducerState | None = None
        """The partition's producers and transactions, which compaction and the archive ask."""
        self.first_unstable: Callable[[], int] | None = None
        """Gives the first offset of the oldest transaction that has not ended, -1 if there is none."""
        self.move_start: Callable[[Offset], None] | None = None
        """Asks the group to agree on a log start, for retention; None if the log trims itself."""
        self.active_producers: Callable[[], dict[int, int]] | None = None
        """Gives producer id → last offset; called by compaction."""
        self.on_failed: Callable[[str, Exception], None] | None = None
        """The boundary of the partition (``partition.boundary``); None for a log whose fault is its shard's."""

    # -- faults --------------------------------------------------------------------------------------------------------

    def failed(self, verb: str, error: Exception) -> None:
        """A verb of this log has raised what no verb raises: the boundary closes the log, and the caller goes on with
        other logs. Called by entries only, in an exception handler. Raises ``error`` if it is the shard's fault.
        """
        if self.on_failed is None:
            raise error
        self.on_failed(verb, error)

    def guard(self, verb: str, call: Callable[..., object], *arguments: object) -> None:
        """Run a verb of this log behind the boundary."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.failed(verb, error)

    # -- configuration -------------------------------------------------------------------------------------------------

    def configure(self, config: TopicConfig) -> None:
        """The topic's configuration changed: sizes hold from the next range and segment on, ages at once."""
        self._set(config)
        if self.refresh().size_bytes:
            self.host.segment_began(self, self.segments_list.active)

    def _set(self, config: TopicConfig) -> None:
        self._config = config
        self.segment_bytes: int = config.segment_bytes
        jitter = roll_jitter_ms(self.group, config.segment_ms, config.segment_jitter_ms)
        self.segment_ms: int = config.segment_ms - jitter
        if config.storage_mode == "tiered":
            self.segment_ms = min(self.segment_ms, config.segment_upload_max_ms)
        if "compact" in config.cleanup_policy:
            self.segment_ms = min(self.segment_ms, config.max_compaction_lag_ms)
        self.index_interval = max(PLACE_BYTES, config.index_interval_bytes)

    @property
    def config(self) -> TopicConfig:
        return self._config

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def next_position(self) -> BytePosition:
        """Stream position at which the next batch starts."""
        one = self.open_range
        return BytePosition(one.stream + one.used)

    def end(self) -> LogEnd:
        """Where the log ends now."""
        one = self.open_range
        position = BytePosition(one.stream + one.used)
        active = self.segments_list.active
        return LogEnd.of(
            self.next_offset, position, active, self.generation, self.next_raft_position, self.epoch, self.write_term
        )

    @property
    def next_raft_position(self) -> RaftPosition:
        """Raft position of the next entry."""
        return RaftPosition(self.next_offset + self.controls.shift)

    @property
    def stable_offset(self) -> Offset:
        """End (exclusive) of what retention and compaction may look at: durable, never truncated, and of transactions
        that have ended.
        """
        end = self.durable_offset if self.committed is None else Offset(min(self.committed(), self.durable_offset))
        unstable = -1 if self.first_unstable is None else self.first_unstable()
        return end if unstable < 0 else Offset(min(end, unstable))

    @property
    def snapshot_offset(self) -> Offset:
        """Offset as of which the producers are saved: ``next_offset``, or what no truncation takes."""
        return self.next_offset if self.committed is None else Offset(min(self.committed(), self.next_offset))

    def became_durable(self, end: LogEnd) -> None:
        """A tick with records of this log is synced; it is durable up to ``end``, which was its end at that tick."""
        offset = end[0]
        if end[7] > self.durable_end[7] and end[6] == self.generation:
            self.durable_offset = offset
            self.durable_position = end[1]
            self.durable_end = end
            if self.on_durable is not None:
                self.on_durable(offset)
            if self.on_persisted is not None and not self.cutting:
                self.on_persisted(end.raft_position, end.write_term)
        if not self.dirty:
            self.host.changed(self)
        behind = self.behind
        if behind.target > self.written_position and not behind.under_way:
            behind.advance()

    def begin_epoch(self, epoch: Term, offset: Offset) -> None:
        """Batches from ``offset`` on are of a newer leader epoch."""
        self.epoch = epoch
        self.epochs.append((epoch, offset))
        self.state_dirty = True

    def term_before(self, position: RaftPosition) -> Term | int:
        """Term of the entry that ends at Raft ``position``; -1 if that is not known."""
        control = self.controls.ending_at(position)
        if control is not None:
            return control.term
        if position == self.controls.base.position and self.controls.base.term:
            return self.controls.base.term
        return epoch_at(self.epochs, Offset(self.controls.offset_at(position) - 1))

    def cut_to(self, offset: Offset, position: BytePosition, raft_position: RaftPosition) -> None:
        """The log ends at ``offset``, stream ``position``, now; its cache and segments were cut already."""
        self.controls.cut(raft_position)
        self.generation += 1
        self.next_offset = offset
        self.durable_offset = min(self.durable_offset, offset)
        self.durable_position = min(self.durable_position, position)
        self.written_position = min(self.written_position, position)
        self.snapshots.position = min(self.snapshots.position, position)
        self.behind.cut(position)
        while self.epochs and self.epochs[-1][1] >= offset and not self._begun_by_control(self.epochs[-1]):
            self.epochs.pop()
        self.epoch = self.epochs[-1][0] if self.epochs else NO_EPOCH
        self.durable_end = min(self.durable_end, self.end(), key=lambda end: end.raft_position)
        self.state_dirty = True

    def _begun_by_control(self, epoch: tuple[Term, Offset]) -> bool:
        """Whether a control entry that is still in the log began this epoch."""
        return any(one.term == epoch[0] and one.offset == epoch[1] for one in self.controls.entries)

    def durable_state(self) -> LogState:
        """What the ``epochs`` file is to say: what a crash now would leave."""
        end = self.durable_end
        epochs = tuple(epoch for epoch in self.epochs if epoch[1] < end.offset or epoch[0] <= end.term)
        controls = self.controls.before(end.raft_position)
        self.state_dirty = len(epochs) < len(self.epochs) or len(controls) < len(self.controls.entries)
        return LogState(
            self.durable_start,
            epochs,
            b"",
            self.clean_offset,
            self.durable_vote,
            self.controls.base,
            controls,
            self.local_wanted,
        )

    @property
    def first_local_offset(self) -> Offset:
        """The segments here have every offset of the log from it on; what is before is archived."""
        return self.segments_list.first.base_offset

    # -- segments and ranges -------------------------------------------------------------------------------------------

    def refresh(self) -> Segment:
        """The active segment with its end and size as of now."""
        segment = self.segments_list.active
        segment.end_offset = self.next_offset
        segment.size_bytes = self.next_position - segment.stream
        return segment

    def roll(self) -> None:
        """Seal the active segment and begin another; the next batch is its first."""
        segment = self.refresh()
        segment.sealed = True
        self.rolled.append(segment)
        self.host.rolled(self)
        self.behind.target = max(self.behind.target, segment.end)
        self.close_range()
        self.segments_list.add(Segment(self.directory, self.next_offset, segment.end, self.host.now_ms()))

    def note_batch_start(self, one: Range, start: int, base_offset: Offset) -> None:
        """Remember that a batch starts at byte ``start`` of a range: for reads of it and for the segment's index."""
        one.batch_offsets.append(base_offset)
        one.positions.append(start)
        one.next_batch_offset = start + PLACE_BYTES
        segment = one.segment
        position = one.segment_position + start
        if not position:
            segment.created_ms = self.host.now_ms()
            segment.began_us = -1
            self.host.segment_began(self, segment)
        if position >= segment.next_index:
            segment.entries += (base_offset, position, segment.max_timestamp)
            segment.next_index = position + self.index_interval

    def close_range(self) -> None:
        """Append no more to the open range; the next batch begins another."""
        self.no_range.stream = self.next_position
        self.open_range.limit = self.open_range.used
        self.open_range = self.no_range
        self.no_range.limit = -1

    def reopen_at(self, position: BytePosition) -> None:
        """The next batch goes to stream ``position``: the log was cut."""
        self.no_range.stream = position

    def is_open(self, one: Range) -> bool:
        """Whether ``one`` is the range that the next batch goes to."""
        return one is self.open_range

    def release_oldest(self, one: Range) -> bool:
        """The cache needs ``one``, which is in the segment: give it up, unless an older one is still there."""
        if self.cache.oldest is not one:
            return False
        if one is self.open_range:
            self.close_range()
            self.range_level = 0
        self.forget_oldest(one)
        return True

    def forget_oldest(self, one: Range) -> None:
        """Take ``one``, the oldest range, which is in the segment, out of the log; its memory is the caller's."""
        self.cache.drop_oldest()
        self.behind.gone(one)  # a cut of the log's end would not find it in the cache, to shorten it

    def write_out(self) -> None:
        """The cache wants the oldest bytes out of its way: write what is durable to the segment."""
        if not self.closed:
            self.behind.write(self.durable_position)

    def __repr__(self) -> str:
        return f"Log({self.name!r}, {self.start_offset}..{self.durable_offset}..{self.next_offset})"


def _open_segments(directory: str, loaded: LoadedLog, index_interval_bytes: int, now_ms: int) -> list[Segment]:
    """The segments that the files of a log say, and a fresh active one where the last of them is sealed."""
    stream = BytePosition(0)
    segments: list[Segment] = []
    for summary in loaded.segments:
        segments.append(Segment.of(directory, summary, stream, index_interval_bytes))
        stream = BytePosition(stream + summary.size_bytes)
    if not segments or segments[-1].sealed:
        segments.append(Segment(directory, loaded.next_offset, stream, now_ms))
    return segments
