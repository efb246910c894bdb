"""Acknowledgements that wait for the object store (``shared.wal=object``): one shard's log of objects.

::

    batch ──► own disk ──on_durable──► gate ──┐ what all shared partitions got since the last entry
                                              ├──► entry ──► archive process: written if nothing is there
    acknowledged ◄── group ◄── gate ◄─────────┘                      (`object_wal`)

A gate stands between a log and its group: the group is told that the log is durable when an entry has it, or the
archive. So an acknowledged record, and one that readers have seen, is not lost with the disk. A partition with several
replicas passes its gate, because a majority of disks has what it acknowledges.

One entry is in flight at a time. The next one starts when it is confirmed, at least ``shared.wal.interval.ms`` after
it started, or at once when ``shared.wal.bytes`` wait. Batches stay in memory until then. Entries leave the store when
the archive has all that is in them, the oldest first.

Each part of an entry says where the log of its partition starts. A start that moves without a batch takes a part
without one, and DeleteRecords is answered when the entry is confirmed. The entry stays until the manifest object of the
partition has the start (`shared_manifest`). Until an entry has a new start, no entry of the partition is removed: a
restore that does not know the start looks for the records before it.

**The store is slow or away.** The same entry is sent again, for ever; `pending_bytes` grows, and refuses producers with
what is not uploaded. **Another broker has taken over.** The log is sealed: nothing more is acknowledged, and the
broker stops with one sentence, and in a cluster starts again by itself. **Crash.** What the disk has and no entry is
put into entries of the next life, before it is shown to anybody. Until then the end of the log is not known
(`SoleVoterGroup.known_from`): ListOffsets, DeleteRecords, and a fetch at the high watermark answer
OFFSET_NOT_AVAILABLE, so that no end goes back. In a cluster that life writes nothing before the broker has applied its
registration: then it knows which partitions were taken over since (`core.controller.restoring`), and an entry never
has what the broker that restored one of them does not know. **A damaged batch.** Its partition acknowledges nothing
more until it is opened again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.model.quantities import BytePosition, Offset
from millstream.model.shared import SharedPartition
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.tiers.describing import describe
from millstream.tiers.messages import LogPart
from millstream.tiers.packing import end_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.archive import TopicDescription
    from millstream.iobuf import IoBuf
    from millstream.model.replication import RaftPosition, Term
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.partition_archive import PartitionArchive

PARTS_MAX: Final = 5000
"""Partitions in one entry."""

_TRIM_US: Final = 1_000_000
_CLOSED_US: Final = 60_000_000
"""A partition that is closed may be opened again for so long, with another group."""

_WAIT_US: Final = 200_000
_WAIT_MAX_US: Final = 5_000_000
_LINES: Final = RateLimit(per_minute=6)


class Gate:
    """One partition. Between its log and its group from `SharedWal.open` to `close`."""

    __slots__ = (
        "archive",
        "closed",
        "closed_us",
        "confirmed",
        "inner",
        "key",
        "opened",
        "pending_bytes",
        "seen",
        "start_confirmed",
        "start_opened",
        "start_taken",
        "taken",
        "waiting",
    )

    def __init__(self, archive: PartitionArchive) -> None:
        log, owner = archive.log, archive.owner
        self.archive = archive
        self.key = SharedPartition(owner.topic_id.bytes, owner.partition_index)
        self.closed = False
        self.closed_us = 0
        self.confirmed = max(archive.archive.end_offset, log.start_offset, log.files.local_start)
        """Everything below it is in the store. At most the durable end of the log. A group that elects may learn of its
        archive when this gate has passed its log; what the files no longer have is in the archive.
        """
        self.opened = log.durable_offset
        """The durable end of the log when the gate was made."""
        self.taken = self.confirmed
        """End of what is in an entry, confirmed or in flight. At least ``confirmed``."""
        self.start_opened = log.start_offset
        """The start of the log when the gate was made."""
        self.start_confirmed = self.start_taken = Offset(0)
        """The largest log start that an entry of this log has, and one that is confirmed or in flight."""
        self.pending_bytes = 0
        """About what is durable and not confirmed."""
        self.seen: BytePosition = log.ends.durable_position
        self.waiting: deque[tuple[Offset, RaftPosition, Term]] = deque()
        """Of a group that elects: durable ends that it does not know yet."""
        self.inner: Callable[[RaftPosition, Term], None] | None = None

    @property
    def is_alone(self) -> bool:
        """Whether this replica's disk is all that acknowledges."""
        return self.archive.group.voters == 1

    @property
    def limit(self) -> Offset:
        """The group may believe that the log is durable up to here."""
        log = self.archive.log
        return Offset(min(self.confirmed, log.durable_offset)) if self.is_alone else log.durable_offset

    @property
    def lags(self) -> bool:
        """Whether there is something that no entry has."""
        log = self.archive.log
        return self.is_alone and (self.taken < log.durable_offset or self.start_taken < log.start_offset)

    def safe_start(self) -> Offset:
        """The log start that is not lost with the disk."""
        return self.start_confirmed if self.is_alone else self.archive.log.start_offset

    def deliver(self) -> None:
        """Tell the group what it may believe."""
        log, group = self.archive.log, self.archive.group
        if self.closed or log.closed:
            return
        if isinstance(group, SoleVoterGroup):
            group.on_durable(self.limit)
            return
        while self.inner is not None and self.waiting and self.waiting[0][0] <= self.limit:
            _, position, term = self.waiting.popleft()
            self.inner(position, term)


