"""Reads of events that have left memory: memory from the arena, the read itself by the worker (``helper.fills``).

A read whose log was cut in the meantime fails retriably. Damage fails the read that meets it with ``Corruption``, which
names the file, and logs one line. Callbacks never run before the call has returned.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.helper.fills import Fills, release
from millstream.iobuf.room import chain_of
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.storage.messages.commands import DataFetched, EventsFed, Feed, FetchData
from millstream.storage.segments.read_faults import closed, raise_fault, stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.helper.link import CallId, HelperLink
    from millstream.iobuf import Arena, Fragment, IoBuf
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.segments.read_faults import ReadFaults

    FeedDone = Callable[[tuple[EventsFed, IoBuf] | MillstreamError], None]
    DataDone = Callable[[tuple[DataFetched, IoBuf] | MillstreamError], None]

Wanted: TypeAlias = tuple[int, bytes]
"""Event id, and the bytes of its descriptor."""

ROOM_MIN: Final = 4096


class EventReads:
    """Reads of one shard's event topics."""

    def __init__(self, reactor: Reactor, arena: Arena, worker: HelperLink[Any, Any], faults: ReadFaults) -> None:
        self.reactor = reactor
        self.fills = Fills(reactor, arena, worker)
        self.faults = faults
        self.stopped = False

    def feed(
        self, log: OpenLog, offset: Offset, end_offset: Offset, events_max: int, max_bytes: int, done: FeedDone
    ) -> None:
        """Metadata and descriptors of events of one chunk from ``offset`` on, below ``end_offset``: one event at least,
        and otherwise at most ``events_max`` and ``max_bytes``. ``EventsFed`` describes the bytes.
        """
        open_files_max = log.config.event_partition.fd_cache_capacity

        def make(number: CallId, segment: Segment, spans: list[int]) -> Feed:
            return Feed(number, segment.path, offset, end_offset, events_max, max_bytes, open_files_max, spans)

        self.fills.start(_EventRead(self, log, offset, max(ROOM_MIN, max_bytes), EventsFed, make, done))

    def fetch(self, log: OpenLog, wanted: Sequence[Wanted], max_bytes: int, room: int, done: DataDone) -> None:
        """Selected data of events: as many of the first as are in one chunk and in ``max_bytes``. ``room`` is their
        expected size in bytes. The bytes are back to back.
        """
        open_files_max = log.config.event_partition.fd_cache_capacity

        def make(number: CallId, segment: Segment, spans: list[int]) -> FetchData:
            here = list(wanted)
            for place, (offset, _) in enumerate(here):
                if log.files.segments.find(Offset(offset)) is not segment:
                    del here[place:]
                    break
            return FetchData(number, segment.path, here, max_bytes, open_files_max, spans)

        first, room = Offset(wanted[0][0]), max(ROOM_MIN, min(room, max_bytes))
        self.fills.start(_EventRead(self, log, first, room, DataFetched, make, done))

    def stop(self) -> None:
        """The worker is about to end: send nothing more."""
        self.stopped = True
        self.fills.send_all()


class _EventRead:
    """One read, from the call to its callback (``helper.fills.Fill``)."""

    __slots__ = (
        "_done",
        "_generation",
        "_log",
        "_make",
        "_offset",
        "_reads",
        "_room",
        "_segment",
        "begun_us",
        "fragments",
        "reply",
    )

    def __init__(
        self,
        reads: EventReads,
        log: OpenLog,
        offset: Offset,
        room: int,
        reply: type[EventsFed | DataFetched],
        make: Callable[[CallId, Segment, list[int]], Feed | FetchData],
        done: Callable[[Any], None],
    ) -> None:
        self._reads = reads
        self._log = log
        self._offset = offset
        self._room = room
        self._make = make
        self._done = done
        self._segment: Segment | None = None
        self._generation = log.ends.generation
        self.begun_us = reads.reactor.now_us()
        self.reply = reply
        self.fragments: list[Fragment] = []

    def prepare(self) -> int:
        """Find the segment. Returns the bytes to allocate, or 0 if the read has ended."""
        log, refusal = self._log, None
        if log.closed:
            refusal = closed(log.name)
        elif self._reads.stopped:
            refusal = stopping(log.name)
        elif self._segment is None:
            self._segment = log.files.segments.find(self._offset) if self._offset >= log.start_offset else None
            if self._segment is None:
                refusal = Rejected(f"{log.name}: there is no event {self._offset}", ErrorCode.OFFSET_OUT_OF_RANGE)
        if refusal is None:
            return self._room
        self._reads.reactor.call_soon(self.fail, refusal)
        return 0

    def command(self, number: CallId, spans: list[int]) -> Feed | FetchData:
        """The command, which may fill these spans."""
        assert self._segment is not None
        return self._make(number, self._segment, spans)

    def finish(self, reply: EventsFed | DataFetched) -> bool:
        """The worker's reply. False: the first event needs more memory."""
        failure = self._failure(reply)
        if failure is None and reply.need:
            self._room = reply.need
            return False
        if failure is not None:
            release(self)
            self.fail(failure)
        else:
            self._log.guard("read", self._done, (reply, chain_of(self.fragments, reply.bytes)))
        return True

    def _failure(self, reply: EventsFed | DataFetched) -> MillstreamError | None:
        assert self._segment is not None
        log, path, fault = self._log, self._segment.path, reply.fault
        if reply.errno == errno.ENOENT:
            if log.closed:
                return closed(log.name)
            if log.start_offset <= self._offset < log.first_local_offset:
                what = f"{log.name}: event {self._offset} has gone to the object store"
                return Retriable(what, ErrorCode.KAFKA_STORAGE_ERROR)
            if self._offset < log.start_offset:
                return Rejected(f"{log.name}: event {self._offset} was deleted", ErrorCode.OFFSET_OUT_OF_RANGE)
            fault = f"{path} is missing"
        if fault and self._generation != log.ends.generation:
            return Retriable(f"{log.name}: its end was cut while it was read", ErrorCode.KAFKA_STORAGE_ERROR)
        if fault:
            self._reads.faults.corrupt(log.name, path, self._offset, fault)
            return Corruption(f"{log.name}: {fault}")
        if reply.errno:
            self._reads.faults.failed(log.name, path, reply.errno)
            return Unavailable(f"{log.name}: {os.strerror(reply.errno)}", ErrorCode.KAFKA_STORAGE_ERROR)
        return None

    def fail(self, error: MillstreamError) -> None:
        """The read has failed."""
        self._log.guard("read", self._done, error)

    def failed(self, fault: Exception) -> None:
        """The read has raised in the worker."""
        self._log.guard("read", raise_fault, fault)
        self.fail(closed(self._log.name))
