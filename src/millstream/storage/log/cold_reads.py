"""Reads of what the log cache no longer holds: memory from the arena, the read itself by the worker.

The reactor allocates fragments, the worker fills them from the segment and says how many bytes are whole, sound
batches; what is left over goes back. The log cache is not touched: history streams past it. When the arena has no
fragments, the read waits (``waiting_reads``).

A damaged batch fails the read that meets it, with ``Corruption`` that names file, byte and offset, and one line in the
log; the rest of the log goes on being served. Callbacks never come before ``read`` returned. After ``stop`` nothing is
sent: the worker answers what it was sent, everything else is refused retriably.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.format.epochs import epochs_between
from millstream.iobuf.room import allocate_room, chain_of, release_all, spans_of
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.storage.log.waiting_reads import WaitingReads
from millstream.storage.messages.commands import Read
from millstream.storage.segments.read_faults import closed, raise_fault, stopping

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import Arena, Fragment, IoBuf
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.messages.commands import Broke, Command, ReadDone
    from millstream.storage.segments.read_faults import ReadFaults
    from millstream.telemetry.metrics import StatsSlab

    Done = Callable[[IoBuf | MillstreamError], None]

_ROOM_MIN: Final = 512


class ColdRead:
    """One read, from ``read`` to its callback."""

    __slots__ = (
        "begun_us",
        "below_start",
        "done",
        "end_offset",
        "found_end",
        "fragments",
        "generation",
        "log",
        "max_bytes",
        "minimum_one",
        "offset",
        "room",
        "segment",
    )

    def __init__(
        self,
        log: OpenLog,
        offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        minimum_one: bool,
        done: Done,
        begun_us: int,
        below_start: bool,
    ) -> None:
        self.log = log
        self.offset = offset
        self.end_offset = end_offset
        self.max_bytes = max_bytes
        self.minimum_one = minimum_one
        self.done = done
        self.begun_us = begun_us
        self.room = max_bytes
        self.segment: Segment | None = None
        self.generation = log.generation
        self.below_start = below_start
        """What lies below the log's start offset may be read while it is there."""
        self.found_end: Offset = offset
        """End (exclusive) of the batches that were found; set when the callback comes."""
        self.fragments: list[Fragment] = []


