"""Ends a shard's connections: answers the requests in flight, then closes.

No connection is read from then on. Connections without a request in flight close at once, the others when their
responses are sent, and the remaining ones after ``GRACE_US``, because a long poll may wait longer than a shutdown
should.
"""

from collections.abc import Callable
from typing import Final

from millstream.net.intake import Intake
from millstream.shard.reactor import Reactor

GRACE_US: Final = 300_000
LOOK_US: Final = 5_000


class Drain:
    """Lifecycle: ``start`` once."""

    def __init__(self, reactor: Reactor, intake: Intake) -> None:
        self._reactor = reactor
        self._intake = intake
        self._deadline_us = 0
        self._done: Callable[[], None] | None = None

    def start(self, done: Callable[[], None]) -> None:
        """Drain. ``done`` is called when no connection is left."""
        self._done = done
        self._intake.draining = True
        self._deadline_us = self._reactor.now_us() + GRACE_US
        self._look()

    def _look(self) -> None:
        late = self._reactor.now_us() >= self._deadline_us
        for connection in list(self._intake.connections):
            connection.stop_reading()
            if late or (not connection.responses.exchanges and not connection.responses.outbox.queued_bytes):
                connection.close()
        if self._intake.connections:
            self._reactor.call_later(LOOK_US, self._look)
        else:
            self._intake.close_all()
            assert self._done is not None
            self._done()
