"""Calls between shards: a method number, some bytes, and a response before a deadline.

::

    shard 0                                             shard 1
    call(1, APPEND, descriptor, on_reply, timeout) ──►  handler(0, descriptor, reply)
    on_reply(answer | MillstreamError)             ◄──  reply.send(answer)  |  reply.fail(error)

Messages travel through the rings of ``mesh``; payload does not. A call carries descriptors of arena fragments that the
caller *lends* and the other side *borrows*. All messages of one turn to one shard leave as one ring record at the end
of the turn, with at most one doorbell.

**Deadlines.** A call without a response in time ends with ``OutcomeUnknown`` (it may have taken effect), and the other
side is asked to drop it. A call that is received after its deadline is not started and ends with ``Retriable``. After
**cancelling** a call, ``on_reply`` is never called, and the other side's ``reply.on_cancel`` is.

**Overload.** At most ``CREDITS`` calls to one shard are outstanding. A credit returns with the response, late or not,
so the responses that a shard owes are bounded. Beyond that, and while more than ``CALL_BACKLOG_BYTES`` wait for room in
the ring, a call ends at once with ``Retriable``. Records that a full ring does not accept wait at the sender. Receiving
never depends on sending, so two shards with full rings both continue to read, and no cycle can block. If more than
``ANSWER_BACKLOG_BYTES`` would wait, a call ends with ``OutcomeUnknown`` instead of its response. A shard that lets
``BACKLOG_BYTES_MAX`` accumulate no longer works: the sender stops, and the broker with it.

**Loans** (`loans`) are passed beside the payload that describes them, so that none is lost: once a handler or
``on_reply`` was called with the payload, it must release them. The mailboxes return the loans of dropped messages (a
late response, an expired or refused call) themselves.

Lifecycle: constructed with the reactor; handlers are registered before the reactor runs. One thread. A handler is a
plain function. A ``MillstreamError`` that it raises is the response; any other exception stops the shard.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Retriable
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ShardId
from millstream.shard.loans import Loans
from millstream.shard.messages import (
    ANSWER,
    CALL,
    CANCEL,
    FAILURE,
    HEADER_BYTES,
    RETURNS,
    TELL,
    Peer,
    Reply,
    pack,
    pack_tokens,
    unpack,
    unpack_failure,
)
from millstream.shard.transfer import RecordTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.iobuf import Arena
    from millstream.shard.mesh import Mesh
    from millstream.shard.reactor import Reactor, Timer

    Handler = Callable[[int, bytes, Reply], None]
    OnReply = Callable[[bytes | MillstreamError], None]

__all__ = ["Mailbox", "Reply"]

CREDITS: Final = 32_768
CALL_BACKLOG_BYTES: Final = 4 << 20
_DEADLINE_GRAIN_US: Final = 2_000

_EXPIRED: Final = Retriable("the call's deadline had passed before it was received", ErrorCode.REQUEST_TIMED_OUT)

_clock_ns = time.perf_counter_ns


class Mailbox:
    """Calls from one shard to the others, and from the others to this one."""

    def __init__(self, shard_id: ShardId, mesh: Mesh, reactor: Reactor, arenas: Sequence[Arena]) -> None:
        self.shard_id = shard_id
        self._reactor = reactor
        self.loans = Loans(reactor, arenas)
        self._transfer = RecordTransfer(shard_id, mesh, reactor, self._receive, self.loans.take_back)
        self._peers = self.loans.peers = self._transfer.peers
        self._handlers: list[Handler | None] = [None] * 256
        self._pending: dict[int, tuple[OnReply, int, Peer]] = {}
        self._next_call = 1
        self._deadline_timer: Timer | None = None
        stats = reactor.stats
        self._hops = stats.counter("ring_hops")
        self._timeouts = stats.counter("mailbox_timeouts")
        self._refused = stats.counter("mailbox_refused")

    # -- calling

    def serve(self, method: int, handler: Handler) -> None:
        """Register ``handler(from_shard, payload, reply)`` for ``method`` (1–255)."""
        if self._handlers[method] is not None:
            raise AssertionError(f"method {method} is served twice")
        self._handlers[method] = handler

    def call(
        self, to: int, method: int, payload: bytes, on_reply: OnReply, timeout_us: int, loans: Sequence[int] = ()
    ) -> int:
        """Call ``method`` of shard ``to`` (this one included). ``on_reply`` gets the response or an error, exactly
        once, in a later turn.

        Returns the id for ``cancel``; 0 if the call was refused for overload (``on_reply`` gets the error).
        """
        peer = self._peers[to]
        if peer.outstanding >= CREDITS or peer.backlog.bytes > CALL_BACKLOG_BYTES:
            self._refused.inc()
            for token in loans:
                self.loans.take_back(token)
            self._reactor.call_soon(on_reply, Retriable(f"shard {to} has too many calls to answer"))
            return 0
        peer.outstanding += 1
        call_id = self._next_call
        self._next_call = call_id + 1
        deadline_us = _clock_ns() // 1000 + timeout_us
        self._pending[call_id] = (on_reply, deadline_us, peer)
        timer = self._deadline_timer
        if timer is None or deadline_us < timer.deadline_us:
            self._watch_deadlines(deadline_us)
        out = peer.out
        out.append(pack(CALL, method, len(loans), len(payload), call_id, deadline_us))
        out.append(payload)
        if loans:
            out.append(pack_tokens(loans))
        if not peer.dirty:
            peer.schedule(peer)
        return call_id

    def tell(self, to: int, method: int, payload: bytes, loans: Sequence[int] = ()) -> None:
        """Send a message without a response to shard ``to``. Never refused; arrives in order with calls."""
        peer = self._peers[to]
        peer.out.append(pack(TELL, method, len(loans), len(payload), 0, 0))
        peer.out.append(payload)
        if loans:
            peer.out.append(pack_tokens(loans))
        if not peer.dirty:
            peer.schedule(peer)

    def cancel(self, call_id: int) -> None:
        """Cancel a call: its ``on_reply`` is not called. No effect after the response."""
        entry = self._pending.pop(call_id, None)
        if entry is not None:
            self._drop_remote(entry[2], call_id)

    def _drop_remote(self, peer: Peer, call_id: int) -> None:
        peer.out.append(pack(CANCEL, 0, 0, 0, call_id, 0))
        if not peer.dirty:
            peer.schedule(peer)

    @property
    def outstanding_calls(self) -> int:
        """Calls of this shard that still wait for a response."""
        return len(self._pending)

    # -- deadlines: one timer for all pending calls

    def _watch_deadlines(self, deadline_us: int) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer = self._reactor.call_at(deadline_us, self._expire)

    def _expire(self) -> None:
        """End the calls whose deadline has passed, and set the timer for the next one."""
        self._deadline_timer = None
        now_us = _clock_ns() // 1000
        late = [
            (deadline_us, call_id) for call_id, (_, deadline_us, _) in self._pending.items() if deadline_us <= now_us
        ]
        for _, call_id in sorted(late):
            entry = self._pending.pop(call_id, None)
            if entry is None:
                continue
            on_reply, _, peer = entry
            self._timeouts.inc()
            self._drop_remote(peer, call_id)
            on_reply(OutcomeUnknown(f"shard {peer.shard} did not answer in time"))
        if self._pending and self._deadline_timer is None:
            earliest_us = min(deadline_us for _, deadline_us, _ in self._pending.values())
            self._watch_deadlines(max(earliest_us, now_us + _DEADLINE_GRAIN_US + len(self._pending)))

    # -- receiving

    def _receive(self, peer: Peer, record: bytes) -> None:
        """Handle the messages of one record."""
        position = 0
        end = len(record)
        pending = self._pending
        now_us = _clock_ns() // 1000
        messages = 0
        while position < end:
            messages += 1
            kind, method, code, size, call_id, deadline_us = unpack(record, position)
            position += HEADER_BYTES
            payload = record[position : position + size]
            position += size
            if kind == ANSWER:
                peer.outstanding -= 1
                loans_end = position + 8 * code
                entry = pending.pop(call_id, None)
                if entry is not None:
                    entry[0](payload)
                elif code:
                    self.loans.decline(peer, record[position:loans_end])
                position = loans_end
            elif kind == CALL:
                loans_end = position + 8 * code
                refusal = self._handle(peer, method, payload, call_id, deadline_us < now_us)
                if refusal is not None and code:
                    self.loans.decline(peer, record[position:loans_end])
                position = loans_end
            elif kind == TELL:
                handler = self._handlers[method]
                assert handler is not None, f"method {method} is not served"
                handler(peer.shard, payload, Reply(peer, 0))
                position += 8 * code
            elif kind == RETURNS:
                self.loans.end(payload)
            elif kind == FAILURE:
                peer.outstanding -= 1
                entry = pending.pop(call_id, None)
                if entry is not None:
                    entry[0](unpack_failure(method, code, payload))
            else:
                reply = peer.open.get(call_id)
                if reply is not None:
                    reply.cancelled()
        self._hops.inc(messages)

    def _handle(self, peer: Peer, method: int, payload: bytes, call_id: int, expired: bool) -> MillstreamError | None:
        """Pass a call to its handler. Returns the error if no handler was called."""
        reply = peer.open[call_id] = Reply(peer, call_id)
        handler = self._handlers[method]
        if expired or handler is None:
            refusal = _EXPIRED if expired else Rejected(f"shard {self.shard_id} does not serve method {method}")
            reply.fail(refusal)
            return refusal
        try:
            handler(peer.shard, payload, reply)
        except MillstreamError as error:
            reply.fail(error)
        return None
