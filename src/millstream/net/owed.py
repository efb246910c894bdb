"""Unsent responses outside the arena: their limit over all connections of a shard.

Above the limit, a connection with unsent bytes is not read; above ``OWED_HARD`` times the limit, only Produce and Fetch
are read, whose responses are short, or in the arena, which has limits of its own. `net.stalls` closes clients that take
nothing while it is exceeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.net.member import Member
    from millstream.net.responses import Responses
    from millstream.shard.reactor import Reactor

OWED_PART: Final = 4
"""Limit of unsent responses outside the arena, as a fraction of the limit inside it (1/n)."""
OWED_HARD: Final = 4
"""Above this multiple of the limit, only Produce and Fetch are read."""


class Owed:
    """Bytes of responses outside the arena that no kernel has taken yet. Shard: the intake's."""

    __slots__ = ("_reactor", "_waiting", "bytes", "bytes_max")

    def __init__(self, reactor: Reactor, bytes_max: int) -> None:
        self._reactor = reactor
        self._waiting: dict[Member, None] = {}  # paused until others took theirs, oldest first
        self.bytes = 0
        self.bytes_max = bytes_max

    @property
    def is_over(self) -> bool:
        """Whether there are more than the limit."""
        return self.bytes > self.bytes_max

    def add(self, size: int) -> None:
        """Add ``size`` (bytes, may be negative)."""
        self.bytes += size
        if self._waiting and self.bytes <= self.bytes_max:
            self._reactor.call_soon(self._resume_some)

    def account(self, responses: Responses) -> None:
        """Count the unsent bytes of one connection outside the arena."""
        size = responses.unsent - responses.outbox.lent_unsent
        self.add(size - responses.owed)
        responses.owed = size

    def makes_wait(self, connection: Member) -> bool:
        """Whether the connection, without unsent bytes of its own, waits until other clients take their responses."""
        if self.bytes <= OWED_HARD * self.bytes_max:
            return False
        self._waiting[connection] = None
        return True

    def closed(self, connection: Member) -> None:
        """The connection waits no longer, and owes nothing."""
        self._waiting.pop(connection, None)
        self.add(-connection.responses.owed)
        connection.responses.owed = 0

    def _resume_some(self) -> None:
        while self._waiting and self.bytes <= self.bytes_max:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            if not connection.closed and not connection.reading and connection.has_caught_up():
                connection.resume()
