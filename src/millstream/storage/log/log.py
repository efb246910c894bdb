"""One log: append at the end, read anywhere, be told how far it is durable. What a Raft group or a partition stands on.

::

    next_offset ≥ durable_offset ≥ what is in the segment ≥ …                ≥ start_offset
      appended     synced in the WAL   (write-behind, write_behind.py)           (trimming, cutting.py)

`append` never waits: it copies the batch into the log cache, sets base offset and leader epoch in the copy, and puts
a record into this turn's tick. `on_durable` follows from the reactor when that tick has been synced. Reads are
answered from the cache without a copy (`read`), or by the worker from the segment files (`read_cold`), whole batches
always.

A refused append (`ArenaFull`: no cache, or no WAL space; `Rejected`: larger than a WAL file) leaves no trace. Offsets
are dense and the caller's: an append that does not continue the log is a broken invariant and stops the shard.

Shard: the log's home, on its reactor. Lifecycle: `ShardStorage.open_log` … `close_log` or `delete_log`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.core.retention import roll_jitter_ms
from millstream.format.epochs import LogState
from millstream.format.segment import BATCH_PREFIX
from millstream.format.wal import RECORD, RECORD_BYTES, Kind
from millstream.iobuf import IoBuf
from millstream.storage.log import cutting, header_replay, slow_append
from millstream.storage.log.cache import MARK_BYTES, LogCache, NoRange, Range
from millstream.storage.log.segment_list import Segment, SegmentInfo, SegmentList
from millstream.storage.log.slow_append import HEAD, HEAD_AT
from millstream.storage.log.snapshots import Snapshots
from millstream.storage.log.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.config.topic_properties import TopicConfig
    from millstream.errors import MillstreamError
    from millstream.storage.log.opening import LoadedLog
    from millstream.storage.shard_storage import ShardStorage

_BATCH_KIND: Final = int(Kind.BATCH)
_set_prefix = BATCH_PREFIX.pack_into
_pack_record = RECORD.pack_into

_read_head = HEAD.unpack_from


class DurableMark(NamedTuple):
    """How far a log went at some moment, and what its segment was like then."""

    offset: int
    position: int
    segment: Segment
    max_timestamp: int
    max_timestamp_offset: int
    min_timestamp: int
    generation: int


class Log:
    """See the module."""

    __slots__ = (
        "_config",
        "epoch",
        "epochs",
        "index_interval",
        "range_level",
        "no_range",
        "replacing",
        "open_range",
        "segment_bytes",
        "_storage",
        "_wal",
        "behind",
        "active_producers",
        "cache",
        "clean_offset",
        "closed",
        "cutting",
        "directory",
        "dirty",
        "durable_mark",
        "durable_start",
        "durable_vote",
        "durable_offset",
        "durable_position",
        "generation",
        "group",
        "name",
        "next_offset",
        "on_durable",
        "on_trimmed",
        "producer_snapshot",
        "snapshots",
        "rolled",
        "segment_ms",
        "segments_list",
        "start_offset",
        "state_dirty",
        "tick_serial",
        "topic",
        "vote",
        "written_position",
    )

    def __init__(
        self,
        storage: ShardStorage,
        group: int,
        directory: str,
        name: str,
        config: TopicConfig,
        loaded: LoadedLog,
        topic: str,
    ) -> None:
        self._storage = storage
        self._wal = storage.wal
        self.group = group
        self.name = name
        self.directory = directory
        self.topic = topic
        self.closed = False
        self._set(config)
        # Where the log is
        self.start_offset = loaded.state.start_offset
        stream = 0
        segments: list[Segment] = []
        for summary in loaded.segments:
            segments.append(Segment.of(directory, summary, stream, self.index_interval))
            stream += summary.size_bytes
        self.next_offset: int = max(self.start_offset, segments[-1].end_offset if segments else 0)
        if not segments or segments[-1].sealed:
            segments.append(Segment(directory, self.next_offset, stream, storage.now_ms()))
        self.segments_list = SegmentList(segments)
        self.durable_offset: int = self.next_offset
        """End (exclusive) of what is synced."""
        self.durable_position = self.written_position = stream
        self.durable_start = self.start_offset
        """The start offset that would be found after a crash."""
        # What it remembers beside its bytes
        self.epochs: list[tuple[int, int]] = list(loaded.state.epochs)
        self.epoch = self.epochs[-1][0] if self.epochs else -1
        self.vote = self.durable_vote = loaded.state.vote
        self.clean_offset = loaded.state.clean_offset  # end (exclusive) of what compaction has looked at
        self.replacing = False  # compaction puts a file in the place of others: no segment may go meanwhile
        self.cutting = False
        """The end is being cut: nothing may be appended until that is durable."""

        self.generation = 0
        """How often the end was cut."""

        self.state_dirty = False
        self.dirty = False
        """Something of it became durable in the WAL since the last checkpoint looked."""
        self.rolled: list[Segment] = []
        """Sealed since the last checkpoint."""
        self.snapshots = Snapshots(loaded.producers, loaded.snapshot_files, stream)
        # Memory
        self.cache = LogCache()
        self.no_range = NoRange(stream)
        self.open_range: Range = self.no_range
        self.range_level = 0
        self.behind = WriteBehind(self, storage.send, storage.write_refused)
        self.tick_serial = 0
        self.durable_mark = self.mark()
        self.on_durable: Callable[[int], None] | None = None  # called with the new `durable_offset`, once per tick
        self.on_trimmed: Callable[[], None] | None = None  # called when `start_offset` has moved
        self.producer_snapshot: Callable[[], bytes | None] | None = None
        """Asked for the producers' state as of `next_offset` when a segment is rolled and at checkpoints."""
        self.active_producers: Callable[[], dict[int, int]] | None = None  # id → last offset, asked by compaction

    # -- append --------------------------------------------------------------------------------------------------------

    def append(
        self,
        views: Sequence[memoryview],
        size: int,
        base_offset: int,
        last_offset: int,
        leader_epoch: int,
        max_timestamp: int,
    ) -> None:
        """Produce 7/8. Put one batch of `size` bytes, spread over `views`, at the end of the log.

        `base_offset` must be `next_offset`. The bytes are copied before this returns; `on_durable` says when they are
        synced.

        Raises:
            ArenaFull: no room now; nothing was appended.
            Rejected: the batch is larger than a file of the write-ahead log.
        """
        if base_offset != self.next_offset:
            raise AssertionError(f"{self.name}: batch at offset {base_offset}, the log goes on at {self.next_offset}")
        one = self.open_range
        start = one.used
        end = start + size
        wal = self._wal
        tick = wal.tick
        if (
            end > one.limit
            or last_offset > one.offset_max
            or leader_epoch != self.epoch
            or len(views) != 1
            or tick.records >= wal.records_max
            or tick.payload_bytes + size > wal.tick_bytes_max
        ):
            slow_append.append(self, views, size, base_offset, last_offset, leader_epoch, max_timestamp)
            return
        view = one.view
        view[start:end] = views[0]
        _set_prefix(view, start, base_offset, size - 12, leader_epoch)
        crc, first_timestamp = _read_head(view, start + HEAD_AT)
        at = tick.table_end
        _pack_record(tick.table, at, _BATCH_KIND, 0, 0, self.group, leader_epoch, base_offset, last_offset, size, crc)
        tick.table_end = at + RECORD_BYTES
        tick.records += 1
        tick.payload_bytes += size
        spans = tick.spans
        at = one.offset + start
        if spans[-1] == at:
            spans[-1] = at + size
        else:
            spans += (at, at + size)
        one.used = end
        if start >= one.next_mark:
            self.note_place(one, start, base_offset)
        segment = one.segment
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.max_timestamp_offset = base_offset
        if first_timestamp < segment.min_timestamp:
            segment.min_timestamp = first_timestamp
        self.next_offset = last_offset + 1
        if self.tick_serial != tick.serial:
            self.tick_serial = tick.serial
            tick.logs.append(self)
        if not wal.armed:
            wal.arm()

    def note_place(self, one: Range, start: int, base_offset: int) -> None:
        """Remember where this batch starts: for reads of the range, and every so often for the segment's index."""
        one.marks.append(base_offset)
        one.positions.append(start)
        one.next_mark = start + MARK_BYTES
        segment = one.segment
        position = one.segment_position + start
        if not position:
            segment.created_ms = self._storage.now_ms()
            self._storage.segment_began(self, segment)
        if position >= segment.next_index:
            segment.entries += (base_offset, position, segment.max_timestamp)
            segment.next_index = position + self.index_interval

    def roll(self) -> None:
        """Seal the active segment and begin another; the next batch is its first."""
        segment = self.refresh()
        segment.sealed = True
        self.rolled.append(segment)
        self._storage.rolled(self)
        self.behind.target = max(self.behind.target, segment.end)
        self.close_range()
        self.segments_list.add(Segment(self.directory, self.next_offset, segment.end, self._storage.now_ms()))

    def close_range(self) -> None:
        """Append no more to the open range; the next batch begins another."""
        self.no_range.stream = self.next_position
        self.open_range.limit = self.open_range.used
        self.open_range = self.no_range
        self.no_range.limit = -1

    def reopen_at(self, position: int) -> None:
        """The next batch goes to stream `position`: the log was cut."""
        self.no_range.stream = position

    # -- durability ----------------------------------------------------------------------------------------------------

    @property
    def next_position(self) -> int:
        """Stream position at which the next batch starts."""
        one = self.open_range
        return one.stream + one.used

    def mark(self) -> DurableMark:
        """Where the log ends now."""
        segment = self.segments_list.active
        one = self.open_range
        return DurableMark(
            self.next_offset,
            one.stream + one.used,
            segment,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            segment.min_timestamp,
            self.generation,
        )

    def became_durable(self, mark: DurableMark) -> None:
        """A tick with records of this log landed; it is durable up to `mark`."""
        offset = mark[0]
        if offset > self.durable_offset and mark[6] == self.generation:
            self.durable_offset = offset
            self.durable_position = mark[1]
            self.durable_mark = mark
            if self.on_durable is not None:
                self.on_durable(offset)
        if not self.dirty:
            self.dirty = True
            self._storage.dirty_logs[self] = None
        behind = self.behind
        if behind.target > self.written_position and not behind.under_way:
            behind.advance()

    def is_open(self, one: Range) -> bool:
        """Whether `one` is the range that the next batch goes to."""
        return one is self.open_range

    def release_oldest(self, one: Range) -> bool:
        """The cache needs `one`, which is in the segment: let it go, unless an older one is still there."""
        if self.cache.oldest is not one:
            return False
        if one is self.open_range:
            self.close_range()
            self.range_level = 0
        self.cache.drop_oldest()
        return True

    def count_written(self, count: int) -> None:
        self._storage.count_written(count)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, offset: int, end_offset: int, max_bytes: int, minimum_one: bool) -> IoBuf | None:
        """Whole batches from the one that holds `offset`, below `end_offset`, from memory; None if they are not there.

        At most `max_bytes`, but one batch whatever its size with `minimum_one`; empty at the end. The caller releases
        it.
        """
        if offset >= end_offset or offset >= self.next_offset:
            return IoBuf()
        cache = self.cache
        if end_offset == self.durable_offset:
            end = self.durable_position
        elif end_offset >= self.next_offset:
            end = self.next_position
        else:
            position = cache.position_of(end_offset)
            if position is None:
                self._storage.cache_misses.inc()
                return None
            end = position
        found = cache.read(offset, end, max_bytes, minimum_one=minimum_one)
        if found is None:
            self._storage.cache_misses.inc()
        else:
            self._storage.cache_hits.inc()
            self._storage.cache_read_bytes.inc(len(found))
        return found

    def read_cold(
        self,
        offset: int,
        end_offset: int,
        max_bytes: int,
        minimum_one: bool,
        done: Callable[[IoBuf | MillstreamError], None],
    ) -> None:
        """The same from the segment file, through the worker; the bytes' checksums are checked. `done` comes later.

        One segment at most, so it may be less than is there. Memory is the fetch class's: nothing is evicted for it.
        """
        self._storage.cold_reads.read(self, offset, end_offset, max_bytes, done, minimum_one=minimum_one)

    def offset_for_timestamp(
        self, timestamp: int, end_offset: int, done: Callable[[tuple[int, int, int] | MillstreamError | None], None]
    ) -> None:
        """The first record below `end_offset` with a timestamp ≥ `timestamp`: (offset, its timestamp, leader epoch)."""
        self._storage.timestamps.find(self, timestamp, end_offset, done)

    def max_timestamp(
        self, end_offset: int, done: Callable[[tuple[int, int, int] | MillstreamError | None], None]
    ) -> None:
        """The record with the largest timestamp below `end_offset`, the first of several (KIP-734)."""
        self._storage.timestamps.find_largest(self, end_offset, done)

    # -- epochs, snapshots, state --------------------------------------------------------------------------------------

    @property
    def leader_epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, its first offset), rising."""
        return list(self.epochs)

    def cut_to(self, offset: int, position: int) -> None:
        """The log ends at `offset`, stream `position`, now; its cache and segments were cut already."""
        self.generation += 1
        self.next_offset = offset
        self.durable_offset = min(self.durable_offset, offset)
        self.durable_position = min(self.durable_position, position)
        self.written_position = min(self.written_position, position)
        self.snapshots.position = min(self.snapshots.position, position)
        self.durable_mark = self.mark()
        self.behind.cut(position)
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()
        self.epoch = self.epochs[-1][0] if self.epochs else -1
        self.state_dirty = True

    def durable_state(self) -> LogState:
        """What the ``epochs`` file is to say: what a crash now would leave."""
        epochs = tuple(epoch for epoch in self.epochs if epoch[1] < self.durable_offset)
        self.state_dirty = len(epochs) < len(self.epochs)
        return LogState(self.durable_start, epochs, self.durable_vote, self.clean_offset)

    def save_vote(self, vote: bytes, done: Callable[[], None]) -> None:
        """Keep a few bytes of the replication layer (term and vote); `done` when they are durable.

        Raises:
            ArenaFull: no room now; nothing was changed.
        """
        cutting.save_vote(self, vote, done)

    def replay_headers(self, from_offset: int, each: Callable[[tuple[int, ...]], None]) -> None:
        """Call `each` with the 13 header fields of every sound batch from that of `from_offset` on. Blocks.

        Raises:
            Corruption: the segment files are not whole.
        """
        header_replay.replay(self._storage.disk, self, from_offset, each, self._storage.read_faults)

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def configure(self, config: TopicConfig) -> None:
        """The topic's configuration changed: sizes hold from the next range and segment on, ages at once."""
        self._set(config)
        if self.refresh().size_bytes:
            self._storage.segment_began(self, self.segments_list.active)

    def _set(self, config: TopicConfig) -> None:
        self._config = config
        self.segment_bytes: int = config.segment_bytes
        jitter = roll_jitter_ms(self.group, config.segment_ms, config.segment_jitter_ms)
        self.segment_ms: int = config.segment_ms - jitter
        if "compact" in config.cleanup_policy:
            self.segment_ms = min(self.segment_ms, config.max_compaction_lag_ms)
        self.index_interval = max(MARK_BYTES, config.index_interval_bytes)

    @property
    def config(self) -> TopicConfig:
        return self._config

    def trim_prefix(self, offset: int, done: Callable[[], None] | None = None) -> None:
        """Let the log start at `offset`, durably; segments below go. `done` when it is durable; going back is ignored.

        Raises:
            ArenaFull: no room in the write-ahead log now; nothing was changed.
        """
        cutting.trim_prefix(self, offset, done)

    def truncate_suffix(self, offset: int, done: Callable[[], None] | None = None) -> None:
        """Let the log end at `offset` (a batch's base offset), durably: what came after is void.

        It does when `done` is called, in a later turn; nothing may be appended before.

        Raises:
            ArenaFull: no room in the write-ahead log now; nothing was changed.
        """
        cutting.truncate_suffix(self, offset, done)

    def refresh(self) -> Segment:
        """The active segment with its end and size as of now."""
        segment = self.segments_list.active
        segment.end_offset = self.next_offset
        segment.size_bytes = self.next_position - segment.stream
        return segment

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first; the last is the active one."""
        self.refresh()
        written = self.written_position
        return [
            SegmentInfo(
                one.base_offset,
                one.end_offset,
                one.size_bytes,
                one.summary().min_timestamp,
                one.max_timestamp,
                one.path,
                one.sealed,
                max(0, min(one.size_bytes, written - one.stream)),
            )
            for one in self.segments_list.all()
        ]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.next_position - self.segments_list.first.stream

    @property
    def cache_bytes(self) -> int:
        return self.cache.bytes

    @property
    def storage(self) -> ShardStorage:
        return self._storage

    def __repr__(self) -> str:
        return f"Log({self.name!r}, {self.start_offset}..{self.durable_offset}..{self.next_offset})"
