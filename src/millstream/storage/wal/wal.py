"""The reactor's side of the write-ahead log. The appends of one turn become one tick: one frame, one sync.

::

    Log.write ──► tick (filling) ──end of turn──► submitted ─► writer: pwritev, fdatasync ─► landed ─► durable
    offsets, acks

At the end of a turn, an idle writer gets what the turn appended; a single request waits for nothing else. While the
writer is busy, appends gather in the next tick, so a slower disk gets larger frames. Under load, pacing also keeps
ticks some time apart (``storage.wal.pace``), which trades latency for fewer wake-ups.

Frames go to zero-filled files that are used in turn. A file is free again once a checkpoint has made everything up to
its last frame durable in the segments *and* the ``state`` file durably says so (``release``). The worker prepares new
files ahead, up to the limit of ``WalFiles``. When no file is free, filled ticks wait, and ``WalOwner.wal_full``
requests a checkpoint. When all slots are taken, appends raise ``WalFull``: nothing is lost, and producers try again.

A frame that could not be written or synced ends the shard (``WalOwner.fail``), because after a failed sync the content
of the disk is unknown. The one exception is a frame for which the disk has no room: its tick waits
(``refused``, ``WalOwner.disk_full``), and so do the callbacks of its records, until ``try_again`` writes the same bytes
to the same place. A full disk may refuse a write to an existing file on file systems that copy on write.

One tick is at the writer at a time and ticks land in order, so one number, ``durable_sequence``, says what is durable.
Shard: the owner of the logs, on its reactor.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from millstream.format.names import wal_name
from millstream.format.wal import (
    FILE_HEADER_BYTES,
    FRAME_HEAD_BYTES,
    RECORD,
    RECORD_BYTES,
    SECTOR_BYTES,
    FrameSequence,
    Kind,
    frame_bytes,
)
from millstream.iobuf import MAX_FRAGMENT_BYTES, ArenaFull
from millstream.storage.disk import DiskFault
from millstream.storage.wal.pace import TickPace
from millstream.storage.wal.ticks import (
    RECORDS_MAX,
    SPANS_MAX,
    STAGE_SYNC,
    W_DURABLE_SEQUENCE,
    W_FILE,
    W_FILE_BYTES,
    W_GENERATION,
    W_NEEDED_SEQUENCE,
    W_OPENS_FILE,
    W_PAYLOAD_BYTES,
    W_POSITION,
    W_RECORDS,
    W_SEQUENCE,
    W_SPANS,
    W_STATUS,
    W_SYNC_US,
    W_WRITE_US,
    found_no_room,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import Term
    from millstream.shard.reactor import Reactor
    from millstream.storage.wal.files import WalFiles
    from millstream.storage.wal.ticks import Slot, TickSlots
    from millstream.telemetry.metrics import StatsSlab

TICK_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum payload of one frame, unless a single batch is larger. A disk writes this in a few milliseconds."""

_pack_record = RECORD.pack_into


class WalFull(ArenaFull):
    """The write-ahead log has no room before the next tick or checkpoint. Nothing was appended; try again later."""


class WalLog(Protocol):
    """The part of a log that the write-ahead log uses."""

    group: RaftGroupId
    tick_serial: int
    """Serial of the tick whose ``logs`` have this log. Set when a record is added."""

    def end(self) -> Any:
        """The current end of the log. The write-ahead log only keeps it."""
        ...

    def became_durable(self, end: Any) -> None:
        """A tick with records of the log is synced. ``end`` is what ``end()`` returned when the tick was closed."""
        ...

    def failed(self, verb: str, error: Exception) -> None:
        """A verb of the log has raised. Raises ``error`` if it is the shard's fault."""
        ...

    def guard(self, verb: str, call: Callable[..., object], *arguments: object) -> None:
        """Run a verb of the log behind its boundary."""
        ...


