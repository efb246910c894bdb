"""Calls between shards: a method number, some bytes, and an answer before a deadline.

::

    shard 0                                             shard 1
    call(1, APPEND, descriptor, on_reply, timeout) ──►  handler(0, descriptor, reply)
    on_reply(answer | MillstreamError)             ◄──  reply.send(answer)  |  reply.fail(error)

Bytes travel through the rings of `mesh`; payload does not: a call carries descriptors of arena fragments that the
caller *lends* and the other side *borrows* (below). Everything a shard says to a sibling during one turn leaves as
one ring record at the end of that turn, with at most one doorbell.

**Deadlines.** A call that is not answered in time ends with `OutcomeUnknown` (it may have been done), and the other
side is told to drop it. A call that comes up there only after its deadline is not started at all and ends with
`Retriable`. **Cancelling** a call means that `on_reply` is never called; the other side's `reply.on_cancel` is.

**Overload.** At most `CREDITS` calls to one sibling are outstanding; a credit comes back with the answer, late or
not, so what a shard may ever owe in answers is bounded by what it was asked. Above that, and while more than
`CALL_BACKLOG_BYTES` wait for room in the ring, a call ends at once with `Retriable`. What a full ring does not take
waits on the sender's side; receiving never depends on sending, so two shards with full rings both go on reading and
no cycle can block. A sibling that lets `BACKLOG_BYTES_MAX` pile up is stuck for good: the shard stops, and with it
the broker.

**Loans.** `lend` keeps one reference of a fragment under a token; the borrower makes a `ForeignFragment` of (lender,
offset, length, token) and its last release sends the token home, together with the next messages or within
`RETURN_US`, whichever is first. Tokens are passed as `loans` beside the payload that describes them, so that no loan
is lost: once a handler or `on_reply` was called with the payload, the loans are its to release; whatever is dropped
before (a late answer, a call that expired or was refused) the mailboxes send home or take back themselves.

Lifecycle: constructed with the reactor, handlers served before the reactor runs. One thread. A handler is a plain
function; a `MillstreamError` it raises is the answer, any other exception stops the shard.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from millstream.errors import (
    Corruption,
    MillstreamError,
    OutcomeUnknown,
    Rejected,
    Retriable,
    ShuttingDown,
    Unavailable,
)
from millstream.iobuf import ForeignFragment, Fragment
from millstream.model.error_code import ErrorCode
from millstream.shard.fence import fence
from millstream.shard.process import EXIT_SOFTWARE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.iobuf import Arena, Piece
    from millstream.shard.mesh import Mesh
    from millstream.shard.reactor import Reactor, Timer
    from millstream.shard.ring import Ring

    Handler = Callable[[int, bytes, "Reply"], None]
    OnReply = Callable[[bytes | MillstreamError], None]

CREDITS: Final = 32_768
CALL_BACKLOG_BYTES: Final = 4 << 20
BACKLOG_BYTES_MAX: Final = 64 << 20
RETURN_US: Final = 2_000
RETURNS_AT_ONCE: Final = 32
DRAIN_US: Final = 300
"""How long one turn handles messages before sockets get their turn again."""
RECORD_BYTES_MAX: Final = 16 * 1024
_DEADLINE_GRAIN_US: Final = 2_000

_HEADER: Final = Struct(
    "<BBhIQQ"
)  # kind, method or error class, error code or loans, payload bytes, call id, deadline (µs)
_HEADER_BYTES: Final = _HEADER.size
_pack = _HEADER.pack
_unpack = _HEADER.unpack_from
_CALL, _TELL, _ANSWER, _FAILURE, _CANCEL, _RETURNS = range(6)
_CONTINUES: Final = 1  # ring tag: the message goes on in the next record

_ERRORS: Final[tuple[type[MillstreamError], ...]] = (
    MillstreamError, Rejected, Retriable, OutcomeUnknown, Unavailable, Corruption, ShuttingDown,
)  # fmt: skip

_clock_ns = time.perf_counter_ns


class Reply:
    """Where a handler's answer goes: exactly one of `send` and `fail`, now or later. For a `tell` it goes nowhere.

    `on_cancel` may be set to a function that is called when the caller lost interest; answering after that is allowed
    and does nothing.
    """

    __slots__ = ("_call_id", "_mailbox", "_peer", "on_cancel")

    def __init__(self, mailbox: Mailbox, peer: _Peer | None, call_id: int) -> None:
        self._mailbox = mailbox
        self._peer = peer
        self._call_id = call_id
        self.on_cancel: Callable[[], None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the answer."""
        return self._peer is not None

    def send(self, payload: bytes, loans: Sequence[int] = ()) -> None:
        """Answer; `loans` are the tokens of what the payload describes."""
        peer = self._peer
        if peer is None:
            for token in loans:
                self._mailbox.take_back(token)
            return
        self._peer = None
        del peer.open[self._call_id]
        out = peer.out
        out.append(_pack(_ANSWER, 0, len(loans), len(payload), self._call_id, 0))
        out.append(payload)
        if loans:
            out.append(array("Q", loans).tobytes())
        if not peer.dirty:
            self._mailbox.mark(peer)

    def fail(self, error: MillstreamError) -> None:
        """Answer with an error, which arrives as the same class of the taxonomy."""
        peer = self._peer
        if peer is None:
            return
        self._peer = None
        del peer.open[self._call_id]
        text = error.message.encode()
        kind = next(_ERRORS.index(known) for known in type(error).__mro__ if known in _ERRORS)
        peer.out.append(_pack(_FAILURE, kind, int(error.code), len(text), self._call_id, 0))
        peer.out.append(text)
        if not peer.dirty:
            self._mailbox.mark(peer)

    def cancelled(self) -> None:
        """The caller lost interest: give its credit back, then tell the handler."""
        self.fail(_CANCELLED)
        if self.on_cancel is not None:
            self.on_cancel()


