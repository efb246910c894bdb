"""The reactor's side of batch inspection: memory for a produced batch, the worker's verdict, the batch to store.

A batch is copied into arena fragments. The worker checks it (``wire.inspection``) and leaves the batch to store in the
same place. If that is larger, more fragments are allocated and it is collected. Nothing waits here: without memory, or
with ``BYTES_MAX`` in progress, ``start`` returns False with nothing done, and the caller retries. Verdicts arrive in
the order of the batches, except for batches that must be collected; a caller that needs an order keeps it. Callbacks
never run before ``start`` has returned. After ``stop`` no inspection begins, and a batch that grew is refused, because
the worker may end before it could be collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.iobuf import IoBuf
from millstream.iobuf.room import allocate_room, chain_of, release_all, spans_of
from millstream.model.error_code import ErrorCode
from millstream.storage.messages.commands import Collect, Inspect
from millstream.wire.inspection import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.iobuf import Arena, Fragment
    from millstream.shard.reactor import Reactor
    from millstream.storage.messages.commands import Command, Inspected
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
        send: Callable[[Command], None],
        expect: Callable[[Callable[[], None]], int],
    ) -> None:
        self._reactor = reactor
        self._arena = arena
        self._send = send
        self._expect = expect
        self._calls: dict[int, _Call] = {}
        self._next_id = 1
        self._bytes = 0
        self._stopped = False
        self._inspected = stats.counter("kafka_produce_inspected_batches")
        self._latency = stats.histogram("kafka_produce_inspection_latency")

    def start(self, views: Sequence[memoryview], size: int, rules: Rules, done: Callable[[Verdict], None]) -> bool:
        """Begin to inspect a batch. ``views`` are copied before this returns. False: no room now, nothing was done."""
        if self._stopped or (self._bytes and self._bytes + size > BYTES_MAX):
            return False
        fragments = allocate_room(self._arena, size)
        if fragments is None:
            return False
        spans = _fill(fragments, views, size)
        number = self._next_id
        self._next_id += 1
        self._calls[number] = _Call(fragments, size, done, self._reactor.now_us())
        self._bytes += size
        self._send(Inspect(number, spans, rules))
        return True

    def stop(self) -> None:
        """Begin no more inspections, because the shard stops."""
        self._stopped = True

    def finished(self, reply: Inspected) -> None:
        """Process the worker's verdict."""
        call = self._calls[reply.id]
        if reply.need:
            release_all(call.fragments)
            call.fragments = []
            self._collect(reply.id, reply.need)
        elif reply.error:
            release_all(call.fragments)
            self._settle(reply.id, Verdict(reply.error, Refusal(reply.message, reply.records), None))
        else:
            self._settle(reply.id, Verdict(0, None, chain_of(call.fragments, reply.bytes)))

    def _collect(self, number: int, size: int) -> None:
        """Allocate memory for a batch that grew. If there is none for long, or the shard stops, it is refused
        retriably.
        """
        if self._stopped:
            self._settle(number, Verdict(int(ErrorCode.KAFKA_STORAGE_ERROR), None, None))
            return
        call = self._calls[number]
        fragments = allocate_room(self._arena, size)
        if fragments is not None:
            spans = spans_of(fragments)

            def collected() -> None:
                self._settle(number, Verdict(0, None, chain_of(fragments, size)))

            self._send(Collect(self._expect(collected), number, spans))
        elif self._reactor.now_us() - call.begun_us < _PATIENCE_US:
            self._reactor.call_later(_RETRY_US, lambda: self._collect(number, size))
        else:

            def forgotten() -> None:
                self._settle(number, Verdict(int(ErrorCode.NOT_ENOUGH_REPLICAS), None, None))

            self._send(Collect(self._expect(forgotten), number, []))

    def _settle(self, number: int, verdict: Verdict) -> None:
        call = self._calls.pop(number)
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