class Tick:
    """One group commit while it is filled and written. There is one ``Tick`` per slot, used again and again.

    ``serial`` is different for each use. ``logs`` are the logs with records in the tick, each once. ``ends`` are their
    ends when the tick was closed, in the same order. ``callbacks`` run when the tick is durable.
    """

    __slots__ = (
        "callbacks",
        "logs",
        "ends",
        "payload_bytes",
        "records",
        "serial",
        "slot",
        "spans",
        "table",
        "table_end",
    )

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.table = slot.frame
        self.serial = 0
        self.clear()

    def clear(self) -> None:
        """Empty the tick, so that it can be filled again."""
        self.records = 0
        self.payload_bytes = 0
        self.table_end = FRAME_HEAD_BYTES
        self.spans = [-1]  # sentinel (equal to no start), start, end, start, end, …
        self.logs: list[WalLog] = []
        self.ends: list[Any] = []
        self.callbacks: list[Callable[[], None]] = []


class WalOwner(Protocol):
    """What the write-ahead log tells its shard."""

    def tick_landed(self) -> None:
        """A tick is durable, and its logs know it."""
        ...

    def wal_full(self) -> None:
        """Filled ticks wait for a file, and none is being prepared: request a checkpoint."""
        ...

    def disk_full(self, errno: int) -> None:
        """The disk had no room for a frame."""
        ...

    def fail(self, fault: DiskFault, reason: str) -> None:
        """A frame could not be written or synced: stop the shard."""
        ...


class _Meters:
    """What the write-ahead log counts."""

    def __init__(self, stats: StatsSlab) -> None:
        self.write_us = stats.histogram("wal_write_latency")
        self.sync_us = stats.histogram("wal_sync_latency")
        self.tick_us = stats.histogram("wal_tick_latency")
        self.ticks = stats.counter("wal_ticks")
        self.records = stats.counter("wal_records")
        self.bytes = stats.counter("wal_written_bytes")
        self.tick_records = stats.histogram("wal_tick_records")
        self.tick_bytes = stats.histogram("wal_tick_bytes")
        self.used_bytes = stats.gauge("wal_used_bytes")
        self.full_waits = stats.counter("wal_full_waits")

    def landed(self, tick: Tick, took_us: int, size_bytes: int) -> None:
        """A tick was written as a frame of ``size_bytes``; ``took_us`` passed since it was submitted."""
        words = tick.slot.words
        self.write_us.observe(words[W_WRITE_US])
        self.sync_us.observe(words[W_SYNC_US])
        self.tick_us.observe(took_us)
        self.ticks.inc()
        self.records.inc(tick.records)
        self.bytes.inc(size_bytes)
        self.tick_records.observe(tick.records)
        self.tick_bytes.observe(size_bytes)


class _Frame(NamedTuple):
    """A tick that was submitted to the writer."""

    tick: Tick
    sequence: FrameSequence
    size_bytes: int


