"""The reactor's side of the write-ahead log: what is appended in a turn becomes one tick, one frame, one sync.

::

    Log.write ──► tick (filling) ──end of turn──► submitted ─► writer: pwritev, fdatasync ─► landed ─► durable
    offsets, acks

When the writer is idle, the end of the turn submits whatever the turn appended; a lone request waits for nothing.
While a tick is out, appends gather in the next one: batching comes from the disk's own speed. Under load ticks also
start some time apart (`storage.wal.pace`), which trades wake-ups for batch size.

Frames go to zero-filled files that are used in turn. A file is free again once a checkpoint has made everything up to
its last frame durable in the segments *and* the ``state`` file says so durably (`release`), never earlier. New files
up to `file_limit` are prepared ahead by the worker. When none is free, filled ticks wait, `on_full` asks for a
checkpoint, and appends are refused with `WalFull` once every slot is taken: nothing is lost, producers try again.

A frame that could not be written or synced ends the shard through `on_failure`: after a failed sync nobody knows what
is on disk. Only one for which the disk has no room waits (`refused`, `on_no_room`): where a file system copies what it
overwrites, a full disk has none even for files that are there. Nobody was promised anything of it, nothing of it was
synced, and `try_again` writes the same bytes to the same place; those that wait for it wait on. One tick is out at a
time and ticks land in order, so "durable" is one number. Shard: the owner of the logs, on its reactor.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from millstream.format.names import wal_name
from millstream.format.wal import (
    FILE_HEADER_BYTES,
    FRAME_HEAD_BYTES,
    RECORD,
    RECORD_BYTES,
    SECTOR_BYTES,
    Kind,
    frame_bytes,
)
from millstream.iobuf import ArenaFull
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
    from millstream.shard.reactor import Reactor, Timer
    from millstream.storage.wal.files import WalFiles
    from millstream.storage.wal.ticks import Slot, TickSlots
    from millstream.telemetry.metrics import StatsSlab

TICK_BYTES_MAX: Final = 8 * 1024 * 1024
"""Payload of one frame, unless a single batch is larger: what a disk writes in a few milliseconds."""

_pack_record = RECORD.pack_into


class WalFull(ArenaFull):
    """No room in the write-ahead log until the next tick or checkpoint; nothing was taken, try again."""


class WalLog(Protocol):
    """What the write-ahead log knows of a log that appends to it."""

    group: RaftGroupId
    tick_serial: int
    """The tick that the log is entered in; written with each record that is added."""

    def end(self) -> Any:
        """Where the log ends now, as a value of the log's own."""
        ...

    def became_durable(self, end: Any) -> None:
        """A tick with records of the log is synced; `end` is what `end` gave when the tick was closed."""
        ...