class ColdReads:
    """Reads of data that left the log cache, by the worker. One per shard."""

    def __init__(
        self, reactor: Reactor, arena: Arena, stats: StatsSlab, send: Callable[[Command], None], faults: ReadFaults
    ) -> None:
        self._reactor = reactor
        self._arena = arena
        self._send = send
        self._calls: dict[int, ColdRead] = {}
        self._next_id = 1
        self._waiting: WaitingReads[ColdRead] = WaitingReads(reactor, self._begin, _fail)
        self._stopped = False
        self._faults = faults
        self._reads = stats.counter("cold_reads")
        self._latency = stats.histogram("cold_read_latency")
        self._bytes = stats.counter("read_bytes", source="segment")

    def read(
        self,
        log: OpenLog,
        offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        done: Done,
        *,
        minimum_one: bool,
        below_start: bool = False,
    ) -> ColdRead:
        """See ``Log.read_cold``."""
        now_us = self._reactor.now_us()
        call = ColdRead(log, offset, end_offset, max(0, max_bytes), minimum_one, done, now_us, below_start)
        self._reads.inc()
        self._waiting.begin(call)
        return call

    def stop(self) -> None:
        """Send no more requests: the worker is to end, and may not answer them."""
        self._stopped = True
        self._waiting.start_all()

    def _begin(self, call: ColdRead) -> bool:
        try:
            return self._start(call)
        except Exception as error:  # noqa: BLE001 - the boundary
            call.log.failed("read", error)
            self._reactor.call_soon(call.log.guard, "read", call.done, closed(call.log.name))
            return True

    def _start(self, call: ColdRead) -> bool:
        """Send the read to the worker; False when there is no memory for it."""
        log = call.log
        if log.closed:
            self._reactor.call_soon(call.log.guard, "read", call.done, closed(log.name))
            return True
        if self._stopped:
            self._reactor.call_soon(call.log.guard, "read", call.done, stopping(log.name))
            return True
        segment = log.segments_list.find(call.offset)
        if segment is None or (call.offset < log.start_offset and not call.below_start):
            self._reactor.call_soon(call.log.guard, "read", call.done, _not_here(call))
            return True
        limit = min(log.written_position, log.refresh().end if not segment.sealed else segment.end) - segment.stream
        room = min(max(call.room, _ROOM_MIN), limit)
        if room <= 0:
            raise AssertionError(f"{log.name}: offset {call.offset} is neither cached nor written")
        fragments = allocate_room(self._arena, room)
        if fragments is None:
            return False
        call.fragments = fragments
        call.segment = segment
        call.generation = log.generation
        number = self._next_id
        self._next_id += 1
        self._calls[number] = call
        self._send(
            Read(
                number,
                segment.path,
                segment.base_offset,
                limit,
                call.offset,
                call.end_offset,
                call.max_bytes,
                call.minimum_one,
                spans_of(fragments),
                epochs_between(log.epochs, call.offset, call.end_offset),
            )
        )
        return True

    def finished(self, reply: ReadDone) -> None:
        """The worker's answer."""
        call = self._calls.pop(reply.id)
        if reply.need:
            call.room = reply.need
            release_all(call.fragments)
            self._waiting.again(call)
            return
        if reply.errno == errno.ENOENT and call.log.segments_list.find(call.offset) is not call.segment:
            # Compaction took the place of the file that was to be read.
            release_all(call.fragments)
            self._waiting.again(call)
            return
        self._latency.observe(self._reactor.now_us() - call.begun_us)
        failure = self._failure(call, reply)
        if failure is not None:
            release_all(call.fragments)
            call.log.guard("read", call.done, failure)
            return
        call.found_end = Offset(reply.end_offset)
        self._bytes.inc(reply.bytes)
        call.log.guard("read", call.done, chain_of(call.fragments, reply.bytes))

    def broke(self, reply: Broke, fault: Exception) -> None:
        """The worker has met in a read what no read meets."""
        call = self._calls.pop(reply.id)
        release_all(call.fragments)
        call.log.guard("read", raise_fault, fault)
        call.log.guard("read", call.done, closed(call.log.name))

    def _failure(self, call: ColdRead, reply: ReadDone) -> MillstreamError | None:
        name = call.log.name
        path = call.segment.path if call.segment is not None else call.log.directory
        fault = reply.fault
        if reply.errno == errno.ENOENT:
            if call.log.closed:
                return closed(call.log.name)
            if call.offset < call.log.start_offset:
                return Rejected(f"{name}: offset {call.offset} was deleted", ErrorCode.OFFSET_OUT_OF_RANGE)
            fault = f"{path} is missing"
        if fault and call.generation != call.log.generation:
            return Retriable(f"{name}: its end was cut while it was read", ErrorCode.KAFKA_STORAGE_ERROR)
        if fault:
            self._faults.corrupt(name, path, call.offset, fault)
            return Corruption(f"{name}: {fault}")
        if reply.errno:
            self._faults.failed(name, path, reply.errno)
            return Unavailable(f"{name}: {os.strerror(reply.errno)}")
        return None


def _not_here(call: ColdRead) -> MillstreamError:
    name, offset = call.log.name, call.offset
    if call.log.start_offset <= offset < call.log.first_local_offset:
        return Retriable(f"{name}: offset {offset} is in no local segment any more", ErrorCode.KAFKA_STORAGE_ERROR)
    return Rejected(f"{name}: offset {offset} is not there", ErrorCode.OFFSET_OUT_OF_RANGE)


def _fail(call: ColdRead, error: MillstreamError) -> None:
    call.log.guard("read", call.done, error)
