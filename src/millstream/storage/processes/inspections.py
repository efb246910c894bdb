"""The reactor's side of batch inspection: memory for a produced batch, the worker's verdict, the batch to store.

A batch is copied into arena fragments. The worker checks it (``wire.inspection``) and leaves the batch to store in the
same place. If that is larger, more fragments are allocated and it is collected. Nothing waits here: without memory, or
with ``BYTES_MAX`` in progress, ``start`` returns False with nothing done, and the caller retries. Verdicts arrive in
the order of the batches, except for batches that must be collected; a caller that needs an order keeps it. Callbacks
never run before ``start`` has returned. After ``stop`` no inspection starts, and a batch that grew is refused, because
the worker may end before it could be collected.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.iobuf import IoBuf
from millstream.iobuf.room import allocate_room, chain_of, release_all, spans_of
from millstream.model.error_code import ErrorCode
from millstream.storage.messages.commands import Collect, Done, Inspect, Inspected
from millstream.storage.segments.read_faults import raise_fault
from millstream.wire.inspection import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.helper.link import CallId, HelperLink
    from millstream.iobuf import Arena, Fragment
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab
    from millstream.wire.inspection import Rules

BYTES_MAX: Final = 16 << 20
"""Maximum bytes of batches in progress on one shard, in their original size."""

_RETRY_US: Final = 2_000
_PATIENCE_US: Final = 5_000_000


class Verdict(NamedTuple):
    """The result for a batch. ``batch`` is to be stored, and released by its receiver. None: the batch is refused with
    ``error``.
    """

    error: int
    refusal: Refusal | None
    batch: IoBuf | None


class _Call:
    """One batch in progress."""

    __slots__ = ("begun_us", "done", "fragments", "size")

    def __init__(self, fragments: list[Fragment], size: int, done: Callable[[Verdict], None], begun_us: int) -> None:
        self.fragments = fragments
        self.size = size
        self.done = done
        self.begun_us = begun_us


class Inspections:
    """The batch inspections of one shard."""

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        stats: StatsSlab,
        worker: HelperLink[Any, Any],
    ) -> None:
        self._reactor = reactor
        self._arena = arena
        self._worker = worker
        self._bytes = 0
        self._stopped = False
        self._inspected = stats.counter("kafka_produce_inspected_batches")
        self._latency = stats.histogram("kafka_produce_inspection_latency")

    def start(self, views: Sequence[memoryview], size: int, rules: Rules, done: Callable[[Verdict], None]) -> bool:
        """Start to inspect a batch. ``views`` are copied before this returns. False: no room now, nothing was done."""
        if self._stopped or (self._bytes and self._bytes + size > BYTES_MAX):
            return False
        fragments = allocate_room(self._arena, size)
        if fragments is None:
            return False
        spans = _fill(fragments, views, size)
        call = _Call(fragments, size, done, self._reactor.now_us())
        self._bytes += size
        command = Inspect(self._worker.next_id(), spans, rules)
        self._worker.ask(command, Inspected, partial(self._finished, call), raise_fault)
        return True

    def stop(self) -> None:
        """Start no more inspections, because the shard stops."""
        self._stopped = True

    def _finished(self, call: _Call, reply: Inspected) -> None:
        """The worker's verdict."""
        if reply.need:
            release_all(call.fragments)
            call.fragments = []
            self._collect(call, reply.id, reply.need)
        elif reply.error:
            release_all(call.fragments)
            self._settle(call, Verdict(reply.error, Refusal(reply.message, reply.records), None))
        else:
            self._settle(call, Verdict(0, None, chain_of(call.fragments, reply.bytes)))

    def _collect(self, call: _Call, number: CallId, size: int) -> None:
        """Allocate memory for a batch that grew. It is refused retriably without memory for ``_PATIENCE_US``, or if
        the shard stops.
        """
        if self._stopped:
            self._settle(call, Verdict(int(ErrorCode.KAFKA_STORAGE_ERROR), None, None))
            return
        fragments = allocate_room(self._arena, size)
        if fragments is None and self._reactor.now_us() - call.begun_us < _PATIENCE_US:
            self._reactor.call_later(_RETRY_US, lambda: self._collect(call, number, size))
            return

        def collected(_: Done) -> None:
            if fragments is None:
                self._settle(call, Verdict(int(ErrorCode.NOT_ENOUGH_REPLICAS), None, None))
            else:
                self._settle(call, Verdict(0, None, chain_of(fragments, size)))

        command = Collect(self._worker.next_id(), number, spans_of(fragments or ()))
        self._worker.ask(command, Done, collected, raise_fault)

    def _settle(self, call: _Call, verdict: Verdict) -> None:
        self._bytes -= call.size
        self._inspected.inc()
        self._latency.observe(self._reactor.now_us() - call.begun_us)
        call.done(verdict)


def _fill(fragments: list[Fragment], views: Sequence[memoryview], size: int) -> list[int]:
    """Copy ``size`` bytes into the fragments. Returns the spans that they occupy."""
    spans: list[int] = []
    parts = iter(views)
    rest = memoryview(b"")
    for fragment in fragments:
        at, end = 0, min(size, fragment.capacity)
        while at < end:
            if not len(rest):
                rest = next(parts)
                continue
            part = rest[: end - at]
            fragment.view[at : at + len(part)] = part
            rest = rest[len(part) :]
            at += len(part)
        spans += (fragment.offset, fragment.offset + end)
        size -= end
    return spans
