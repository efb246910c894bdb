"""The state of one open log and the elementary steps on it. The verbs in the modules beside act on it.

``Log`` is the public face. The verbs (``placing``, ``cutting``, ``cold_reads``, ``timestamps``, ``header_replay``) know
this module, neither ``Log`` nor each other. The state is in records, each with its law: ``ends``, ``raft``, ``files``,
``cache``, ``behind`` (write-behind) and ``owner``.

Shard: the log's home, on its reactor. Nothing here waits, and nothing here makes a system call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.core.retention import roll_jitter_ms
from millstream.format.epochs import LogState
from millstream.model.quantities import BytePosition, Offset
from millstream.model.replication import RaftPosition
from millstream.storage.log.cache import PLACE_BYTES, LogCache
from millstream.storage.log.ends import LogEnd, LogEnds
from millstream.storage.log.log_files import LogFiles
from millstream.storage.log.owner import LogOwner
from millstream.storage.log.raft_state import LogRaft
from millstream.storage.log.segment_list import Segment
from millstream.storage.log.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.topic_properties import TopicConfig
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import Term
    from millstream.storage.log.cache import Range
    from millstream.storage.log.host import LogHost
    from millstream.storage.log.opening import LoadedLog


class LogFacts(NamedTuple):
    """What a log is called and where it lives; never changes while it is open."""

    group: RaftGroupId
    directory: str
    name: str
    """Its name for people: topic/partition; "controller" for that of group 0."""


class LogSizes(NamedTuple):
    """What a topic's configuration says about the segments of one log."""

    segment_bytes: int
    segment_ms: int
    index_interval: int
    """Bytes of a segment between two entries of its index."""

    @classmethod
    def of(cls, config: TopicConfig, group: RaftGroupId) -> LogSizes:
        """The sizes for the log of a group, whose jitter depends on its number."""
        segment_ms = config.segment_ms - roll_jitter_ms(group, config.segment_ms, config.segment_jitter_ms)
        if config.storage_mode == "tiered":
            segment_ms = min(segment_ms, config.segment_upload_max_ms)
        if "compact" in config.cleanup_policy:
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        return cls(config.segment_bytes, segment_ms, max(PLACE_BYTES, config.index_interval_bytes))


