"""Requests to another broker over the peers' connections, and their answers.

::

    call(node, method, payload, timeout_ms, done) ──Call──► serve(method): handler(sender, payload, done)
    done(bytes | MillstreamError)                 ◄─Answer or Failure─ done(bytes | MillstreamError)

A call travels in the turn's frame of the connection to the peer's shard 0, with the time that is left; its answer comes
back on the same connection in any order. ``done`` is called exactly once, in a later turn.

**Failure.** Without a connection, or with too much queued, nothing was sent: ``Retriable``. A connection that ends, or
time that passes, after the call left is ``OutcomeUnknown``: the peer may have carried it out. A payload of more than
`PAYLOAD_BYTES_MAX` is ``Rejected`` here. An unknown method is ``Rejected`` there. Errors keep their class and their
Kafka code on the way.

**Overload.** `CALLS_MAX` calls wait at most; more are ``Retriable``. The receiving side answers at most `SERVED_MAX`
calls of one connection at once.
"""

from collections.abc import Callable
from typing import Final

from millstream.errors import (
    Corruption,
    MillstreamError,
    OutcomeUnknown,
    Rejected,
    Retriable,
    ShuttingDown,
    Unavailable,
)
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.replication import ReplicaId
from millstream.peers.dial import Dial
from millstream.peers.items import PAYLOAD_BYTES_MAX, Answer, Call, Failure
from millstream.peers.link import Link, answer
from millstream.shard.reactor import Reactor, Timer

CALLS_MAX: Final = 4_096
SERVED_MAX: Final = 1_024

CallDone = Callable[[bytes | MillstreamError], None]
CallHandler = Callable[[ReplicaId, bytes, int, CallDone], None]
"""``handler(sender, payload, timeout_ms, done)``; a ``MillstreamError`` that it raises is the answer."""

_CLASSES: Final[tuple[type[MillstreamError], ...]] = (
    Rejected,
    Retriable,
    OutcomeUnknown,
    Unavailable,
    Corruption,
    ShuttingDown,
)
"""By ``Failure.error_class``. The order is part of the protocol."""


class _Waiting:
    """A call without an answer."""

    __slots__ = ("dial", "done", "timer")

    def __init__(self, dial: Dial, done: CallDone, timer: Timer) -> None:
        self.dial = dial
        self.done = done
        self.timer = timer


class Calls:
    """Both directions of one shard.

    Lifecycle: made with the network; ``stop`` ends what waits. Shard: the network's.
    Invariants: every entry of ``_waiting`` has a pending timer. ``_served`` counts calls without an answer by link.
    """

    def __init__(self, reactor: Reactor, dial: Callable[[NodeId, int], Dial]) -> None:
        self._reactor = reactor
        self._dial = dial
        self._handlers: dict[int, CallHandler] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 1
        self._served: dict[Link, int] = {}

    def serve(self, method: int, handler: CallHandler) -> None:
        """Answer calls of ``method`` (0 to 255) with ``handler``."""
        assert method not in self._handlers, f"method {method} is served twice"
        self._handlers[method] = handler

    def call(self, node: NodeId, method: int, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        """Call ``method`` of ``node``; ``done`` gets the answer or the error."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            error: MillstreamError = Rejected(
                f"a request of {len(payload)} bytes is too large for the way to another broker "
                f"({PAYLOAD_BYTES_MAX} bytes): split it",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
            self._reactor.call_soon(done, error)
            return
        dial = self._dial(node, 0)
        call_id = self._next_id
        if len(self._waiting) >= CALLS_MAX:
            error = Retriable(f"{CALLS_MAX} requests to other brokers wait", ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            self._reactor.call_soon(done, error)
            return
        if not dial.say(Call(call_id, method, timeout_ms, payload)):
            error = Retriable(f"there is no connection to broker {node}", ErrorCode.BROKER_NOT_AVAILABLE)
            self._reactor.call_soon(done, error)
            return
        self._next_id = call_id + 1
        timer = self._reactor.call_later(timeout_ms * 1000, lambda: self._too_late(call_id, node))
        self._waiting[call_id] = _Waiting(dial, done, timer)

    def stop(self) -> None:
        """End every call that waits."""
        self._end(list(self._waiting), "the broker is stopping")

    # For the network

    def answered(self, dial: Dial, item: Answer | Failure) -> None:
        """An answer arrived on a connection of ``dial``. A late one is ignored."""
        waiting = self._waiting.get(item.id)
        if waiting is None or waiting.dial is not dial:
            return
        del self._waiting[item.id]
        waiting.timer.cancel()
        waiting.done(item.payload if isinstance(item, Answer) else _error_of(item))

    def lost(self, dial: Dial) -> None:
        """The connection of ``dial`` ended: its calls have an unknown outcome."""
        late = [call_id for call_id, waiting in self._waiting.items() if waiting.dial is dial]
        self._end(late, f"the connection to {dial.name} was lost")

    def gone(self, link: Link) -> None:
        """A connection that a peer dialled has ended: answers to it are dropped."""
        self._served.pop(link, None)

    def serve_call(self, link: Link, sender: ReplicaId, call: Call) -> None:
        """A call arrived on ``link``."""
        under_way = self._served.get(link, 0)
        handler = self._handlers.get(call.method)
        if handler is None:
            answer(link, _failure(call.id, Rejected(f"this broker knows no request {call.method}")))
            return
        if under_way >= SERVED_MAX:
            answer(link, _failure(call.id, Retriable(f"{SERVED_MAX} requests of this connection are under way")))
            return
        self._served[link] = under_way + 1

        def done(result: bytes | MillstreamError) -> None:
            if link not in self._served:
                return
            self._served[link] -= 1
            if isinstance(result, bytes) and len(result) > PAYLOAD_BYTES_MAX:
                result = OutcomeUnknown(f"the request is done, but its answer of {len(result)} bytes is too large")
            answer(link, _failure(call.id, result) if isinstance(result, MillstreamError) else Answer(call.id, result))

        try:
            handler(sender, call.payload, call.timeout_ms, done)
        except MillstreamError as error:
            done(error)

    def _too_late(self, call_id: int, node: NodeId) -> None:
        waiting = self._waiting.pop(call_id)
        waiting.done(OutcomeUnknown(f"broker {node} did not answer in time"))

    def _end(self, ids: list[int], why: str) -> None:
        for call_id in ids:
            waiting = self._waiting.pop(call_id)
            waiting.timer.cancel()
            self._reactor.call_soon(waiting.done, OutcomeUnknown(why))


def _failure(call_id: int, error: MillstreamError) -> Failure:
    unknown = _CLASSES.index(OutcomeUnknown)
    place = next((place for place, cls in enumerate(_CLASSES) if isinstance(error, cls)), unknown)
    return Failure(call_id, place, error.code, error.message)


def _error_of(failure: Failure) -> MillstreamError:
    """The error that a peer answered with. An error class that this release does not know is an unknown outcome."""
    cls = _CLASSES[failure.error_class] if failure.error_class < len(_CLASSES) else OutcomeUnknown
    try:
        return cls(failure.message, ErrorCode(failure.code))
    except ValueError:
        return cls(failure.message)
