"""One log: append at the end, read anywhere, learn how far it is durable. What a Raft group or a partition stands on.

``make_room`` and ``write`` together are an append; neither waits. ``make_room`` finds memory and a place in the
write-ahead log, or refuses; between the two the caller proposes the batch, and ``write`` can't fail: it copies the
batch into the log cache, sets base offset and leader epoch in the copy, and puts a record into this turn's tick.
``on_durable`` follows from the reactor when that tick is synced. Reads are answered from the cache without a copy
(``read``), or by the worker from the segment files (``read_cold``), whole batches always.

A refused append (``ArenaFull``: no cache, or no WAL space; ``Rejected``: larger than a WAL file) leaves no trace.
Offsets are dense and the caller's: an append that does not continue the log is a broken invariant and stops the shard.

Shard: the log's home, on its reactor. Lifecycle: ``ShardStorage.open_log`` … ``close_log`` or ``delete_log``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from millstream.format.segment import BATCH_PREFIX
from millstream.format.wal import RECORD, RECORD_BYTES, Kind
from millstream.iobuf import IoBuf
from millstream.model.replication import Term
from millstream.storage.log import cutting, entries, entry_reads, exporting, header_replay, placing
from millstream.storage.log.cold_reads import ColdRequest
from millstream.storage.log.host import LogHost
from millstream.storage.log.open_log import OpenLog
from millstream.storage.log.placing import HEAD, HEAD_AT
from millstream.storage.log.recovered import recovered
from millstream.storage.log.segment_list import SegmentInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.config.topic_properties import TopicConfig
    from millstream.errors import MillstreamError
    from millstream.format.epochs import StoredControl, StoredVote
    from millstream.model.quantities import Offset, TimestampMs
    from millstream.model.replication import RaftPosition
    from millstream.storage.log.entries import SentEntries
    from millstream.storage.log.entry_reads import EntryRead
    from millstream.storage.log.exporting import ExportedBatches
    from millstream.storage.log.open_log import LogFacts
    from millstream.storage.log.opening import LoadedLog
    from millstream.storage.log.placing import Piece
    from millstream.storage.log.recovered import RecoveredLog
    from millstream.storage.log.shard_reads import ShardReads
    from millstream.storage.messages.commands import FoundRecord

_BATCH_KIND: Final = int(Kind.BATCH)
_set_prefix = BATCH_PREFIX.pack_into
_pack_record = RECORD.pack_into

_read_head = HEAD.unpack_from


class LogShard(LogHost, Protocol):
    """A ``LogHost`` with the means to read logs."""

    reads: ShardReads

    def found_again(self, log: Log) -> None:
        """A lost log has everything again."""
        ...


class Log(OpenLog):
    """The public face of one open log; its fields and their laws are in ``OpenLog``."""

    __slots__ = ("_shard", "_wal")

    def __init__(self, shard: LogShard, facts: LogFacts, config: TopicConfig, loaded: LoadedLog) -> None:
        super().__init__(shard, facts, config, loaded)
        self._shard = shard
        self._wal = shard.wal

    # -- append --------------------------------------------------------------------------------------------------------

    def append(
        self,
        views: Sequence[memoryview],
        size: int,
        base_offset: Offset,
        last_offset: Offset,
        leader_epoch: Term,
        max_timestamp: TimestampMs,
    ) -> None:
        """Put one batch of ``size`` bytes, spread over ``views``, at the end of the log: ``make_room``, then ``write``.

        Raises:
            ArenaFull: no room now; nothing was appended.
            Rejected: the batch is larger than a file of the write-ahead log.
        """
        pieces = self.make_room(views, size, last_offset, leader_epoch)
        self.write(views, size, base_offset, last_offset, leader_epoch, max_timestamp, pieces)

    def make_room(
        self, views: Sequence[memoryview], size: int, last_offset: Offset, leader_epoch: Term
    ) -> list[Piece] | None:
        """Find the place of the next batch, which ``write`` has to follow in the same step; what it gives is for
        ``write``.

        Raises:
            ArenaFull: no room now; nothing was appended.
            Rejected: the batch is larger than a file of the write-ahead log.
        """
        one = self.cache.open
        wal = self._wal
        tick = wal.tick
        if (
            one.used + size <= one.limit
            and last_offset <= one.offset_max
            and leader_epoch == self.raft.epoch
            and len(views) == 1
            and tick.records < wal.records_max
            and tick.payload_bytes + size <= wal.tick_bytes_max
        ):
            return None
        return placing.place(self, size, last_offset, leader_epoch)

    def write(
        self,
        views: Sequence[memoryview],
        size: int,
        base_offset: Offset,
        last_offset: Offset,
        leader_epoch: Term,
        max_timestamp: TimestampMs,
        pieces: list[Piece] | None,
    ) -> None:
        """Produce 7/8. Put the batch for which ``make_room`` found a place at the end of the log.

        ``base_offset`` must be ``next_offset``. The bytes are copied before this returns; ``on_durable`` says when they
        are synced.
        """
        ends = self.ends
        if base_offset != ends.next_offset:
            raise AssertionError(f"{self.name}: batch at offset {base_offset}, the log's end is {ends.next_offset}")
        wal = self._wal
        tick = wal.tick
        spans = tick.spans
        if pieces is None:
            one = self.cache.open
            start = one.used
            end = start + size
            view = one.view
            view[start:end] = views[0]
            one.used = end
            at = one.arena_offset + start
            if spans[-1] == at:
                spans[-1] = at + size
            else:
                spans += (at, at + size)
        else:
            one, start, _ = pieces[0]
            view = one.view
            placing.fill(views, pieces, spans)
            if leader_epoch != self.raft.epoch:
                self.begin_epoch(leader_epoch, base_offset)
        _set_prefix(view, start, base_offset, size - 12, leader_epoch)
        crc, first_timestamp = _read_head(view, start + HEAD_AT)
        at = tick.table_end
        _pack_record(tick.table, at, _BATCH_KIND, 0, 0, self.group, leader_epoch, base_offset, last_offset, size, crc)
        tick.table_end = at + RECORD_BYTES
        tick.records += 1
        tick.payload_bytes += size
        if start >= one.next_batch_offset:
            self.note_batch_start(one, start, base_offset)
        segment = one.segment
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.max_timestamp_offset = base_offset
        if first_timestamp < segment.min_timestamp:
            segment.min_timestamp = first_timestamp
        ends.next_offset = last_offset + 1  # pyright: ignore[reportAttributeAccessIssue] - an offset, without a call
        if self.tick_serial != tick.serial:
            self.tick_serial = tick.serial
            tick.logs.append(self)
        if not wal.armed:
            wal.arm()

    def check_room(self, sent: SentEntries) -> None:
        """Whether ``append_entries`` will take all of these entries, if nothing but a vote and a cut comes between.

        Raises:
            ArenaFull: no memory or no write-ahead log for all of them now; nothing was changed.
            Rejected: a batch is larger than a file of the write-ahead log.
        """
        entries.check_room(self, sent)

    def append_entries(self, sent: SentEntries, term: Term) -> None:
        """Append entries of a leader, or a leader's own control entries: all of them, or none.

        ``sent.start`` must be ``next_raft_position``. The bytes are copied before this returns; ``on_persisted``
        follows with ``term``, the group's term now.

        Raises:
            ArenaFull: no memory or no write-ahead log for all of them now; nothing was appended.
            Rejected: a batch is larger than a file of the write-ahead log.
        """
        if sent.start != self.next_raft_position or self.ends.cutting or self.closed:
            raise AssertionError(
                f"{self.name}: entries from position {sent.start}, the log goes on at {self.next_raft_position},"
                f" cutting: {self.ends.cutting}, closed: {self.closed}"
            )
        memory = entries.take_room(self, sent)
        self.raft.write_term = term
        try:
            for one in sent.entries:
                if isinstance(one, entries.EncodedControl):
                    cutting.append_control(self, one.term, one.payload, memory.pop(0) if one.payload else None)
                else:
                    self.append(
                        one.views, one.size_bytes, one.base_offset, one.last_offset, one.term, one.max_timestamp
                    )
        finally:
            self._shard.memory.put_back()
            for fragment in memory:
                fragment.release()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, offset: Offset, end_offset: Offset, max_bytes: int, minimum_one: bool) -> IoBuf | None:
        """Whole batches from the one that holds ``offset``, below ``end_offset``, from memory; None if they are not
        there.

        At most ``max_bytes``, but with ``minimum_one`` at least one batch; empty at the end. The caller
        releases it.
        """
        ends, cache = self.ends, self.cache
        if offset >= end_offset or offset >= ends.next_offset:
            return IoBuf()
        if end_offset == ends.durable_offset:
            end = ends.durable_position
        elif end_offset >= ends.next_offset:
            end = cache.next_position
        else:
            position = cache.position_of(end_offset)
            if position is None:
                self._shard.meters.cache_misses.inc()
                return None
            end = position
        found = cache.read(offset, end, max_bytes, minimum_one=minimum_one)
        if found is None:
            self._shard.meters.cache_misses.inc()
        else:
            self._shard.meters.cache_hits.inc()
            self._shard.meters.cache_read_bytes.inc(len(found))
        return found

    def read_pages(self, offset: Offset, end_offset: Offset, max_bytes: int, minimum_one: bool) -> IoBuf | None:
        """The same from the segment file, if it is in the page cache and checked runs hold it; None if the worker has
        to read (``page_reads``).
        """
        return self._shard.reads.pages.read(self, offset, end_offset, max_bytes, minimum_one=minimum_one)

    def read_cold(
        self,
        offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        minimum_one: bool,
        done: Callable[[IoBuf | MillstreamError], None],
    ) -> None:
        """The same from the segment file, through the worker; the bytes' checksums are checked. ``done`` comes later.

        One segment at most, so it may be less than is there. Memory is the fetch class's: nothing is evicted for it.
        """
        self._shard.reads.cold.read(self, ColdRequest(offset, end_offset, max_bytes, minimum_one), done)

    def read_entries(self, start: RaftPosition, limit: RaftPosition, max_bytes: int) -> EntryRead | None:
        """Entries from ``start`` up to ``limit`` at most, lent from memory; None if they are not there
        (``read_entries_cold`` then).

        ``start`` is the end of an entry. At most ``max_bytes``, but at least one batch; the caller releases
        them.

        Raises:
            Rejected: ``start`` is before ``first_position``.
        """
        return entry_reads.read_cached(self, start, limit, max_bytes)

    def read_entries_cold(
        self,
        start: RaftPosition,
        limit: RaftPosition,
        max_bytes: int,
        done: Callable[[EntryRead | MillstreamError], None],
    ) -> None:
        """The same from the segment files, through the worker. ``done`` comes later.

        Raises:
            Rejected: ``start`` is before ``first_position``.
        """
        entry_reads.read_cold(self, self._shard.reads.cold, start, limit, max_bytes, done)

    def offset_for_timestamp(
        self,
        timestamp: TimestampMs,
        end_offset: Offset,
        done: Callable[[FoundRecord | MillstreamError | None], None],
    ) -> None:
        """The first record below ``end_offset`` with a timestamp ≥ ``timestamp``."""
        self._shard.reads.timestamps.find(self, timestamp, end_offset, done)

    def max_timestamp(self, end_offset: Offset, done: Callable[[FoundRecord | MillstreamError | None], None]) -> None:
        """The record with the largest timestamp below ``end_offset``, the first of several (KIP-734)."""
        self._shard.reads.timestamps.find_largest(self, end_offset, done)

    def replay_headers(self, from_offset: Offset, each: Callable[[tuple[int, ...]], None]) -> None:
        """Call ``each`` with the 13 header fields of every sound batch from that of ``from_offset`` on, from segments
        here, and after those of a control batch what ``wire.records.marker_of`` gives. Blocks.

        Raises:
            Corruption: the segment files are not whole.
        """
        header_replay.replay(self._shard.disk, self, from_offset, each, self._shard.reads.faults)

    # -- changes at either end, and the vote ---------------------------------------------------------------------------

    def save_vote(self, vote: StoredVote, done: Callable[[], None]) -> None:
        """Keep the replica's term and vote; ``done`` when they are durable.

        Raises:
            ArenaFull: no room now; nothing was changed.
        """
        cutting.save_vote(self, vote, done)

    def trim_prefix(self, offset: Offset, done: Callable[[], None] | None = None) -> None:
        """Let the log start at ``offset``, durably; segments below go. ``done`` when it is durable; going back is
        ignored.

        Raises:
            ArenaFull: no room in the write-ahead log now; nothing was changed.
        """
        cutting.trim_prefix(self, offset, done)

    def trim_local(self, offset: Offset) -> Callable[[], None]:
        """Let the files of the log start at ``offset``, the end of a sealed segment; the log's start stays. What is
        before must be archived. Call what this returns after the next checkpoint: the files go then.
        """
        return cutting.trim_local(self, offset)

    def truncate_suffix(self, offset: Offset, done: Callable[[], None] | None = None) -> None:
        """Let the log end at ``offset`` (a batch's base offset), durably: what came after is void.

        It does when ``done`` is called, in a later turn; nothing may be appended before.

        Raises:
            ArenaFull: no room in the write-ahead log now; nothing was changed.
        """
        cutting.truncate_suffix(self, offset, done)

    def truncate_to(self, end: RaftPosition, done: Callable[[], None] | None = None) -> None:
        """``truncate_suffix`` to Raft position ``end`` (exclusive), which may lie between control entries.

        Raises:
            ArenaFull: no room in the write-ahead log now; nothing was changed.
        """
        cutting.truncate_to(self, end, done)

    def append_control(self, term: Term, payload: bytes) -> StoredControl:
        """Append a control entry in ``term``. It takes a Raft position and no offset; ``on_durable`` follows its sync.

        Raises:
            ArenaFull: no room now; nothing was appended.
        """
        return cutting.append_control(self, term, payload)

    def found_again(self) -> None:
        """The leader has made up for what was lost here."""
        self.files.lost = False
        self._shard.found_again(self)

    def fold_controls(self, end: RaftPosition, payload: bytes) -> None:
        """Forget the control entries before ``end``, which is durable; ``payload`` says what they came to."""
        durable = self.ends.durable.raft_position
        if end > durable:
            raise AssertionError(f"{self.name}: position {end} is folded, durable is {durable}")
        self.raft.controls.fold(end, Term(max(0, self.raft.term_before(end))), payload)
        self.files.state_dirty = True
        self.host.changed(self)

    def read_for_replica(
        self,
        offset: Offset,
        end: Offset,
        max_bytes: int,
        done: Callable[[ExportedBatches | MillstreamError], None],
    ) -> None:
        """Read batches for a replica that is sent files, from the one with ``offset`` on and before ``end``
        (``exporting``).

        ``done`` gets them later, or ``Rejected`` if ``offset`` was deleted.
        """
        exporting.read_batches(self, self._shard.reads.cold, offset, end, max_bytes, done)

    # -- what is there -------------------------------------------------------------------------------------------------

    @property
    def first_position(self) -> RaftPosition:
        """Raft position of the first entry that ``read_entries`` can give; those before are trimmed, compacted or
        folded. It moves up while the log is open.
        """
        return entry_reads.first_position(self)

    def recovered(self) -> RecoveredLog:
        """What the log holds for the core of its group; asked before anything is written to it."""
        return recovered(self)

    @property
    def leader_epochs(self) -> list[tuple[Term, Offset]]:
        """(leader epoch, its first offset), rising."""
        return list(self.raft.epochs)

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first; the last is the active one."""
        self.refresh()
        written = self.ends.written_position
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
            for one in self.files.segments.all()
        ]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.next_position - self.files.segments.first.stream