class Tick:
    """One group commit, being filled or written; there is one per slot, used over and over.

    `serial` tells its uses apart. `logs` are the logs with records in it, each once; `ends` say where each ended when
    the tick was closed.
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
        """Ready to be filled."""
        self.records = 0
        self.payload_bytes = 0
        self.table_end = FRAME_HEAD_BYTES
        self.spans = [-1]  # start, end, start, end, … behind a stopper that never equals a start
        self.logs: list[WalLog] = []
        self.ends: list[Any] = []
        self.callbacks: list[Callable[[], None]] = []


class Wal:
    """The write-ahead log of one shard.

    `tick` is the one being filled; `Log.write` writes its record into it directly and calls `arm` once a turn.
    Everybody else uses `add_note`.
    """

    def __init__(
        self,
        reactor: Reactor,
        stats: StatsSlab,
        slots: TickSlots,
        submit: Callable[[], None],
        *,
        files: WalFiles,
        pacing_us: int,
        next_sequence: int,
    ) -> None:
        self._reactor = reactor
        self._submit_slot = submit
        self._ticks = deque(Tick(slot) for slot in slots.slots)
        self.files = files
        # A frame must fit a file, with the table of as many records as a tick may have.
        self.records_max = min(RECORDS_MAX, files.file_bytes // SECTOR_BYTES)
        self.tick_bytes_max = min(TICK_BYTES_MAX, self.record_bytes_max - 2 * self.records_max * RECORD_BYTES)
        self._pace = TickPace(pacing_us)
        self._paced: Timer | None = None  # fires when the tick that fills may start
        self.armed = False
        self.closed = False
        self.tick = self._ticks.popleft()
        self.tick.serial = self._serial = 1
        self._waiting: deque[Tick] = deque()  # filled, not yet submitted
        self._out: Tick | None = None
        self._next_sequence = next_sequence
        self.needed_sequence = next_sequence
        self.durable_sequence = next_sequence - 1
        self._out_sequence = 0
        self._out_bytes = 0
        self.written_bytes = 0
        """Bytes of all landed frames."""

        self.full = False
        """Filled ticks wait for space."""

        self.refused = False
        """The disk has no room for the tick that is out."""

        self._at_writer = False
        self.on_no_room: Callable[[int], None] = _nothing_of
        self.on_full: Callable[[], None] = _nothing
        self.on_landed: Callable[[], None] = _nothing
        self.on_failure: Callable[[str], None] = _unset
        self._write_us = stats.histogram("wal_write_latency")
        self._sync_us = stats.histogram("wal_sync_latency")
        self._tick_us = stats.histogram("wal_tick_latency")
        self._tick_count = stats.counter("wal_ticks")
        self._record_count = stats.counter("wal_records")
        self._byte_count = stats.counter("wal_written_bytes")
        self._tick_records = stats.histogram("wal_tick_records")
        self._tick_bytes = stats.histogram("wal_tick_bytes")
        self._used_bytes = stats.gauge("wal_used_bytes")
        self._full_waits = stats.counter("wal_full_waits")

    # -- filling -------------------------------------------------------------------------------------------------------

    @property
    def record_bytes_max(self) -> int:
        """The largest payload that a frame can hold."""
        return self.files.file_bytes - FILE_HEADER_BYTES - SECTOR_BYTES - 2 * (FRAME_HEAD_BYTES + RECORD_BYTES)

    def arm(self) -> None:
        """Have this turn's tick submitted when the turn ends."""
        self.armed = True
        self._reactor.end_of_turn(self._turn_ended)

    def make_room(self, size: int, spans: int = 1) -> Tick:
        """The tick that takes one more record of `size` bytes in `spans` pieces.

        Raises:
            WalFull: all slots are taken.
        """
        tick = self.tick
        if tick.records and (
            tick.records >= self.records_max
            or len(tick.spans) + 2 * spans > 2 * (SPANS_MAX - RECORDS_MAX)  # every later record may bring one span
            or tick.payload_bytes + size > self.tick_bytes_max
        ):
            if not self._ticks:
                self._full_waits.inc()
                raise WalFull("the write-ahead log takes no more until what was appended is on disk")
            self._waiting.append(tick)
            tick = self._next_tick()
        return tick

    def takes(self, records: Iterable[tuple[int, int]]) -> bool:
        """Whether there is room now for these records: (payload bytes, pieces of the payload) of each, in order."""
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
        """Append a record that is no batch (`Kind` says what it holds).

        `payload` is (start, end, CRC-32C) in the arena and stays until `done`.

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
            tick.callbacks.append(done)
        if not self.armed:
            self.arm()

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back once everything that was appended before this call is durable; at once if it is."""
        tick = self.tick if self.tick.records else self._waiting[-1] if self._waiting else self._out
        if tick is None:
            callback()
        else:
            tick.callbacks.append(callback)

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _turn_ended(self) -> None:
        self.armed = False
        if self._out is not None or self.closed:
            return
        paced = self._paced
        if not self._waiting:
            tick = self.tick
            due_us = self._pace.due_us(tick.records, tick.payload_bytes)
            if paced is not None and paced.deadline_us == due_us:
                return
            if due_us and self._reactor.now_us() < due_us:
                if paced is not None:
                    paced.cancel()
                self._paced = self._reactor.call_at(due_us, self._pace_over)
                return
        if paced is not None:
            paced.cancel()
            self._paced = None
        self._submit()

    def _pace_over(self) -> None:
        self._paced = None
        if self._out is None and not self.closed:
            self._submit()

    def _submit(self) -> None:
        """Hand the oldest filled tick to the writer, if there is one and space for it."""
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
        words[W_SEQUENCE] = self._next_sequence
        words[W_DURABLE_SEQUENCE] = self.durable_sequence
        words[W_NEEDED_SEQUENCE] = self.needed_sequence
        words[W_OPENS_FILE] = opens
        words[W_FILE_BYTES] = files.file_bytes
        self._out = tick
        self._out_sequence = self._next_sequence
        self._out_bytes = size
        self._next_sequence += 1
        files.advance(size)
        self._pace.submitted(self._reactor.now_us(), records)
        self._at_writer = True
        self._submit_slot()

    def _next_tick(self) -> Tick:
        """The tick that was filling is closed: fix what it covers, fill another."""
        closed = self.tick
        closed.ends = [log.end() for log in closed.logs]
        self._serial += 1
        tick = self.tick = self._ticks.popleft()
        tick.serial = self._serial
        return tick

    def landed(self) -> None:
        """The writer is done with the tick that was out: tell the logs how far they are durable now."""
        tick = self._out
        if tick is None:
            raise AssertionError("a tick landed that was never submitted")
        words = tick.slot.words
        status = words[W_STATUS]
        self._at_writer = False
        self.refused = found_no_room(status)
        if self.refused:
            self.on_no_room(status & 0xFFFF)
            return
        if status:
            self.closed = True
            verb = "synced" if status >> 16 == STAGE_SYNC else "written"
            reason = os.strerror(status & 0xFFFF)
            self.on_failure(f"a write-ahead log frame could not be {verb}: {reason} ({wal_name(words[W_FILE])})")
            return
        self._out = None
        self.written_bytes += self._out_bytes
        self._observe(tick, words)
        logs, ends, callbacks = tick.logs, tick.ends, tick.callbacks
        tick.clear()
        self._ticks.append(tick)
        if (self._waiting or self.tick.records) and not self.armed:
            self.arm()  # whatever the callbacks below append goes with it
        for log, end in zip(logs, ends, strict=True):
            log.became_durable(end)
        # Not before: a checkpoint that is asked for meanwhile would pass over the last logs and void their frame.
        self.durable_sequence = self._out_sequence
        for callback in callbacks:
            callback()
        self.on_landed()

    def _observe(self, tick: Tick, words: memoryview) -> None:
        self._write_us.observe(words[W_WRITE_US])
        self._sync_us.observe(words[W_SYNC_US])
        self._tick_us.observe(self._reactor.now_us() - self._pace.submitted_us)
        self._tick_count.inc()
        self._record_count.inc(tick.records)
        self._byte_count.inc(self._out_bytes)
        self._tick_records.observe(tick.records)
        self._tick_bytes.observe(self._out_bytes)

    # -- space --------------------------------------------------------------------------------------------------------

    def _take_file(self) -> bool:
        """Go on in another file; False when there is none yet."""
        if not self.files.take(self._next_sequence):
            if not self.full:
                self.full = True
                self._full_waits.inc()
            if not self.files.prepare_now():
                self.on_full()
            return False
        self.full = False
        self._used_bytes.set(self.files.used_bytes)
        return True

    def file_ready(self, number: int) -> None:
        """A file that was asked for is there."""
        self.files.ready(number)
        self._resume()

    def try_again(self) -> None:
        """The disk was full, and there may be space now."""
        self.files.try_again()
        if self.refused and not self._at_writer:
            self._at_writer = True
            self._submit_slot()
        self._resume()

    def release(self, needed_sequence: int) -> None:
        """Frames below `needed_sequence` are in the segments, durably, and the ``state`` file says so."""
        self.needed_sequence = max(self.needed_sequence, needed_sequence)
        self.files.release(needed_sequence)
        self._used_bytes.set(self.files.used_bytes)
        self._resume()

    def _resume(self) -> None:
        if self.full and self._out is None and not self.closed:
            self._submit()

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    @property
    def idle(self) -> bool:
        """Nothing is filled and nothing is out."""
        return self._out is None and not self._waiting and not self.tick.records

    def close(self) -> None:
        """Take no more, and have the writer end. Only when idle."""
        if not self.idle:
            raise AssertionError("the write-ahead log is closed with ticks under way")
        self.closed = True
        self.files.hurry()
        self.tick.slot.words[W_RECORDS] = 0
        self._submit_slot()


def _unset(_: object) -> None:
    raise AssertionError("the write-ahead log was used before it was wired")


def _nothing() -> None:
    """Nobody is interested."""


def _nothing_of(_: int) -> None:
    """Nobody is interested."""
