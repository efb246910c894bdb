"""The responses of one connection: its requests in progress, and the bytes that the kernel has not taken.

::

    requests in order ──completed, at the head──► outbox ──sent──► kernel
         exchanges                               unsent bytes

Responses leave in the order of the requests, in whichever order these were completed. No effects here: the connection
owns the socket and calls what sends. Overload: a connection with many requests in progress or many unsent bytes is
not read (`is_full`) until it has caught up.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from millstream.iobuf.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf.outbox import Buffer, Holder

MAX_IN_FLIGHT: Final = 256
"""Maximum number of requests of one connection in progress at once. Stock clients use 1 to 5."""

MAX_UNSENT_BYTES: Final = 128 << 10
"""Unsent bytes from which a connection is no longer read."""

LARGE_BYTES: Final = 64 << 10
"""Unsent bytes from which a connection sends in turn with others, and above which a paused one stays paused."""


class Request(Protocol):
    """A request in progress (`net.connection.Exchange`)."""

    buffers: Sequence[Buffer] | None
    size: int
    holder: Holder | None
    """The response, once it is ``done``; None for none."""

    @property
    def done(self) -> bool: ...
    @property
    def holds(self) -> bool:
        """Whether its connection is not read until it is completed."""
        ...

    def hold(self) -> None:
        """Stop reading the connection until the request is completed."""
        ...

    def complete(self, buffers: Sequence[memoryview] | None, size: int) -> None:
        """Set the response; None: no response is sent."""
        ...


class Responses:
    """What a connection owes its client. Lifecycle and shard: the connection's."""

    __slots__ = ("exchanges", "held", "outbox", "owed", "scheduled", "unsent", "writing")

    def __init__(self) -> None:
        self.exchanges: deque[Request] = deque()
        """Requests in progress, oldest first. The head is not completed, or ``scheduled`` is set."""
        self.outbox = Outbox()
        """The completed responses that are being sent."""
        self.unsent = 0
        """Bytes of completed responses that the kernel has not taken."""
        self.owed = 0
        """Those of them outside the arena, as ``Owed`` counts them. Written by ``Owed``."""
        self.held = 0
        """Requests that must be completed, and mutes that must end, before the connection is read again."""
        self.scheduled = False
        """Whether completed responses are sent at the end of this turn."""
        self.writing = False
        """Whether the reactor waits until the socket takes more."""

    @property
    def is_full(self) -> bool:
        """Whether no further request may be read now."""
        return self.held > 0 or len(self.exchanges) >= MAX_IN_FLIGHT or self.unsent > MAX_UNSENT_BYTES

    @property
    def are_few(self) -> bool:
        """Whether a paused connection has caught up: less than half of what makes it full."""
        return not self.held and len(self.exchanges) <= MAX_IN_FLIGHT // 2 and self.unsent <= LARGE_BYTES

    def queue_completed(self) -> None:
        """Move the completed responses at the head into the outbox."""
        exchanges = self.exchanges
        while exchanges and exchanges[0].done:
            exchange = exchanges.popleft()
            if exchange.buffers is not None:
                self.outbox.push(exchange.buffers, exchange.size, exchange.holder)
                exchange.holder = None

    def drop(self) -> list[Request]:
        """Release all memory: the connection is closed. Returns the requests that are not completed."""
        waiting = [exchange for exchange in self.exchanges if not exchange.done]
        for exchange in self.exchanges:
            if exchange.holder is not None:
                exchange.holder.release()
                exchange.holder = None
        self.exchanges.clear()
        self.outbox.drop()
        return waiting
