"""Acknowledgements that wait for the object store (``shared.wal=object``): one shard's log of objects.

::

    batch ──► own disk ──on_durable──► gate ──┐ what all shared partitions got since the last entry
                                              ├──► entry ──► archive process: written if nothing is there
    acknowledged ◄── group ◄── gate ◄─────────┘                      (`object_wal`)

A gate (`wal_gate`) stands between a log and its group: the group is told that the log is durable when an entry has it,
or the archive. So an acknowledged record, and one that readers have seen, is not lost with the disk. A partition with
several replicas passes its gate, because a majority of disks has what it acknowledges.

One entry is in flight at a time. The next one starts when it is confirmed, at least ``shared.wal.interval.ms`` after
it started, or at once when ``shared.wal.bytes`` wait. Batches stay in memory until then. Entries leave the store when
the archive has all that is in them, the oldest first (`stored_entries`).

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
from millstream.model.quantities import Offset
from millstream.model.shared import SharedPartition
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.tiers.describing import Descriptions
from millstream.tiers.messages import LogPart
from millstream.tiers.packing import end_of
from millstream.tiers.stored_entries import StoredEntries
from millstream.tiers.wal_gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.format.archive import TopicDescription
    from millstream.iobuf import IoBuf
    from millstream.model.replication import RaftPosition, Term
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.partition_archive import PartitionArchive

PARTS_MAX: Final = 5000
"""Partitions in one entry."""

_WAIT_US: Final = 200_000
_WAIT_MAX_US: Final = 5_000_000
_LINES: Final = RateLimit(per_minute=6)


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
    """One entry, from its first part until the store has it."""

    __slots__ = ("begun_us", "parts", "queue", "size_bytes")

    def __init__(self, gates: Iterable[Gate], begun_us: int) -> None:
        self.begun_us = begun_us
        self.queue = deque(gates)
        """The gates that are still to be read, each once."""
        self.parts: list[_Part] = []
        self.size_bytes = 0

    def add(self, part: _Part) -> None:
        self.parts.append(part)
        self.size_bytes += part.size_bytes

    def release(self) -> None:
        """Give the memory of the batches back."""
        for part in self.parts:
            part.release()
        self.parts = []


class _Meters:
    """What the metrics say of the log of one shard."""

    __slots__ = ("_entries", "_latency", "_written_bytes", "pending_bytes")

    def __init__(self, stats: StatsSlab) -> None:
        self.pending_bytes = stats.gauge("shared_wal_pending_bytes")
        self._entries = stats.counter("shared_wal_objects")
        self._written_bytes = stats.counter("shared_wal_written_bytes")
        self._latency = stats.histogram("shared_wal_latency")

    def written(self, size_bytes: int, took_us: int) -> None:
        """The store has an entry."""
        self._latency.observe(took_us)
        self._entries.inc()
        self._written_bytes.inc(size_bytes)


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
        self._descriptions = Descriptions(link, describe)
        self._on_sealed = on_sealed
        self.pending_bytes = 0
        """About what no entry has, of all partitions."""
        self._gates: dict[SharedPartition, Gate] = {}
        self._dirty: dict[Gate, None] = {}
        """Gates with something that is in no entry, the oldest first."""
        self._entry = _Entry((), 0)
        """The entry that is filled, or in flight; empty between entries."""
        self._number = 0
        """Of the next entry."""
        self._busy = self._armed = self._stopped = False
        self._next_us = 0
        self._failures = 0
        self._is_damaged = False
        """A partition acknowledges nothing more."""
        self._stored = StoredEntries(reactor, link, self._gates)
        self._meters = _Meters(stats)

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
            gate.confirmed >= gate.opened and gate.start.confirmed >= gate.start.opened for gate in alone
        )

    def begin(self) -> None:
        """This broker knows what it has: entries may be written."""
        self._held = False
        self._wake()

    def stop(self) -> None:
        """Start nothing more. Comes before the link's end, which answers what is in flight."""
        self._stopped = True
        self._stored.stop()

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
        self._meters.pending_bytes.set(self.pending_bytes)

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
        self._entry = _Entry(self._dirty, self._reactor.now_us())
        self._read_on()

    def _read_on(self) -> None:
        """Take what each partition has, until the entry is full."""
        entry = self._entry
        while not self._stopped and entry.queue and len(entry.parts) < PARTS_MAX:
            room = self._entry_bytes_max - entry.size_bytes
            if room <= 0:
                break
            gate = entry.queue[0]
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
        if self._entry.queue and self._entry.queue[0] is gate:
            self._entry.queue.popleft()

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
        self._entry.queue.popleft()
        if found is not None and (gate.closed or not len(found)):
            found.release()
            return
        part = _Part(gate, gate.taken, found)
        gate.taken, gate.start.taken = part.end_offset, part.start_offset
        if not gate.lags:
            self._dirty.pop(gate, None)
        self._entry.add(part)

    def _send(self) -> None:
        """Have the entry written; before that the description of each topic, by which its records are found."""
        parts = self._entry.parts
        if self._stopped or not parts:
            self._entry.release()
            self._busy = False
            self._wake()
            return
        if self._descriptions.write_next((part.gate.archive.owner for part in parts), self._wrote_topic):
            return
        self._link.append_entry(self._number, [part.message() for part in parts], self._answered)

    def _wrote_topic(self, error: MillstreamError | None) -> None:
        if error is not None:
            self._failed(error)
        else:
            self._send()

    def _answered(self, error: MillstreamError | None) -> None:
        if isinstance(error, Rejected):
            self._entry.release()
            self.stop()
            self._on_sealed(error.message)
        elif error is not None:
            self._failed(error)
        else:
            self._written()

    def _failed(self, error: MillstreamError) -> None:
        """Send the same entry again, after a wait that doubles."""
        if self._stopped:
            self._entry.release()
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
        entry = self._entry
        self._meters.written(entry.size_bytes, self._reactor.now_us() - entry.begun_us)
        self._next_us = entry.begun_us + self._interval_us
        parts, entry.parts = entry.parts, []
        self._stored.add(self._number, [(part.gate, part.end_offset, part.start_offset) for part in parts])
        self._number += 1
        for part in parts:
            gate = part.gate
            gate.start.confirmed = max(gate.start.confirmed, part.start_offset)
            gate.archive.log.guard("commit", self._confirm, gate, part.end_offset, part.size_bytes)
            part.release()
        self._busy = False
        self._wake()
        self._stored.trim_later()

    def _confirm(self, gate: Gate, end_offset: Offset, size_bytes: int) -> None:
        """The store has a partition up to an offset."""
        gate.confirmed = max(gate.confirmed, end_offset)
        gate.taken = max(gate.taken, gate.confirmed)
        done = gate.confirmed >= gate.archive.log.durable_offset
        self._settle(gate, gate.pending_bytes if done else size_bytes)
        gate.deliver()
        if not gate.closed:
            gate.archive.start.on_safe()


def _key(archive: PartitionArchive) -> SharedPartition:
    return SharedPartition(archive.owner.topic_id.bytes, archive.owner.partition_index)
