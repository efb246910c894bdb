"""Requests that wait for their answers: what they hold together, who waits until they hold less, and how waits end.

::

    decoded, not answered ──park──► counted ──────────────────────────────► answered, or its answer dropped
                                       ▲                                          │ room
    large, and no room ──line up──► unread, first come first served ◄─────────────┘
                                       │
                                       └─ meanwhile the oldest of those that wait for something to happen are answered

What it promises:

- What parked requests were decoded to is counted. Where they hold all that they may, a further large request is not
  decoded; it waits where it was received, its connection is read no further, and it has its turn in the order in which
  those in the line came. Requests for records and small ones do not wait for this.
- Room is made: as long as somebody is in the line, fetches that wait for records are answered as if their time was up,
  oldest first, until there is room. A client has to expect an answer before the time that it named; it asks again, and
  is the last in the line then.
- A client that goes away takes with it what its requests hold: a wait ends with its connection, at once.

**Why nobody waits for ever.** Who is in the line waits for what is counted, so nothing that is counted may wait for
somebody in the line. Fetches wait for Produce, which is never in the line, and are ended anyway. Answers in slices get
their share of the core. Other shards, the controller and the disk answer, or a time runs out. A JoinGroup or SyncGroup
does wait for what other clients send, for as long as they please, and those may send much. So they are not counted: the
coordinator has taken what it wants of the request, the group has it from then on, and nothing else of it is kept.

A crash needs nothing here. Shard: the intake's.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.net.connection import Connection, Exchange


class Parking:
    """The parked requests of one shard, and the line of those that want to be.

    ``wake`` is called when the line may have become shorter: ``admit`` tells. Invariant: ``bytes`` is the sum of
    ``requests``, request by request what it holds.
    """

    __slots__ = ("_ends", "_line", "_wake", "bytes", "bytes_max", "requests")

    def __init__(self, bytes_max: int, wake: Callable[[], None]) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.requests: dict[Exchange, int] = {}  # oldest first
        self._ends: dict[Exchange, Callable[[], None]] = {}
        self._line: OrderedDict[Connection, None] = OrderedDict()
        self._wake = wake

    # Those that wait for their answers

    def park(self, exchange: "Exchange", weight: int) -> None:
        """A decoded request of ``weight`` bytes waits for its answer: its connection is read no further until then."""
        exchange.hold()
        self.requests[exchange] = weight
        self.bytes += weight

    def leave(self, exchange: "Exchange") -> None:
        """The request was answered, or its answer dropped."""
        self.bytes -= self.requests.pop(exchange, 0)
        if self._line:
            self._wake()

    def is_full(self) -> bool:
        """Whether those that wait for their answers hold all that they may."""
        return self.bytes > self.bytes_max

    def wait(self, exchange: "Exchange", end: Callable[[], None]) -> None:
        """The request waits for something to happen; ``end`` has it answered with what there is."""
        self._ends[exchange] = end
        if self._line:
            self._wake()

    def go_on(self, exchange: "Exchange") -> None:
        """It happened."""
        self._ends.pop(exchange, None)

    def end(self, exchange: "Exchange") -> bool:
        """Whether the request waited for something to happen; it does no more."""
        end = self._ends.pop(exchange, None)
        if end is not None:
            end()
        return end is not None

    # Those that wait for room

    def line_up(self, connection: "Connection", *, again: bool) -> None:
        """The connection's next request waits for room, ``again`` in the place that it had."""
        self._line[connection] = None
        if again:
            self._line.move_to_end(connection, last=False)
        self._make_room()

    def has_line(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._line)

    def admit(self) -> "Connection | None":
        """Who is next, if there is room; otherwise room is made, and ``wake`` called when it is."""
        if self._line and self.is_full():
            self._make_room()
        if not self._line or self.is_full():
            return None
        return self._line.popitem(last=False)[0]

    def closed(self, connection: "Connection") -> None:
        """The connection waits no more."""
        self._line.pop(connection, None)

    def _make_room(self) -> None:
        excess = self.bytes - self.bytes_max
        ended: list[Exchange] = []
        for exchange, weight in self.requests.items():
            if excess <= 0:
                break
            if exchange in self._ends:
                excess -= weight
                ended.append(exchange)
        for exchange in ended:
            self.end(exchange)