class Wal:
    """The write-ahead log of one shard.

    ``tick`` is the tick that is being filled. ``Log.write`` puts a batch's record into it directly and calls ``arm``
    once a turn. All other records are added with ``add_note``.
    """

    def __init__(
        self,
        reactor: Reactor,
        stats: StatsSlab,
        slots: TickSlots,
        submit: Callable[[], None],
        *,
        owner: WalOwner,
        files: WalFiles,
        pacing_us: int,
        next_sequence: FrameSequence,
    ) -> None:
        self._reactor = reactor
        self._submit_slot = submit
        self.owner = owner
        self._meters = _Meters(stats)
        self.files = files
        # A frame with the largest table must fit a file.
        self.records_max = min(RECORDS_MAX, files.file_bytes // SECTOR_BYTES)
        self.tick_bytes_max = min(TICK_BYTES_MAX, self.record_bytes_max - 2 * self.records_max * RECORD_BYTES)
        self._pace = TickPace(pacing_us)
        self.armed = False
        self.closed = False
        self._ticks = deque(Tick(slot) for slot in slots.slots)
        self.tick = self._ticks.popleft()
        self.tick.serial = 1
        self._waiting: deque[Tick] = deque()  # closed, not yet submitted
        self._out: _Frame | None = None
        self._at_writer = False
        self.next_sequence = next_sequence
        """Sequence of the next frame."""

        self.durable_sequence = FrameSequence(next_sequence - 1)
        """Sequence of the last frame that is synced."""

        self.needed_sequence = next_sequence
        """Sequence of the first frame that recovery needs."""

        self.full = False
        """Closed ticks wait for a free file."""

        self.refused = False
        """The disk had no room for the submitted tick, which waits for ``try_again``."""

    @property
    def written_bytes(self) -> int:
        """Total bytes of landed frames."""
        return self._meters.bytes.value

    # -- filling -------------------------------------------------------------------------------------------------------

    @property
    def record_bytes_max(self) -> int:
        """Maximum payload of a frame with one record."""
        return self.files.file_bytes - FILE_HEADER_BYTES - SECTOR_BYTES - 2 * (FRAME_HEAD_BYTES + RECORD_BYTES)

    def arm(self) -> None:
        """Submit the tick at the end of this turn, or when pacing allows."""
        self.armed = True
        self._reactor.end_of_turn(self._turn_ended)

    def make_room(self, size: int, spans: int = 1) -> Tick:
        """The tick that has room for one more record of ``size`` bytes in ``spans`` pieces; a new one if ``tick`` has
        not.

        Raises:
            WalFull: all slots are taken.
        """
        tick = self.tick
        if tick.records and (
            tick.records >= self.records_max
            or len(tick.spans) + 2 * spans > 2 * (SPANS_MAX - RECORDS_MAX)  # each record may need one span more
            or tick.payload_bytes + size > self.tick_bytes_max
        ):
            if not self._ticks:
                self._meters.full_waits.inc()
                raise WalFull("the write-ahead log takes no more until what was appended is on disk")
            self._waiting.append(tick)
            tick = self._next_tick()
        return tick

    def takes(self, records: Iterable[tuple[int, int]]) -> bool:
        """Whether all of these records fit now. ``records``: (payload bytes, pieces of the payload), in order."""
        free = len(self._ticks)
        tick = self.tick
        count, payload_bytes, spans = tick.records, tick.payload_bytes, len(tick.spans)
        for size, pieces in records:
            if count and (
                count >= self.records_max
                or spans + 2 * pieces > 2 * (SPANS_MAX - RECORDS_MAX)
                or payload_bytes + size > self.tick_bytes_max
            ):
                if not free:
                    return False
                free -= 1
                count, payload_bytes, spans = 0, 0, 1
            count += 1
            payload_bytes += size
            spans += 2 * pieces
        return True

    def takes_small(self, count: int, size_bytes: int) -> bool:
        """Whether so many records of ``size_bytes`` together fit into the open tick; False as well if they may not."""
        tick = self.tick
        pieces = size_bytes // MAX_FRAGMENT_BYTES + 2 * count
        return (
            tick.records + count <= self.records_max
            and len(tick.spans) + 2 * pieces <= 2 * (SPANS_MAX - RECORDS_MAX)
            and tick.payload_bytes + size_bytes <= self.tick_bytes_max
        )

    def add_note(
        self,
        log: WalLog,
        kind: Kind,
        base: int,
        last: int,
        payload: tuple[int, int, int],
        done: Callable[[], None] | None,
        term: Term | int = 0,
    ) -> None:
        """Append a record other than a batch; ``Kind`` defines the meaning of ``base`` and ``last``.

        ``payload`` is (arena offset of its start, of its end (exclusive), CRC-32C). Its bytes must not change before
        ``done``, which is called when the record is durable.

        Raises:
            WalFull: all slots are taken; nothing was appended.
        """
        start, end, crc = payload
        tick = self.make_room(end - start)
        _pack_record(tick.table, tick.table_end, kind, 0, 0, log.group, term, base, last, end - start, crc)
        tick.table_end += RECORD_BYTES
        tick.records += 1
        if end > start:
            tick.payload_bytes += end - start
            tick.spans += (start, end)
        if log.tick_serial != tick.serial:
            log.tick_serial = tick.serial
            tick.logs.append(log)
        if done is not None:
            tick.callbacks.append(partial(log.guard, "note", done))
        if not self.armed:
            self.arm()

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest frame that has, or will have, something that was appended before this call."""
        return self.next_sequence + len(self._waiting) - (0 if self.tick.records else 1)

    def mend(self, log: WalLog) -> None:
        """A verb of ``log`` has raised in this turn, perhaps in the middle of an append: keep whole records only. The
        log is removed from the tick that is being filled.

        Raises:
            AssertionError: the tick has fewer bytes than its records say.
        """
        tick = self.tick
        tick.table_end = FRAME_HEAD_BYTES + tick.records * RECORD_BYTES
        spans = tick.spans
        excess = sum(spans[2::2]) - sum(spans[1::2]) - tick.payload_bytes
        if excess < 0:
            raise AssertionError("a tick lacks bytes of its records")
        while excess:
            size = min(excess, spans[-1] - spans[-2])
            spans[-1] -= size
            excess -= size
            if spans[-1] == spans[-2]:
                del spans[-2:]
        if log in tick.logs:
            tick.logs.remove(log)
        log.tick_serial = 0
        if tick.records and not self.armed:
            self.arm()

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back when everything appended before this call is durable; at once if it already is."""
        out = None if self._out is None else self._out.tick
        tick = self.tick if self.tick.records else self._waiting[-1] if self._waiting else out
        if tick is None:
            callback()
        else:
            tick.callbacks.append(callback)

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _turn_ended(self) -> None:
        self.armed = False
        if self._out is not None or self.closed:
            return
        paced = self._pace.timer
        if not self._waiting:
            tick = self.tick
            due_us = self._pace.due_us(tick.records, tick.payload_bytes)
            if paced is not None and paced.deadline_us == due_us:
                return
            if due_us and self._reactor.now_us() < due_us:
                if paced is not None:
                    paced.cancel()
                self._pace.timer = self._reactor.call_at(due_us, self._pace_over)
                return
        if paced is not None:
            paced.cancel()
            self._pace.timer = None
        self._submit()

    def _pace_over(self) -> None:
        self._pace.timer = None
        if self._out is None and not self.closed:
            self._submit()

    def _submit(self) -> None:
        """Submit the oldest tick with records to the writer, if a file has room for it."""
        tick = self._waiting[0] if self._waiting else self.tick
        records = tick.records
        if not records:
            return
        files = self.files
        size = frame_bytes(records, tick.payload_bytes, files.position)
        opens = not files.fits(size)
        if opens:
            if not self._take_file():
                return
            size = frame_bytes(records, tick.payload_bytes, files.position)
        if tick is self.tick:
            if not self._ticks:
                raise AssertionError("a tick was filled while no slot could follow it")
            self._next_tick()
        else:
            self._waiting.popleft()
        spans = len(tick.spans) - 1
        slot = tick.slot
        slot.spans[:spans] = array("Q", tick.spans[1:])
        words = slot.words
        words[W_RECORDS] = records
        words[W_SPANS] = spans
        words[W_PAYLOAD_BYTES] = tick.payload_bytes
        words[W_FILE] = files.number
        words[W_POSITION] = files.position
        words[W_GENERATION] = files.generation
        words[W_SEQUENCE] = self.next_sequence
        words[W_DURABLE_SEQUENCE] = self.durable_sequence
        words[W_NEEDED_SEQUENCE] = self.needed_sequence
        words[W_OPENS_FILE] = opens
        words[W_FILE_BYTES] = files.file_bytes
        self._out = _Frame(tick, self.next_sequence, size)
        self.next_sequence = FrameSequence(self.next_sequence + 1)
        files.advance(size)
        self._pace.submitted(self._reactor.now_us(), records)
        self._at_writer = True
        self._submit_slot()

    def _next_tick(self) -> Tick:
        """Close ``tick``: note the ends of its logs, and start the next one. Returns the new ``tick``."""
        closed = self.tick
        logs, closed.logs = closed.logs, []
        for log in logs:
            try:
                end = log.end()
            except Exception as error:  # noqa: BLE001 - the boundary
                log.failed("commit", error)
                continue
            closed.logs.append(log)
            closed.ends.append(end)
        tick = self.tick = self._ticks.popleft()
        tick.serial = closed.serial + 1
        return tick

    def landed(self) -> None:
        """The writer has finished the submitted tick: announce what is durable, or handle its error."""
        if self._out is None:
            raise AssertionError("a tick landed that was never submitted")
        tick, sequence, size_bytes = self._out
        words = tick.slot.words
        status = words[W_STATUS]
        self._at_writer = False
        self.refused = found_no_room(status)
        if self.refused:
            self.owner.disk_full(status & 0xFFFF)
            return
        if status:
            self.closed = True
            verb, fault = ("synced", DiskFault.SYNC) if status >> 16 == STAGE_SYNC else ("written", DiskFault.WRITE)
            reason = os.strerror(status & 0xFFFF)
            what = f"a write-ahead log frame could not be {verb}: {reason} ({wal_name(words[W_FILE])})"
            self.owner.fail(fault, what)
            return
        self._out = None
        self._meters.landed(tick, self._reactor.now_us() - self._pace.submitted_us, size_bytes)
        logs, ends, callbacks = tick.logs, tick.ends, tick.callbacks
        tick.clear()
        self._ticks.append(tick)
        if (self._waiting or self.tick.records) and not self.armed:
            self.arm()  # records that the callbacks below append go into the same tick
        for log, end in zip(logs, ends, strict=True):
            try:
                log.became_durable(end)
            except Exception as error:  # noqa: BLE001 - the boundary
                log.failed("commit", error)
        # Set after the calls above: a checkpoint that one of them starts would miss the remaining logs and void their
        # frame.
        self.durable_sequence = sequence
        for callback in callbacks:
            callback()
        self.owner.tick_landed()

    # -- space --------------------------------------------------------------------------------------------------------

    def _take_file(self) -> bool:
        """Make another file the current one. False: none is free yet."""
        if not self.files.take(self.next_sequence):
            if not self.full:
                self.full = True
                self._meters.full_waits.inc()
            if not self.files.prepare_now():
                self.owner.wal_full()
            return False
        self.full = False
        self._meters.used_bytes.set(self.files.used_bytes)
        return True

    def file_ready(self, number: int) -> None:
        """The worker has prepared file ``number``."""
        self.files.ready(number)
        self._resume()

    def try_again(self) -> None:
        """The disk was full and may have space now: submit a refused tick again, request a file if needed."""
        self.files.try_again()
        if self.refused and not self._at_writer:
            self._at_writer = True
            self._submit_slot()
        self._resume()

    def release(self, needed_sequence: FrameSequence) -> None:
        """Free the files below frame ``needed_sequence`` (exclusive). The segments durably have those frames, and the
        ``state`` file says so.
        """
        self.needed_sequence = max(self.needed_sequence, needed_sequence)
        self.files.release(needed_sequence)
        self._meters.used_bytes.set(self.files.used_bytes)
        self._resume()

    def _resume(self) -> None:
        if self.full and self._out is None and not self.closed:
            self._submit()

    @property
    def idle(self) -> bool:
        """No tick has records and none is at the writer."""
        return self._out is None and not self._waiting and not self.tick.records

    def close(self) -> None:
        """End the writer. The log must be ``idle``; nothing can be appended afterwards."""
        if not self.idle:
            raise AssertionError("the write-ahead log is closed with unfinished ticks")
        self.closed = True
        self.files.hurry()
        self.tick.slot.words[W_RECORDS] = 0
        self._submit_slot()
