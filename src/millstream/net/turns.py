"""Turns: connections with large responses or costly requests share ``TURN_US`` of a reactor's turn, in rotation.

::

    large response ──wait_to_send──► sent in turn, first, because that makes room
    costly request ──wait_for_turn─► handled in turn; without room for it in `net.parking`'s line first

A small request waits for one of them at most. While responses are at their limit, no costly request starts. After a
long one, costly requests pause for as long as it took. Requests whose responses are made in slices run in the
background, one at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from millstream.net.parking import Parking

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.net.member import Member
    from millstream.net.owed import Owed
    from millstream.net.responses import Request
    from millstream.shard.reactor import Reactor, Timer

TURN_US: Final = 1_000
"""Maximum time per turn for large sends and costly requests, in µs. The last one may exceed it."""
LONG_SHARE: Final = 0.3
"""Share of the core for responses that are built in the background."""
UNDER_WAY_MAX: Final = 8
"""Maximum number of costly requests that wait for other shards at once."""
REST_US: Final = 20_000
"""Maximum pause of costly requests in µs. After a long one they pause for as long as it took, up to this."""


class _Slice:
    """The time that a turn of the reactor has for large sends and costly requests."""

    __slots__ = ("_reactor", "_turn", "_until_us")

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._turn = -1
        self._until_us = 0

    def is_left(self) -> bool:
        """Whether this turn has time left."""
        now_us = self._reactor.now_us()
        if self._turn == self._reactor.turns:
            return now_us < self._until_us
        self._turn = self._reactor.turns
        self._until_us = now_us + TURN_US
        return True


class _Plan:
    """When the next turns are taken: soon, or after a pause, or not at all."""

    __slots__ = ("_planned", "_reactor", "_rest", "_take", "rest_until_us")

    def __init__(self, reactor: Reactor, take: Callable[[], None]) -> None:
        self._reactor = reactor
        self._take = take
        self._planned = False
        self._rest: Timer | None = None  # until the planned turns, if not the next one
        self.rest_until_us = 0
        """Until when no costly request starts."""

    def make(self, in_us: int = 0) -> None:
        """Take turns then; sooner if that is planned already."""
        if self._planned and (in_us or self._rest is None):
            return
        self._planned = True
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self._reactor.call_later(in_us, self._in_next_turn) if in_us else None
        if not in_us:
            self._in_next_turn()

    def _in_next_turn(self) -> None:
        self._rest = None
        self._reactor.call_soon(self._due)

    def _due(self) -> None:
        self._planned = False
        self._take()


class Turns:
    """The turns of one shard. Shard: the intake's.

    ``_first`` and ``_lines_up`` are set within one call: whether the connection whose turn it is has requested nothing
    yet; and whether the last request has to wait for room, for the first time (False) or again (True).
    """

    def __init__(self, reactor: Reactor, owed: Owed, parked_bytes_max: int) -> None:
        self._reactor = reactor
        self._owed = owed
        self._slice = _Slice(reactor)
        self._plan = _Plan(reactor, self.take)
        self.parking = Parking(parked_bytes_max, self._plan.make)
        self.under_way = 0
        """Costly requests that wait for other shards."""
        self._to_send: OrderedDict[Member, None] = OrderedDict()  # those with large responses to send, oldest first
        self._to_do: OrderedDict[Member, None] = OrderedDict()  # those whose next request costs much, oldest first
        self._long: dict[Request, Generator[None, None, None]] = {}  # answers made in the background, oldest first
        self._first = False
        self._lines_up: bool | None = None

    def has_time(self) -> bool:
        """Whether this turn has time left for large sends and costly requests."""
        return self._slice.is_left()

    def must_wait(self, *, large: bool = False) -> bool:
        """Whether a costly request waits for its connection's turn; a ``large`` one waits for room, too."""
        first, self._first = self._first, False
        if large and (self.parking.is_full() or (self.parking.has_line() and not first)):
            self._lines_up = first
            return True
        return not first and (bool(self._to_do) or not self._may_start())

    def _may_start(self) -> bool:
        """Whether a costly request may start: there is time, few are in progress, clients take their responses."""
        return self.under_way < UNDER_WAY_MAX and not self._owed.is_over and self.has_time()

    def flush(self, connection: Member) -> None:
        """Send the connection's large responses: now, or after the connections that wait already."""
        if not self._to_send and self.has_time():
            connection.flush()
        else:
            self.wait_to_send(connection)

    def wait_to_send(self, connection: Member) -> None:
        """Send the connection's large responses after the connections that wait already."""
        if connection not in self._to_send and not connection.closed:
            self._owed.account(connection.responses)
            self._to_send[connection] = None
            self._plan.make()

    def wait_for_turn(self, connection: Member) -> None:
        """Let the connection continue with its costly request after the connections that wait already."""
        again, self._lines_up = self._lines_up, None
        if self.is_waiting(connection) or connection.closed:
            return
        if again is None:
            self._to_do[connection] = None
            self._plan.make()
        else:
            self.parking.line_up(connection, again=again)

    def is_waiting(self, connection: Member) -> bool:
        """Whether the connection's next request waits for its turn, or for room."""
        return connection in self._to_do or self.parking.has_in_line(connection)

    def take(self) -> None:
        """Send first, because that makes room. Then handle costly requests, and pause if they took long."""
        for _ in range(len(self._to_send)):
            if not self.has_time():
                break
            connection, _ = self._to_send.popitem(last=False)
            connection.flush()
        start_us = self._reactor.now_us()
        admitted = self.parking.admit()
        if admitted is not None:
            self._to_do[admitted] = None
        plan = self._plan
        if start_us >= plan.rest_until_us:
            for _ in range(len(self._to_do)):
                if not self._may_start():
                    break
                connection, _ = self._to_do.popitem(last=False)
                self._first = True
                connection.flush()
                self._first = False
            took_us = self._reactor.now_us() - start_us
            if took_us > 3 * TURN_US:
                plan.rest_until_us = start_us + took_us + min(took_us, REST_US)
        if self._to_send:
            plan.make()
        elif self._to_do or (self.parking.has_line() and not self.parking.is_full()):
            plan.make(max(TURN_US, plan.rest_until_us - self._reactor.now_us()))

    def work_off(self, exchange: Request, steps: Generator[None, None, None]) -> None:
        """Run the steps of a request in the background. One such request runs at a time."""
        self._long[exchange] = steps
        if len(self._long) == 1:
            self._reactor.background("other", steps, LONG_SHARE, self._worked_off)

    def _worked_off(self) -> None:
        del self._long[next(iter(self._long))]
        for steps in self._long.values():
            self._reactor.background("other", steps, LONG_SHARE, self._worked_off)
            break

    def drop(self, exchange: Request) -> None:
        """The client of a request in progress has disconnected: its waits end at once."""
        if not self.parking.end(exchange) and exchange in self._long and exchange is not next(iter(self._long)):
            del self._long[exchange]
            exchange.complete(None, 0)
