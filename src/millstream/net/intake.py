"""All connections of a shard: what they share, and who says when one of them is read, answered or closed.

::

    Budget   memory for frames that did not arrive whole, and for bytes of paused connections
    Owed     limit of unsent responses outside the arena
    Turns    time for large responses and costly requests; the memory of requests that wait (`net.parking`)
    Stalls   closes clients that stall while they hold memory
    Idle     closes clients that ask for nothing

A connection with a request that waits and has more than a few kilobytes is not read until it is answered (Kafka does
the same for every request). So a connection holds one large request, and all connections hold as much as the receive
share of the arena and one request more. Responses that are completed in one turn of the reactor leave in one system
call per connection. Garbage on a socket closes that socket; the log has at most a few lines a minute about it.
"""

import socket
from collections.abc import Callable
from typing import Any, Final

from millstream.iobuf import Arena, IoBuf, MemoryClass
from millstream.model.principal import ANONYMOUS
from millstream.net.budget import Budget
from millstream.net.client import Client
from millstream.net.connection import Connection
from millstream.net.owed import OWED_PART, Owed
from millstream.net.parking import Parking
from millstream.net.responses import LARGE_BYTES
from millstream.net.stalls import Idle, Stalls
from millstream.net.turns import Turns
from millstream.shard.reactor import Reactor
from millstream.telemetry.log import RateLimit, log
from millstream.telemetry.metrics import StatsSlab

LINES_PER_MINUTE: Final = 6

FrameHandler = Callable[[Connection, memoryview], bool | None]
ChainHandler = Callable[[Connection, IoBuf], bool | None]
"""Handles a frame. True: hand it over again in the connection's turn."""


class Counts:
    """What the metrics say of connections. Those in their TLS handshake count as connections."""

    def __init__(self, stats: StatsSlab) -> None:
        self.received = stats.counter("net_received_bytes")
        self.sent = stats.counter("net_sent_bytes")
        self.refused = stats.counter("net_refused_frames")
        self.accepted = stats.counter("net_accepted_connections")
        self._gauge = stats.gauge("net_connections")
        self._open = 0
        self._in_handshake = 0

    def show(self, count: int) -> None:
        """Show the number of open connections."""
        self._open = count
        self._gauge.set(count + self._in_handshake)

    def show_in_handshake(self, count: int) -> None:
        """Show the number of connections in their TLS handshake."""
        self._in_handshake = count
        self._gauge.set(self._open + count)


class Intake:
    """The connections of one shard.

    Lifecycle: made with the shard, ``close_all`` at its stop.
    Shard: its own.
    """

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        stats: StatsSlab,
        frame_bytes_max: int,
        idle_ms: int,
        stall_ms: int,
        on_frame: FrameHandler,
        on_chain: ChainHandler,
    ) -> None:
        receive_bytes = arena.limit_bytes(MemoryClass.RECEIVE)
        self.reactor = reactor
        self.frame_bytes_max = min(frame_bytes_max, receive_bytes)
        self.on_frame = on_frame
        self.on_chain = on_chain
        self.on_change: Callable[[Connection], None] = _nothing
        """Called when a connection has opened, before its first request, and when it has closed."""
        self.connections: set[Connection] = set()
        self.draining = False  # the shard stops: what is paused stays so
        self.counts = Counts(stats)
        self._quiet = quiet = RateLimit(per_minute=LINES_PER_MINUTE)
        self._dirty: list[Connection] = []
        self.owed = owed = Owed(reactor, arena.limit_bytes(MemoryClass.FETCH) // OWED_PART)
        self.turns = Turns(reactor, owed, receive_bytes)
        stalled, idle = stats.counter("net_stalled_connections"), stats.counter("net_idle_connections_closed")
        self.stalls = Stalls(reactor, arena, self.connections, owed, quiet, stalled, stall_ms, idle_ms)
        self.idle = Idle(reactor, self.connections, idle, idle_ms)
        self.budget = Budget(reactor, arena, stats.gauge("net_waiting_frames"), self.stalls.watch)
        self.stalls.budget = self.budget

    @property
    def parking(self) -> Parking:
        """The requests that wait for their responses."""
        return self.turns.parking

    def open(
        self,
        sock: Any,
        peer: tuple[str, int],
        local: tuple[str, int],
        listener: str = "PLAINTEXT",
        principal: str = ANONYMOUS,
        kind: type[Connection] = Connection,
    ) -> Connection:
        """Take over a socket that was accepted by the ``listener`` of that name, of a client that is ``principal``. It
        may be a ``TlsSocket`` with a ``kind`` of connection for it.
        """
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = kind(self, sock, Client(peer, local, listener, principal))
        self.connections.add(connection)
        self.on_change(connection)
        self.counts.accepted.inc()
        self.counts.show(len(self.connections))
        self.idle.watch()
        return connection

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        for each in (self.stalls, self.idle, self.budget, self.owed, self.parking):
            each.closed(connection)
        self.counts.show(len(self.connections))
        self.on_change(connection)

    def close_all(self) -> None:
        """Close all connections, because the shard stops."""
        for connection in list(self.connections):
            connection.close()
        self.stalls.stop()
        self.idle.stop()

    def refuse(self, connection: Connection, why: str) -> None:
        """Close a connection whose bytes no client would send."""
        self.counts.refused.inc(1)
        self.tell_stranger(connection.client.host, connection.client.port, why)
        connection.close()

    def tell_stranger(self, host: str, port: int, why: str) -> None:
        """Log why a connection is closed, a few times a minute."""
        if self._quiet.allows():
            log.warning("closed the connection of %s:%d: it %s%s", host, port, why, self._quiet.left_out())

    def flush_later(self, connection: Connection) -> None:
        """Send the connection's completed responses at the end of this turn."""
        if not self._dirty:
            self.reactor.end_of_turn(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            if connection.responses.unsent > LARGE_BYTES:
                self.turns.flush(connection)
            else:
                connection.flush()


def _nothing(_: Connection) -> None:
    """The default callback: ignores the event."""
