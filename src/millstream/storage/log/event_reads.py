"""Reads of events that are in memory no more: memory from the arena, the read itself by the worker.

The reactor allocates fragments, the worker fills them. A read that finds no memory fails retriably, and so does one
whose log was cut meanwhile. Damage fails the read that meets it, with ``Corruption`` that names the file, and one line
in the log. Callbacks never come before the call returned.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, TypeAlias

from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.iobuf.room import allocate_room, chain_of, release_all, spans_of
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.storage.messages.commands import DataFetched, EventsFed, Feed, FetchData
from millstream.storage.segments.read_faults import closed, raise_fault, stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.iobuf import Arena, Fragment, IoBuf
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.event_log import EventLog
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.messages.commands import Broke, Command
    from millstream.storage.segments.read_faults import ReadFaults

    FeedDone = Callable[[tuple[EventsFed, IoBuf] | MillstreamError], None]
    DataDone = Callable[[tuple[DataFetched, IoBuf] | MillstreamError], None]

Wanted: TypeAlias = tuple[int, bytes]
"""Event id, and the bytes of its descriptor."""

ROOM_MIN: Final = 4096


class _Call:
    """One read, from the call to its callback."""

    __slots__ = ("done", "fragments", "generation", "log", "make", "offset", "segment")

    def __init__(
        self, log: OpenLog, segment: Segment, offset: Offset, make: Callable[[int, list[int]], Command], done: object
    ) -> None:
        self.log = log
        self.segment = segment
        self.offset = offset
        self.make = make
        self.done = done
        self.generation = log.generation
        self.fragments: list[Fragment] = []


class EventReads:
    """Reads of one shard's event topics."""

    def __init__(self, reactor: Reactor, arena: Arena, send: Callable[[Command], None], faults: ReadFaults) -> None:
        self._reactor = reactor
        self._arena = arena
        self._send = send
        self._faults = faults
        self._calls: dict[int, _Call] = {}
        self._next_id = 1
        self._stopped = False

    def feed(
        self, log: EventLog, offset: Offset, end_offset: Offset, events_max: int, max_bytes: int, done: FeedDone
    ) -> None:
        """Metadata and descriptors of events of one chunk from ``offset`` on, below ``end_offset``: one event at least,
        and otherwise at most ``events_max`` and ``max_bytes``. The bytes lie as ``EventsFed`` says.
        """
        segment = self._segment(log, offset, done)
        if segment is None:
            return

        def make(number: int, spans: list[int]) -> Command:
            return Feed(number, segment.path, offset, end_offset, events_max, max_bytes, log.open_files_max, spans)

        self._start(_Call(log, segment, offset, make, done), max(ROOM_MIN, max_bytes))

    def fetch(self, log: EventLog, wanted: Sequence[Wanted], max_bytes: int, room: int, done: DataDone) -> None:
        """Selected data of events, as many of the first as are in one chunk and in ``max_bytes``; ``room`` is what they
        are thought to take. The bytes lie back to back.
        """
        segment = self._segment(log, Offset(wanted[0][0]), done)
        if segment is None:
            return
        here = list(wanted)
        for place, (offset, _) in enumerate(here):
            if log.segments_list.find(Offset(offset)) is not segment:
                del here[place:]
                break

        def make(number: int, spans: list[int]) -> Command:
            return FetchData(number, segment.path, here, max_bytes, log.open_files_max, spans)

        self._start(_Call(log, segment, Offset(wanted[0][0]), make, done), max(ROOM_MIN, min(room, max_bytes)))

    def stop(self) -> None:
        """The worker ends: it is asked nothing more."""
        self._stopped = True

    def _segment(self, log: OpenLog, offset: Offset, done: Callable[[MillstreamError], None]) -> Segment | None:
        """The segment of an offset; None if there is none; ``done`` gets the reason."""
        refusal: MillstreamError
        if log.closed:
            refusal = closed(log.name)
        elif self._stopped:
            refusal = stopping(log.name)
        else:
            segment = log.segments_list.find(offset) if offset >= log.start_offset else None
            if segment is not None:
                return segment
            refusal = Rejected(f"{log.name}: there is no event {offset}", ErrorCode.OFFSET_OUT_OF_RANGE)
        self._reactor.call_soon(log.guard, "read", done, refusal)
        return None

    def _start(self, call: _Call, room: int) -> None:
        fragments = allocate_room(self._arena, room)
        if fragments is None:
            refusal = Retriable("no memory to read into", ErrorCode.KAFKA_STORAGE_ERROR)
            self._reactor.call_soon(call.log.guard, "read", call.done, refusal)
            return
        call.fragments = fragments
        number = self._next_id
        self._next_id += 1
        self._calls[number] = call
        self._send(call.make(number, spans_of(fragments)))

    def finished(self, reply: EventsFed | DataFetched) -> None:
        """The worker's answer."""
        call = self._calls.pop(reply.id)
        done: Callable[[object], None] = call.done  # type: ignore[assignment]
        failure = self._failure(call, reply)
        if failure is None and reply.need:
            self._release(call)
            if self._stopped:
                call.log.guard("read", done, stopping(call.log.name))
            else:
                self._start(call, reply.need)
            return
        if failure is not None:
            self._release(call)
            call.log.guard("read", done, failure)
            return
        fragments, call.fragments = call.fragments, []
        call.log.guard("read", done, (reply, chain_of(fragments, reply.bytes)))

    def broke(self, reply: Broke, fault: Exception) -> None:
        """The worker has met in a read what no read meets."""
        call = self._calls.pop(reply.id)
        self._release(call)
        done: Callable[[object], None] = call.done  # type: ignore[assignment]
        call.log.guard("read", raise_fault, fault)
        call.log.guard("read", done, closed(call.log.name))

    def _failure(self, call: _Call, reply: EventsFed | DataFetched) -> MillstreamError | None:
        log, path, fault = call.log, call.segment.path, reply.fault
        if reply.errno == errno.ENOENT:
            if log.closed:
                return closed(log.name)
            if log.start_offset <= call.offset < log.first_local_offset:
                what = f"{log.name}: event {call.offset} has gone to the object store"
                return Retriable(what, ErrorCode.KAFKA_STORAGE_ERROR)
            if call.offset < log.start_offset:
                return Rejected(f"{log.name}: event {call.offset} was deleted", ErrorCode.OFFSET_OUT_OF_RANGE)
            fault = f"{path} is missing"
        if fault and call.generation != log.generation:
            return Retriable(f"{log.name}: its end was cut while it was read", ErrorCode.KAFKA_STORAGE_ERROR)
        if fault:
            self._faults.corrupt(log.name, path, call.offset, fault)
            return Corruption(f"{log.name}: {fault}")
        if reply.errno:
            self._faults.failed(log.name, path, reply.errno)
            return Unavailable(f"{log.name}: {os.strerror(reply.errno)}", ErrorCode.KAFKA_STORAGE_ERROR)
        return None

    def _release(self, call: _Call) -> None:
        fragments, call.fragments = call.fragments, []
        release_all(fragments)