class _Part:
    """What an entry has of one partition."""

    __slots__ = ("base_offset", "chain", "end_offset", "gate", "start_offset")

    def __init__(self, gate: Gate, base_offset: Offset, chain: IoBuf | None) -> None:
        """``chain`` has the batches; None if only the start of the log has moved."""
        self.gate = gate
        self.base_offset = base_offset
        self.chain = chain
        self.end_offset = base_offset if chain is None else end_of(chain)
        self.start_offset = gate.archive.log.start_offset
        """Where the log starts. It stays as it was: an entry that is sent again is the same entry."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return 0 if self.chain is None else len(self.chain)

    def message(self) -> LogPart:
        """What the archive process needs to know."""
        spans: list[int] = []
        for piece, start, end in () if self.chain is None else self.chain.parts:
            spans += (piece.offset + start, piece.offset + end)
        return LogPart(self.gate.key, self.base_offset, self.end_offset, self.start_offset, spans)

    def release(self) -> None:
        """Give the memory of the batches back."""
        if self.chain is not None:
            self.chain.release()


class _Entry:
    """An entry that is confirmed, with the end of each of its parts and the start of its log."""

    __slots__ = ("number", "parts")

    def __init__(self, number: int, parts: list[tuple[Gate, Offset, Offset]]) -> None:
        self.number = number
        self.parts = parts


class SharedWal:
    """The log of one shard. Lifecycle: made with the shard; `stop` before the link's end."""

    def __init__(
        self,
        reactor: Reactor,
        link: ArchiveLink,
        stats: StatsSlab,
        interval_us: int,
        entry_bytes_max: int,
        describe: Callable[[bytes], TopicDescription | None],
        on_sealed: Callable[[str], None],
        *,
        held: bool = False,
    ) -> None:
        """``describe`` gives what is to be known of the topic with that id; ``on_sealed`` is called, with a reason,
        when another broker has taken over. ``held``: nothing is written before `begin`.
        """
        self._held = held
        self._reactor = reactor
        self._link = link
        self._interval_us = interval_us
        self._entry_bytes_max = entry_bytes_max
        self._describe = describe
        self._on_sealed = on_sealed
        self.pending_bytes = 0
        """About what no entry has, of all partitions."""
        self._gates: dict[SharedPartition, Gate] = {}
        self._dirty: dict[Gate, None] = {}
        """Gates with something that is in no entry, the oldest first."""
        self._queue: deque[Gate] = deque()
        self._parts: list[_Part] = []
        self._size_bytes = 0
        self._number = 0
        """Of the next entry."""
        self._busy = self._armed = self._stopped = self._trims = False
        self._next_us = self._begun_us = 0
        self._failures = 0
        self._is_damaged = False
        """A partition acknowledges nothing more."""
        self._entries: deque[_Entry] = deque()
        self._described: set[bytes] = set()
        self._pending = stats.gauge("shared_wal_pending_bytes")
        self._objects = stats.counter("shared_wal_objects")
        self._written_bytes = stats.counter("shared_wal_written_bytes")
        self._latency = stats.histogram("shared_wal_latency")

    # -- partitions ----------------------------------------------------------------------------------------------------

    def open(self, archive: PartitionArchive) -> None:
        """Stand between the log and the group of a partition that was just opened, before anybody is served."""
        gate = self._gates[_key(archive)] = Gate(archive)
        archive.start.safe = gate.safe_start
        archive.start.moved = partial(self._note, gate)
        log, group = archive.log, archive.group
        if isinstance(group, SoleVoterGroup):
            group.high_watermark = min(group.high_watermark, gate.limit)
            group.known_from = gate.opened
            log.owner.on_durable = partial(self._durable, gate)
        else:
            gate.inner = log.owner.on_persisted
            log.owner.on_persisted = partial(self._persisted, gate)
        self._note(gate)

    def close(self, archive: PartitionArchive) -> None:
        """It is no longer served."""
        gate = self._gates.get(_key(archive))
        if gate is not None and gate.archive is archive:
            del self._gates[gate.key]
            gate.closed = True
            gate.closed_us = self._reactor.now_us()
            self._settle(gate, gate.pending_bytes)
            self._dirty.pop(gate, None)

    @property
    def is_complete(self) -> bool:
        """Whether the store has everything that the partitions of one replica had when they were opened here. What came
        since was not acknowledged without the store.
        """
        alone = (gate for gate in self._gates.values() if gate.is_alone)
        return not self._is_damaged and all(
            gate.confirmed >= gate.opened and gate.start_confirmed >= gate.start_opened for gate in alone
        )

    def begin(self) -> None:
        """This broker knows what it has: entries may be written."""
        self._held = False
        self._wake()

    def stop(self) -> None:
        """Start nothing more. Comes before the link's end, which answers what is in flight."""
        self._stopped = True

    def _durable(self, gate: Gate, end_offset: int) -> None:
        _ = end_offset
        self._note(gate)
        gate.deliver()

    def _persisted(self, gate: Gate, position: RaftPosition, term: Term) -> None:
        gate.waiting.append((gate.archive.log.durable_offset, position, term))
        self._note(gate)
        gate.deliver()

    def _note(self, gate: Gate) -> None:
        """The log may be durable further than before, or start later."""
        log = gate.archive.log
        grown, gate.seen = log.ends.durable_position - gate.seen, log.ends.durable_position
        if gate.lags:
            self._settle(gate, -grown)
            self._dirty[gate] = None
            self._wake()

    def _settle(self, gate: Gate, size_bytes: int) -> None:
        """So many bytes wait no longer."""
        size_bytes = min(size_bytes, gate.pending_bytes)
        gate.pending_bytes -= size_bytes
        self.pending_bytes -= size_bytes
        self._pending.set(self.pending_bytes)

    # -- an entry ------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Start the next entry when it is its time."""
        if self._busy or self._stopped or self._held or not self._dirty:
            return
        now_us = self._reactor.now_us()
        if self.pending_bytes >= self._entry_bytes_max or now_us >= self._next_us:
            self._busy = True
            self._reactor.call_soon(self._begin)
        elif not self._armed:
            self._armed = True
            self._reactor.call_later(self._next_us - now_us, self._its_time)

    def _its_time(self) -> None:
        self._armed = False
        self._wake()

    def _begin(self) -> None:
        self._begun_us = self._reactor.now_us()
        self._queue = deque(self._dirty)
        self._parts, self._size_bytes = [], 0
        self._read_on()

    def _read_on(self) -> None:
        """Take what each partition has, until the entry is full."""
        while not self._stopped and self._queue and len(self._parts) < PARTS_MAX:
            room = self._entry_bytes_max - self._size_bytes
            if room <= 0:
                break
            gate = self._queue[0]
            try:
                if self._read(gate, room):
                    return
            except Exception as error:  # noqa: BLE001 - the boundary
                self._leave(gate)
                gate.archive.log.failed("log in the store", error)
        self._send()

    def _read(self, gate: Gate, room: int) -> bool:
        """Take what a partition has, at most ``room`` bytes or one batch; whether its files are read first."""
        log, archived = gate.archive.log, gate.archive.archive.end_offset
        if not gate.closed and archived > gate.confirmed:
            self._confirm(gate, archived, 0)
        if gate.closed or log.closed or not gate.lags:
            self._leave(gate)
            gate.archive.start.on_safe()
        elif gate.taken >= log.durable_offset:
            self._take(gate, None)
        elif (found := log.read(gate.taken, log.durable_offset, room, minimum_one=True)) is not None:
            self._take(gate, found)
        else:
            log.read_cold(gate.taken, log.durable_offset, room, True, partial(self._read_cold, gate))
            return True
        return False

    def _leave(self, gate: Gate) -> None:
        """A partition has nothing for an entry now."""
        self._dirty.pop(gate, None)
        if self._queue and self._queue[0] is gate:
            self._queue.popleft()

    def _read_cold(self, gate: Gate, result: IoBuf | MillstreamError) -> None:
        """The files of a partition were read. The others follow in a turn of their own: what they meet is not its
        fault.
        """
        if isinstance(result, MillstreamError) and not isinstance(result, Corruption):
            self._reactor.call_later(_WAIT_US, self._read_on)
            return
        self._reactor.call_soon(self._read_on)
        if isinstance(result, Corruption):
            self._is_damaged = True
            self._leave(gate)
            operator_log.at(gate.archive.log.name).error(
                "acknowledges nothing more until the next start: %s", result.message
            )
        else:
            self._take(gate, result)

    def _take(self, gate: Gate, found: IoBuf | None) -> None:
        """Put what was read into the entry, None for the log start alone. The partition's turn is over, so that each
        has one.
        """
        self._queue.popleft()
        if found is not None and (gate.closed or not len(found)):
            found.release()
            return
        part = _Part(gate, gate.taken, found)
        self._size_bytes += part.size_bytes
        gate.taken, gate.start_taken = part.end_offset, part.start_offset
        if not gate.lags:
            self._dirty.pop(gate, None)
        self._parts.append(part)

    def _send(self) -> None:
        """Have the entry written; before that the description of each topic, by which its records are found."""
        if self._stopped or not self._parts:
            self._release()
            self._busy = False
            self._wake()
            return
        for part in self._parts:
            topic_id = part.gate.key.topic_id
            if topic_id not in self._described and (topic := self._describe(topic_id)) is not None:
                owner = part.gate.archive.owner
                describe(self._link, owner, topic, partial(self._wrote_topic, topic_id))
                return
        self._link.append_entry(self._number, [part.message() for part in self._parts], self._answered)

    def _wrote_topic(self, topic_id: bytes, error: MillstreamError | None) -> None:
        if error is not None:
            self._failed(error)
        else:
            self._described.add(topic_id)
            self._send()

    def _answered(self, error: MillstreamError | None) -> None:
        if isinstance(error, Rejected):
            self._release()
            self._stopped = True
            self._on_sealed(error.message)
        elif error is not None:
            self._failed(error)
        else:
            self._written()

    def _failed(self, error: MillstreamError) -> None:
        """Send the same entry again, after a wait that doubles."""
        if self._stopped:
            self._release()
            return
        self._failures += 1
        if self._failures == 1 and _LINES.allows():
            operator_log.warning("the write-ahead log in the store is not written, producers wait: %s", error.message)
        wait_us = min(_WAIT_US << min(self._failures - 1, 6), _WAIT_MAX_US)
        self._reactor.call_later(wait_us, self._send)

    def _written(self) -> None:
        """The store has the entry: acknowledge what is in it."""
        if self._failures:
            self._failures = 0
            operator_log.info("the write-ahead log in the store is written again")
        self._latency.observe(self._reactor.now_us() - self._begun_us)
        self._objects.inc()
        self._written_bytes.inc(self._size_bytes)
        self._next_us = self._begun_us + self._interval_us
        parts, self._parts = self._parts, []
        self._entries.append(_Entry(self._number, [(part.gate, part.end_offset, part.start_offset) for part in parts]))
        self._number += 1
        for part in parts:
            gate = part.gate
            gate.start_confirmed = max(gate.start_confirmed, part.start_offset)
            gate.archive.log.guard("commit", self._confirm, gate, part.end_offset, part.size_bytes)
            part.release()
        self._busy = False
        self._wake()
        self._trim_later()

    def _confirm(self, gate: Gate, end_offset: Offset, size_bytes: int) -> None:
        """The store has a partition up to an offset."""
        gate.confirmed = max(gate.confirmed, end_offset)
        gate.taken = max(gate.taken, gate.confirmed)
        done = gate.confirmed >= gate.archive.log.durable_offset
        self._settle(gate, gate.pending_bytes if done else size_bytes)
        gate.deliver()
        if not gate.closed:
            gate.archive.start.on_safe()

    def _release(self) -> None:
        for part in self._parts:
            part.release()
        self._parts = []

    # -- what leaves the store -----------------------------------------------------------------------------------------

    def _trim_later(self) -> None:
        if not self._trims and not self._stopped and len(self._entries) > 1:
            self._trims = True
            self._reactor.call_later(_TRIM_US, self._trim)

    def _trim(self) -> None:
        """Remove the oldest entries if the archive has them. The newest stays."""
        first = end = self._entries[0].number
        for entry in self._entries:
            if entry is self._entries[-1] or not all(self._is_covered(*one) for one in entry.parts):
                break
            end = entry.number + 1
        if end == first or self._stopped:
            self._trimmed(first, None)
        else:
            self._link.trim_entries(first, end, partial(self._trimmed, end))

    def _is_covered(self, gate: Gate, end_offset: Offset, start_offset: Offset) -> bool:
        """Whether no one needs an entry for the offsets of a partition below ``end_offset``, and for the start of its
        log. One that was closed and is not opened again was deleted, or is another broker's.
        """
        now = self._gates.get(gate.key)
        if now is None:
            return self._reactor.now_us() - gate.closed_us > _CLOSED_US
        start = now.archive.start
        if max(now.safe_start(), start.saved) < now.archive.archive.start_offset:
            return False  # the archive ends where the log starts, and the store does not know that start
        end = now.archive.archive.end_offset if now is gate else now.confirmed
        return end >= end_offset and start.saved >= start_offset

    def _trimmed(self, end: int, error: MillstreamError | None) -> None:
        while error is None and self._entries and self._entries[0].number < end:
            self._entries.popleft()
        self._trims = False
        self._trim_later()


def _key(archive: PartitionArchive) -> SharedPartition:
    return SharedPartition(archive.owner.topic_id.bytes, archive.owner.partition_index)