class OpenLog:
    """One open log. Lifecycle: ``ShardStorage.open_log`` … ``close_log`` or ``delete_log``."""

    __slots__ = (
        "behind",
        "cache",
        "closed",
        "config",
        "directory",
        "ends",
        "files",
        "group",
        "host",
        "name",
        "owner",
        "raft",
        "sizes",
        "tick_serial",
    )

    def __init__(self, host: LogHost, facts: LogFacts, config: TopicConfig, loaded: LoadedLog) -> None:
        self.host = host
        self.group, self.directory, self.name = facts
        self.closed = False
        """Final. Set by ``ShardStorage`` when the log is closed or deleted; nothing of the log changes afterwards."""
        self.tick_serial = 0
        """The tick that has records of this log: ``Wal`` and ``Log.write`` enter a log into each tick once."""
        self._set(config)
        self.files = LogFiles(facts.directory, loaded, self.sizes.index_interval, host.now_ms())
        self.ends = LogEnds(loaded.state.start_offset, loaded.next_offset, self.files.segments.active.end)
        self.raft = LogRaft(loaded.state)
        self.cache = LogCache(self.ends.durable_position)
        self.ends.durable = self.end()
        self.behind = WriteBehind(self, host)
        self.owner = LogOwner()

    def __repr__(self) -> str:
        return f"Log({self.name!r}, {self.start_offset}..{self.durable_offset}..{self.next_offset})"

    @property
    def topic(self) -> str:
        """Name of the topic; empty for the controller's log."""
        return self.name.rpartition("/")[0] if self.group else ""

    # -- faults --------------------------------------------------------------------------------------------------------

    def failed(self, verb: str, error: Exception) -> None:
        """A verb of this log has raised what no verb raises: the boundary closes the log, and the caller continues with
        other logs. Called by entries only, in an exception handler. Raises ``error`` if it is the shard's fault.
        """
        if self.owner.on_failed is None:
            raise error
        self.owner.on_failed(verb, error)

    def guard(self, verb: str, call: Callable[..., object], *arguments: object) -> None:
        """Run a verb of this log behind the boundary."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.failed(verb, error)

    # -- configuration -------------------------------------------------------------------------------------------------

    def configure(self, config: TopicConfig) -> None:
        """The topic's configuration changed: sizes apply from the next range and segment on, ages at once."""
        self._set(config)
        if self.refresh().size_bytes:
            self.host.segment_began(self, self.files.segments.active)

    def _set(self, config: TopicConfig) -> None:
        self.config = config
        self.sizes = LogSizes.of(config, self.group)

    # -- ends ----------------------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> Offset:
        """Offset of the next batch."""
        return self.ends.next_offset

    @property
    def durable_offset(self) -> Offset:
        """End (exclusive) of what is synced in the write-ahead log."""
        return self.ends.durable_offset

    @property
    def start_offset(self) -> Offset:
        """First offset that readers may see; never decreases."""
        return self.ends.start_offset

    @property
    def first_local_offset(self) -> Offset:
        """The segments here have every offset of the log from it on; earlier ones are archived."""
        return self.files.first_local_offset

    @property
    def next_position(self) -> BytePosition:
        """Stream position at which the next batch starts."""
        return self.cache.next_position

    @property
    def next_raft_position(self) -> RaftPosition:
        """Raft position of the next entry."""
        return RaftPosition(self.ends.next_offset + self.raft.controls.shift)

    def end(self) -> LogEnd:
        """The current end of the log."""
        ends, raft = self.ends, self.raft
        position, active = self.cache.next_position, self.files.segments.active
        return LogEnd.of(
            ends.next_offset, position, active, ends.generation, self.next_raft_position, raft.epoch, raft.write_term
        )

    @property
    def stable_offset(self) -> Offset:
        """End (exclusive) of what retention and compaction may look at; see ``LogOwner.stable``."""
        return self.owner.stable(self.ends.durable_offset)

    @property
    def snapshot_offset(self) -> Offset:
        """Offset as of which the producers are saved: ``next_offset``, or the end of what no truncation takes."""
        return self.owner.truncated_never(self.ends.next_offset)

    def became_durable(self, end: LogEnd) -> None:
        """A tick with records of this log is synced; it is durable up to ``end``, which was its end at that tick."""
        if self.ends.synced(end):
            owner = self.owner
            if owner.on_durable is not None:
                owner.on_durable(end.offset)
            if owner.on_persisted is not None and not self.ends.cutting:
                owner.on_persisted(end.raft_position, end.write_term)
        if not self.files.dirty:
            self.host.changed(self)
        behind = self.behind
        if behind.target > self.ends.written_position and not behind.under_way:
            behind.advance()

    def begin_epoch(self, epoch: Term, offset: Offset) -> None:
        """Batches from ``offset`` on have a newer leader epoch."""
        self.raft.begin_epoch(epoch, offset)
        self.files.state_dirty = True

    def cut_to(self, offset: Offset, position: BytePosition, raft_position: RaftPosition) -> None:
        """The log ends at ``offset``, stream ``position``, now; its cache and segments were cut already."""
        ends = self.ends
        ends.cut(offset, position)
        self.raft.cut(offset, raft_position)
        self.files.snapshots.position = min(self.files.snapshots.position, position)
        self.behind.cut(position)
        ends.durable = min(ends.durable, self.end(), key=lambda end: end.raft_position)
        self.files.state_dirty = True

    def durable_state(self) -> LogState:
        """Content for the ``epochs`` file: what a crash now would leave."""
        raft, files, end = self.raft, self.files, self.ends.durable
        epochs = tuple(epoch for epoch in raft.epochs if epoch[1] < end.offset or epoch[0] <= end.term)
        controls = raft.controls.before(end.raft_position)
        files.state_dirty = len(epochs) < len(raft.epochs) or len(controls) < len(raft.controls.entries)
        return LogState(
            self.ends.durable_start,
            epochs,
            b"",
            files.clean_offset,
            raft.durable_vote,
            raft.controls.base,
            controls,
            files.local_wanted,
        )

    # -- segments and ranges -------------------------------------------------------------------------------------------

    def refresh(self) -> Segment:
        """The active segment with its end and size as of now."""
        segment = self.files.segments.active
        segment.end_offset = self.ends.next_offset
        segment.size_bytes = self.cache.next_position - segment.stream
        return segment

    def roll(self) -> None:
        """Seal the active segment and start another; the next batch is its first."""
        segment = self.refresh()
        segment.sealed = True
        self.files.rolled.append(segment)
        self.host.rolled(self)
        self.behind.target = max(self.behind.target, segment.end)
        self.cache.close_open()
        self.files.segments.add(Segment(self.directory, self.ends.next_offset, segment.end, self.host.now_ms()))

    def note_batch_start(self, one: Range, start: int, base_offset: Offset) -> None:
        """Remember that a batch starts at byte ``start`` of a range: for reads of it and for the segment's index."""
        one.note(start, base_offset)
        segment = one.segment
        position = one.segment_position + start
        if not position:
            segment.created_ms = self.host.now_ms()
            segment.began_us = -1
            self.host.segment_began(self, segment)
        if position >= segment.next_index:
            segment.entries += (base_offset, position, segment.max_timestamp)
            segment.next_index = position + self.sizes.index_interval

    @property
    def written_position(self) -> BytePosition:
        """End of what is in the segments' page cache."""
        return self.ends.written_position

    def release_oldest(self, one: Range) -> bool:
        """The cache needs the memory of ``one``, which is in the segment: release it, unless an older one is there."""
        if self.cache.oldest is not one:
            return False
        if one is self.cache.open:
            self.cache.close_open()
            self.cache.level = 0
        self.forget_oldest(one)
        return True

    def forget_oldest(self, one: Range) -> None:
        """Remove ``one``, the oldest range, which is in the segment, from the log; its memory is the caller's."""
        self.cache.drop_oldest()
        self.behind.gone(one)  # a cut of the log's end would not find it in the cache, to shorten it

    def write_out(self) -> None:
        """The cache needs the memory of the oldest bytes: write what is durable to the segment."""
        if not self.closed:
            self.behind.write(self.ends.durable_position)
