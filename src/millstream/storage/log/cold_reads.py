"""Reads of data that has left the log cache: memory from the arena, the read itself by the worker.

The reactor allocates fragments (``helper.fills``). The worker fills them from the segment and returns how many bytes
are whole, valid batches; the rest is released. Cold reads do not go through the log cache: old data never evicts new.

A damaged batch fails the read that meets it with ``Corruption``, which names file, byte and offset, and logs one line;
the rest of the log is still served. Callbacks never run before ``read`` has returned. After ``stop`` nothing is sent:
the worker answers what it was sent, and everything else is refused retriably.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.format.epochs import epochs_between
from millstream.helper.fills import Fills, release
from millstream.iobuf.room import chain_of
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.storage.messages.commands import Read, ReadDone
from millstream.storage.segments.read_faults import closed, raise_fault, stopping

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.helper.link import CallId, HelperLink
    from millstream.iobuf import Arena, Fragment, IoBuf
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.segments.read_faults import ReadFaults
    from millstream.telemetry.metrics import StatsSlab

    Done = Callable[[IoBuf | MillstreamError], None]

_ROOM_MIN: Final = 512


class ColdRequest(msgspec.Struct, frozen=True):
    """What to read: whole batches from the one that contains ``offset`` on, those before ``end_offset``."""

    offset: Offset
    end_offset: Offset
    max_bytes: int
    minimum_one: bool = True
    """Read the first batch even if it is larger than ``max_bytes``."""
    below_start: bool = False
    """Read data below the log's start offset while it exists."""


class ColdReads:
    """Cold reads of one shard's logs."""

    def __init__(
        self, reactor: Reactor, arena: Arena, stats: StatsSlab, worker: HelperLink[Any, Any], faults: ReadFaults
    ) -> None:
        self.reactor = reactor
        self.fills = Fills(reactor, arena, worker)
        self.stopped = False
        self.faults = faults
        self._reads = stats.counter("cold_reads")
        self._latency = stats.histogram("cold_read_latency")
        self._bytes = stats.counter("read_bytes", source="segment")

    def read(self, log: OpenLog, request: ColdRequest, done: Done) -> ColdRead:
        """See ``Log.read_cold``."""
        call = ColdRead(self, log, request, done)
        self._reads.inc()
        self.fills.start(call)
        return call

    def stop(self) -> None:
        """Send no more requests: the worker is to end, and may not answer them."""
        self.stopped = True
        self.fills.send_all()

    def count(self, begun_us: int, size_bytes: int) -> None:
        """Count a read that has ended."""
        self._latency.observe(self.reactor.now_us() - begun_us)
        self._bytes.inc(size_bytes)


class ColdRead:
    """One read, from ``ColdReads.read`` to its callback (``helper.fills.Fill``)."""

    __slots__ = (
        "_done",
        "_generation",
        "_log",
        "_reads",
        "_request",
        "_room",
        "_segment",
        "begun_us",
        "found_end",
        "fragments",
    )
    reply = ReadDone

    def __init__(self, reads: ColdReads, log: OpenLog, request: ColdRequest, done: Done) -> None:
        self._reads = reads
        self._log = log
        self._request = request
        self._room = request.max_bytes
        self._done = done
        self._segment: Segment | None = None
        self._generation = log.ends.generation
        self.begun_us = reads.reactor.now_us()
        self.found_end: Offset = request.offset
        """End (exclusive) of the batches that were found; set when the callback is called."""
        self.fragments: list[Fragment] = []

    def prepare(self) -> int:
        """Find the segment. Returns the bytes to allocate, or 0 if the read has ended."""
        try:
            refusal = self._refusal()
            if refusal is None:
                return self._size()
        except Exception as error:  # noqa: BLE001 - the boundary
            self._log.failed("read", error)
            refusal = closed(self._log.name)
        self._reads.reactor.call_soon(self.fail, refusal)
        return 0

    def _refusal(self) -> MillstreamError | None:
        log, offset = self._log, self._request.offset
        if log.closed:
            return closed(log.name)
        if self._reads.stopped:
            return stopping(log.name)
        self._segment = log.files.segments.find(offset)
        if self._segment is not None and (offset >= log.start_offset or self._request.below_start):
            return None
        if log.start_offset <= offset < log.first_local_offset:
            what = f"{log.name}: offset {offset} is no longer in a local segment"
            return Retriable(what, ErrorCode.KAFKA_STORAGE_ERROR)
        return Rejected(f"{log.name}: offset {offset} is not there", ErrorCode.OFFSET_OUT_OF_RANGE)

    def _limit(self, segment: Segment) -> int:
        """Bytes of the segment file that are written."""
        log = self._log
        return min(log.ends.written_position, segment.end if segment.sealed else log.refresh().end) - segment.stream

    def _size(self) -> int:
        assert self._segment is not None
        size_bytes = min(max(self._room, _ROOM_MIN), self._limit(self._segment))
        if size_bytes <= 0:
            raise AssertionError(f"{self._log.name}: offset {self._request.offset} is neither cached nor written")
        return size_bytes

    def command(self, number: CallId, spans: list[int]) -> Read:
        """The command, which may fill these spans."""
        log, segment, request = self._log, self._segment, self._request
        assert segment is not None
        self._generation = log.ends.generation
        return Read(
            number,
            segment.path,
            segment.base_offset,
            self._limit(segment),
            request.offset,
            request.end_offset,
            max(0, request.max_bytes),
            request.minimum_one,
            spans,
            epochs_between(log.raft.epochs, request.offset, request.end_offset),
        )

    def finish(self, reply: ReadDone) -> bool:
        """The worker's reply. False: the read is sent again."""
        log = self._log
        if reply.need:
            self._room = reply.need
            return False
        if reply.errno == errno.ENOENT and log.files.segments.find(self._request.offset) is not self._segment:
            return False  # compaction has replaced the file
        failure = self._failure(reply)
        if failure is not None:
            self._reads.count(self.begun_us, 0)
            release(self)
            self.fail(failure)
            return True
        self.found_end = Offset(reply.end_offset)
        self._reads.count(self.begun_us, reply.bytes)
        log.guard("read", self._done, chain_of(self.fragments, reply.bytes))
        return True

    def _failure(self, reply: ReadDone) -> MillstreamError | None:
        log, offset = self._log, self._request.offset
        path = self._segment.path if self._segment is not None else log.directory
        fault = reply.fault
        if reply.errno == errno.ENOENT:
            if log.closed:
                return closed(log.name)
            if offset < log.start_offset:
                return Rejected(f"{log.name}: offset {offset} was deleted", ErrorCode.OFFSET_OUT_OF_RANGE)
            fault = f"{path} is missing"
        if fault and self._generation != log.ends.generation:
            return Retriable(f"{log.name}: its end was cut while it was read", ErrorCode.KAFKA_STORAGE_ERROR)
        if fault:
            self._reads.faults.corrupt(log.name, path, offset, fault)
            return Corruption(f"{log.name}: {fault}")
        if reply.errno:
            self._reads.faults.failed(log.name, path, reply.errno)
            return Unavailable(f"{log.name}: {os.strerror(reply.errno)}")
        return None

    def fail(self, error: MillstreamError) -> None:
        """The read has failed."""
        self._log.guard("read", self._done, error)

    def failed(self, fault: Exception) -> None:
        """The read has raised in the worker."""
        self._log.guard("read", raise_fault, fault)
        self.fail(closed(self._log.name))