_CANCELLED: Final = Retriable("cancelled")
_EXPIRED: Final = Retriable("the call's deadline had passed before it was looked at", ErrorCode.REQUEST_TIMED_OUT)


class _Peer:
    """What one shard keeps about a sibling."""

    __slots__ = (
        "backlog",
        "backlog_bytes",
        "dirty",
        "inbound",
        "open",
        "out",
        "outbound",
        "outstanding",
        "partial",
        "returns",
        "shard",
    )

    def __init__(self, shard: int, outbound: Ring | None, inbound: Ring | None) -> None:
        self.shard = shard
        self.outbound = outbound  # None: the shard itself
        self.inbound = inbound
        self.out: list[bytes] = []  # headers and payloads of this turn
        self.dirty = False
        self.backlog: deque[tuple[bytes, int]] = deque()  # records the ring had no room for
        self.backlog_bytes = 0
        self.outstanding = 0  # calls not yet answered
        self.open: dict[int, Reply] = {}  # calls from there, being handled here
        self.partial: list[bytes] = []  # of a message longer than a record
        self.returns: array[int] = array("Q")  # tokens to send home


class Mailbox:
    """See the module."""

    def __init__(self, shard_id: int, mesh: Mesh, reactor: Reactor, arenas: Sequence[Arena]) -> None:
        self.shard_id = shard_id
        self._reactor = reactor
        self._arenas = arenas
        self._bells = mesh.bells
        self._flags = mesh.flags
        self._bell = mesh.bells[shard_id]
        self._flag = mesh.flags[shard_id]
        self._peers: list[_Peer] = []
        for other in range(mesh.shard_count):
            if other == shard_id:
                self._peers.append(_Peer(other, None, None))
            else:
                self._peers.append(_Peer(other, mesh.outbound(shard_id, other), mesh.inbound(shard_id, other)))
        self._siblings = [peer for peer in self._peers if peer.inbound is not None]
        self._dirty: list[_Peer] = []
        self._blocked: list[_Peer] = []
        self._handlers: list[Handler | None] = [None] * 256
        self._pending: dict[int, tuple[OnReply, int, _Peer]] = {}
        self._next_call = 1
        self._deadline_timer: Timer | None = None
        self._no_reply = Reply(self, None, 0)
        self._loans: dict[int, Piece] = {}
        self._next_token = 1
        self._return_timer: Timer | None = None
        self._returners = [partial(self.give_back, shard) for shard in range(mesh.shard_count)]
        stats = reactor.stats
        self._hops = stats.counter("ring_hops")
        self._bytes = stats.counter("ring_sent_bytes")
        self._batches = stats.counter("ring_batches")
        self._wakes = stats.counter("ring_wakes")
        self._full = stats.counter("ring_full")
        self._timeouts = stats.counter("mailbox_timeouts")
        self._refused = stats.counter("mailbox_refused")
        self._lent = stats.gauge("mailbox_lent_fragments")
        if self._siblings:
            reactor.add_reader(self._bell.fd, self._rung)
            self._bell.ring()  # look at what came before this shard was there

    # -- calling

    def serve(self, method: int, handler: Handler) -> None:
        """Let `handler(from_shard, payload, reply)` answer `method` (1–255)."""
        if self._handlers[method] is not None:
            raise AssertionError(f"method {method} is served twice")
        self._handlers[method] = handler

    def call(
        self, to: int, method: int, payload: bytes, on_reply: OnReply, timeout_us: int, loans: Sequence[int] = ()
    ) -> int:
        """Ask shard `to` (also this one); `on_reply` gets the answer or an error, once, on a later turn.

        Returns the id for `cancel`; 0 when the call was refused for overload (`on_reply` is told).
        """
        peer = self._peers[to]
        if peer.outstanding >= CREDITS or peer.backlog_bytes > CALL_BACKLOG_BYTES:
            self._refused.inc()
            for token in loans:
                self.take_back(token)
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
        out.append(_pack(_CALL, method, len(loans), len(payload), call_id, deadline_us))
        out.append(payload)
        if loans:
            out.append(array("Q", loans).tobytes())
        if not peer.dirty:
            self.mark(peer)
        return call_id

    def tell(self, to: int, method: int, payload: bytes, loans: Sequence[int] = ()) -> None:
        """Say something to shard `to` that needs no answer. Never refused, arrives in order with calls."""
        peer = self._peers[to]
        peer.out.append(_pack(_TELL, method, len(loans), len(payload), 0, 0))
        peer.out.append(payload)
        if loans:
            peer.out.append(array("Q", loans).tobytes())
        if not peer.dirty:
            self.mark(peer)

    def cancel(self, call_id: int) -> None:
        """Lose interest in a call: its `on_reply` is not called. Nothing happens when it was answered already."""
        entry = self._pending.pop(call_id, None)
        if entry is not None:
            self._drop_remote(entry[2], call_id)

    def _drop_remote(self, peer: _Peer, call_id: int) -> None:
        peer.out.append(_pack(_CANCEL, 0, 0, 0, call_id, 0))
        if not peer.dirty:
            self.mark(peer)

    @property
    def outstanding_calls(self) -> int:
        """Calls of this shard that somebody here still waits for."""
        return len(self._pending)

    # -- deadlines: one timer for all pending calls

    def _watch_deadlines(self, deadline_us: int) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer = self._reactor.call_at(deadline_us, self._expire)

    def _expire(self) -> None:
        """End the calls whose deadline has passed; look again at the next one's."""
        self._deadline_timer = None
        now_us = _clock_ns() // 1000
        late = [call_id for call_id, (_, deadline_us, _) in self._pending.items() if deadline_us <= now_us]
        for call_id in late:
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

    # -- sending

    def mark(self, peer: _Peer) -> None:
        """`peer` has something to be sent: do so at the end of this turn."""
        peer.dirty = True
        if not self._dirty:
            self._reactor.end_of_turn(self._flush)
        self._dirty.append(peer)

    def _flush(self) -> None:
        """Everything said in this turn: one record and at most one bell per sibling."""
        dirty, self._dirty = self._dirty, []
        for peer in dirty:
            peer.dirty = False
            if peer.returns:
                self._pack_returns(peer)
            out = peer.out
            record = b"".join(out)
            self._hops.inc(len(out) >> 1)
            out.clear()
            if peer.outbound is None:
                self._reactor.call_soon(self._receive, peer, record)
            else:
                self._bytes.inc(len(record))
                self._send(peer, record)
        fence()
        flags = self._flags
        for peer in dirty:
            if peer.outbound is not None and flags[peer.shard].sleeps():
                self._wakes.inc()
                self._bells[peer.shard].ring()

    def _send(self, peer: _Peer, record: bytes) -> None:
        """Push a record, in pieces when it is long; what finds no room waits in the backlog."""
        ring = peer.outbound
        assert ring is not None, "only siblings have rings"
        self._batches.inc()
        if len(record) <= RECORD_BYTES_MAX and not peer.backlog:
            if ring.push(record):
                return
            self._keep(peer, record, 0)
        else:
            last = len(record) - 1
            for at in range(0, len(record), RECORD_BYTES_MAX):
                end = at + RECORD_BYTES_MAX
                self._keep(peer, record[at:end], _CONTINUES if end <= last else 0)
        self._unblock(peer)

    def _keep(self, peer: _Peer, record: bytes, tag: int) -> None:
        peer.backlog.append((record, tag))
        peer.backlog_bytes += len(record)
        if peer.backlog_bytes > BACKLOG_BYTES_MAX:
            self._reactor.stop(
                EXIT_SOFTWARE, f"shard {peer.shard} has stopped reading what shard {self.shard_id} sends"
            )

    def _unblock(self, peer: _Peer) -> None:
        """Push as much of the backlog as there is room for; ask to be woken for the rest."""
        ring = peer.outbound
        assert ring is not None, "only siblings have rings"
        backlog = peer.backlog
        asked = False
        while backlog:
            record, tag = backlog[0]
            if ring.push(record, tag):
                backlog.popleft()
                peer.backlog_bytes -= len(record)
            elif asked:
                if peer not in self._blocked:
                    self._full.inc()
                    self._blocked.append(peer)
                return
            else:
                asked = True
                ring.ask_for_room()
                fence()
        ring.has_room_again()
        if peer in self._blocked:
            self._blocked.remove(peer)

    # -- receiving

    def _rung(self) -> None:
        """The bell: somebody sent something, or made room."""
        self._bell.silence()
        self._flag.set(False)
        self._drain()

    def _drain(self) -> None:
        """Handle what is in the rings, for a while; then sleep, or go on in the next turn."""
        limit_ns = _clock_ns() + DRAIN_US * 1000
        for peer in list(self._blocked):
            self._unblock_and_ring(peer)
        for peer in self._siblings:
            ring = peer.inbound
            assert ring is not None, "siblings have rings"
            while (popped := ring.pop()) is not None:
                record, tag = popped
                if tag or peer.partial:
                    peer.partial.append(record)
                    if not tag:
                        record = b"".join(peer.partial)
                        peer.partial.clear()
                        self._receive(peer, record)
                else:
                    self._receive(peer, record)
                if _clock_ns() > limit_ns:
                    break
        self._sleep_or_go_on()

    def _unblock_and_ring(self, peer: _Peer) -> None:
        self._unblock(peer)
        fence()
        if self._flags[peer.shard].sleeps():
            self._bells[peer.shard].ring()

    def _sleep_or_go_on(self) -> None:
        """Steps C1–C3 of `mesh`, and the same for producers that wait for room."""
        flag = self._flag
        flag.set(True)
        fence()
        more = False
        for peer in self._siblings:
            ring = peer.inbound
            assert ring is not None, "siblings have rings"
            if ring.producer_waits:
                self._bells[peer.shard].ring()
            more = more or ring.has_records
        if more:
            flag.set(False)
            self._reactor.call_soon(self._drain)

    def _receive(self, peer: _Peer, record: bytes) -> None:
        """Handle the messages of one record."""
        position = 0
        end = len(record)
        pending = self._pending
        now_us = _clock_ns() // 1000
        while position < end:
            kind, method, code, size, call_id, deadline_us = _unpack(record, position)
            position += _HEADER_BYTES
            payload = record[position : position + size]
            position += size
            if kind == _ANSWER:
                peer.outstanding -= 1
                loans_end = position + 8 * code
                entry = pending.pop(call_id, None)
                if entry is not None:
                    entry[0](payload)
                elif code:
                    self._decline(peer, record[position:loans_end])
                position = loans_end
            elif kind == _CALL:
                loans_end = position + 8 * code
                refusal = self._handle(peer, method, payload, call_id, deadline_us < now_us)
                if refusal is not None and code:
                    self._decline(peer, record[position:loans_end])
                position = loans_end
            elif kind == _TELL:
                handler = self._handlers[method]
                assert handler is not None, f"method {method} is not served"
                handler(peer.shard, payload, self._no_reply)
                position += 8 * code
            elif kind == _RETURNS:
                self._take_back_all(payload)
            elif kind == _FAILURE:
                peer.outstanding -= 1
                entry = pending.pop(call_id, None)
                if entry is not None:
                    entry[0](_ERRORS[method](payload.decode(), ErrorCode(code)))
            else:
                reply = peer.open.get(call_id)
                if reply is not None:
                    reply.cancelled()

    def _handle(self, peer: _Peer, method: int, payload: bytes, call_id: int, expired: bool) -> MillstreamError | None:
        """Give a call to its handler; the error when no handler was called."""
        reply = peer.open[call_id] = Reply(self, peer, call_id)
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

    def _decline(self, peer: _Peer, tokens: bytes) -> None:
        """Nobody will look at these loans: send them home."""
        for token in array("Q", tokens):
            self.give_back(peer.shard, token)

    # -- loans

    def lend(self, piece: Piece) -> int:
        """Keep one reference of an own fragment (the caller's) until the token comes home."""
        assert piece.__class__ is Fragment, "only the owner of a fragment lends it"
        token = self._next_token
        self._next_token = token + 1
        self._loans[token] = piece
        return token

    def take_back(self, token: int) -> None:
        """End a loan that was never sent."""
        self._loans.pop(token).release()

    def borrow(self, lender: int, offset: int, length: int, token: int) -> ForeignFragment:
        """The bytes behind a descriptor, straight in the lender's memory; release it when done."""
        return ForeignFragment(lender, offset, length, token, self._arenas[lender].view, self._returners[lender])

    def give_back(self, lender: int, token: int) -> None:
        """Send a token home; soon, with whatever else goes there."""
        peer = self._peers[lender]
        returns = peer.returns
        returns.append(token)
        if peer.dirty:
            return
        if len(returns) >= RETURNS_AT_ONCE:
            self.mark(peer)
        elif self._return_timer is None:
            self._return_timer = self._reactor.call_later(RETURN_US, self._return_all)

    def _return_all(self) -> None:
        self._return_timer = None
        for peer in self._peers:
            if peer.returns and not peer.dirty:
                self.mark(peer)

    def _pack_returns(self, peer: _Peer) -> None:
        tokens = peer.returns.tobytes()
        del peer.returns[:]
        peer.out.append(_pack(_RETURNS, 0, 0, len(tokens), 0, 0))
        peer.out.append(tokens)

    def _take_back_all(self, payload: bytes) -> None:
        tokens: array[int] = array("Q")
        tokens.frombytes(payload)
        loans = self._loans
        for token in tokens:
            loans.pop(token).release()
        self._lent.set(len(loans))

    @property
    def lent_fragments(self) -> int:
        """Loans that have not come home."""
        return len(self._loans)
