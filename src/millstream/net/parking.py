"""Parked requests: counts the memory of requests that wait for their responses, and delays large ones above a limit.

::

    decoded, not answered ──park──► counted ────────────────────────────► answered, or its response dropped
                                       ▲                                          │ room
    large, and no room ──line up──► not decoded, first come first served ◄────────┘
                                       │
                                       └─ the oldest fetches that wait for data are answered early

What it promises:

- The size of every parked request, as decoded, is counted. At the limit, a further large request is not decoded. It
  waits where it was received, its connection is not read, and such requests are admitted in order of arrival. Produce,
  Fetch and small requests do not wait.
- While a request is in the line, fetches that wait for records are answered early, oldest first, until there is room. A
  client has to expect a response before its ``max_wait_ms``; it asks again, and is then the last in the line.
- When a client disconnects, its waits end at once, and their memory is released.

**Why no request waits for ever.** A request in the line waits for counted requests, so a counted request must not wait
for one in the line. Fetches wait for Produce, which is never in the line, and can be ended. Responses in slices have
their share of the core. Other shards, the controller and the disk answer, or a timeout passes. JoinGroup and SyncGroup
wait for requests of other clients, which may be in the line. Therefore they are not counted: the group has copied what
it needs of the request, and nothing else of it is kept.

A crash needs nothing here. Shard: the intake's.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.net.member import Member
    from millstream.net.responses import Request


class Parking:
    """The parked requests of one shard, and the line of requests that wait for room.

    ``wake`` is called when the first request of the line may have room; then ``admit`` decides. Invariant: ``bytes`` is
    the sum of the weights in ``requests``.
    """

    __slots__ = ("_ends", "_line", "_wake", "bytes", "bytes_max", "requests")

    def __init__(self, bytes_max: int, wake: Callable[[], None]) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.requests: dict[Request, int] = {}  # oldest first
        self._ends: dict[Request, Callable[[], None]] = {}
        self._line: OrderedDict[Member, None] = OrderedDict()
        self._wake = wake

    # Those that wait for their answers

    def park(self, exchange: "Request", weight: int) -> None:
        """Park a decoded request of ``weight`` bytes. Its connection is not read until it is answered."""
        exchange.hold()
        self.requests[exchange] = weight
        self.bytes += weight

    def leave(self, exchange: "Request") -> None:
        """Remove a request that was answered, or whose response was dropped."""
        self.bytes -= self.requests.pop(exchange, 0)
        if self._line:
            self._wake()

    def is_full(self) -> bool:
        """Whether the parked requests have reached the limit."""
        return self.bytes > self.bytes_max

    def wait(self, exchange: "Request", end: Callable[[], None]) -> None:
        """Note that the request waits for an event. ``end`` answers it at once, with the data that are there."""
        self._ends[exchange] = end
        if self._line:
            self._wake()

    def go_on(self, exchange: "Request") -> None:
        """Note that the wait is over."""
        self._ends.pop(exchange, None)

    def end(self, exchange: "Request") -> bool:
        """End the request's wait. False: it had none."""
        end = self._ends.pop(exchange, None)
        if end is not None:
            end()
        return end is not None

    # Those that wait for room

    def line_up(self, connection: "Member", *, again: bool) -> None:
        """Put the connection's next request into the line; with ``again``, at the place that it had."""
        self._line[connection] = None
        if again:
            self._line.move_to_end(connection, last=False)
        self._make_room()

    def has_line(self) -> bool:
        """Whether the line has a request."""
        return bool(self._line)

    def has_in_line(self, connection: "Member") -> bool:
        """Whether the connection's next request is in the line."""
        return connection in self._line

    def admit(self) -> "Member | None":
        """Take the first connection from the line if there is room. Otherwise end waits; ``wake`` follows."""
        if self._line and self.is_full():
            self._make_room()
        if not self._line or self.is_full():
            return None
        return self._line.popitem(last=False)[0]

    def closed(self, connection: "Member") -> None:
        """Remove the connection from the line."""
        self._line.pop(connection, None)

    def _make_room(self) -> None:
        excess = self.bytes - self.bytes_max
        ended: list[Request] = []
        for exchange, weight in self.requests.items():
            if excess <= 0:
                break
            if exchange in self._ends:
                excess -= weight
                ended.append(exchange)
        for exchange in ended:
            self.end(exchange)
