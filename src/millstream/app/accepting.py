"""Accepts new connections in the supervisor, and hands each to the shard with the fewest.

A connection over ``max.connections`` or ``max.connections.per.ip`` is closed at once (``app.address_limits``). If no
shard has room for one more (they are busy, and earlier ones are not taken yet), it waits, and later ones wait in the
backlog, so no client is refused for a bad moment. Without
a free file descriptor the kernel would report the same waiting connection again and again; accepting then pauses for
``REST_US`` while clients wait in the backlog. Log lines that clients can cause are limited
(``telemetry.log.RateLimit``).
"""

import errno
import os
import socket
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from millstream.app.address_limits import AddressLimits, ConnectionLimits
from millstream.app.listening import plain
from millstream.app.shared import SharedShard
from millstream.config.listeners import HTTP_LISTENER
from millstream.errors import Unavailable
from millstream.model.principal import SOCKET_FILE
from millstream.shard.control import ControlEnd
from millstream.shard.handover import Arrival
from millstream.shard.reactor import Reactor
from millstream.telemetry.log import RateLimit, log
from millstream.telemetry.metrics import StatsSlab

ACCEPTS_A_TURN: Final = 64
PAUSE_US: Final = 1_000_000
BUSY_PAUSE_US: Final = 5_000
"""Wait in µs before a connection without room is offered again."""
_LINES_A_MINUTE: Final = 6
_CREDENTIALS: Final = struct.Struct("3i")  # of the peer: process, user, group
_SHORT_OF: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Acceptor:
    """Accepts connections and distributes them. Lifecycle: ``open`` once the shards are ready, ``close`` when the
    broker stops.
    """

    def __init__(
        self,
        reactor: Reactor,
        shards: Sequence[SharedShard],
        stats: StatsSlab,
        limits: ConnectionLimits,
        controls: list[ControlEnd],
    ) -> None:
        self.addresses = AddressLimits(
            reactor, limits, controls, lambda: sum(shard.handover.pending for shard in shards)
        )
        self._reactor = reactor
        self._shards = shards
        self._refused = stats.counter("net_refused_connections")
        self._listeners: dict[str, socket.socket] = {}
        self._paused = False
        self._waiting: tuple[socket.socket, Arrival] | None = None  # accepted, but no shard had room
        self._short = RateLimit(_LINES_A_MINUTE)
        self._full = RateLimit(_LINES_A_MINUTE)

    def open(self, listeners: dict[str, socket.socket]) -> None:
        """Accept connections on these listeners."""
        self._listeners = listeners
        self._listen()

    def close(self) -> None:
        """Accept no more connections."""
        for listener in self._listeners.values():
            if not self._paused:
                self._reactor.remove_reader(listener.fileno())
            listener.close()
        self._listeners = {}
        if self._waiting is not None:
            self._waiting[0].close()
            self._waiting = None

    def _listen(self) -> None:
        self._paused = False
        if self._waiting is not None and self._listeners:
            if not self.hand_over(*self._waiting):
                self._paused = True
                self._reactor.call_later(BUSY_PAUSE_US, self._listen)
                return
            self._waiting = None
        for name, listener in self._listeners.items():
            self._reactor.add_reader(listener.fileno(), partial(self._accept, name, listener))

    def _pause(self, pause_us: int) -> None:
        self._paused = True
        for listener in self._listeners.values():
            self._reactor.remove_reader(listener.fileno())
        self._reactor.call_later(pause_us, self._listen)

    def _accept(self, name: str, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            if self._paused:
                return
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORT_OF:
                    self._pause(PAUSE_US)
                    if self._short.allows():
                        log.error("connections wait, none can be accepted: %s%s", error, self._short.left_out())
                continue  # the client disconnected before it was accepted
            arrival = self._arrival(name, sock, peer)
            if arrival is None:
                continue
            if not self._admits(sock, arrival):
                continue
            pause_us = self.addresses.pause_us()
            if arrival.peer_host:
                self.addresses.accepted(arrival.peer_host)
            if not self.hand_over(sock, arrival):
                self._waiting = (sock, arrival)
                self._pause(max(pause_us, BUSY_PAUSE_US))
            elif pause_us:
                self._pause(pause_us)

    def connect(self, sock: socket.socket, principal: str, host: str, *, encrypted: bool) -> None:
        """Hand over the broker's end of a connection that the broker itself makes, for a client that is ``principal``
        and comes from ``host``, over HTTP. Takes the socket. Only a caller whose requests are ``encrypted``, or who is
        on this machine, may set passwords.

        Raises:
            Unavailable: there is no room for it now.
        """
        if not self._listeners or self._open_connections() >= self.addresses.limits.total:
            sock.close()
            raise Unavailable("the broker takes no connections now")
        name = HTTP_LISTENER if encrypted else ""
        arrival = Arrival(host, 0, *self._first_address(), name, principal=principal)
        if not self.hand_over(sock, arrival):
            sock.close()
            raise Unavailable("the broker is busy; try again")

    def _admits(self, sock: socket.socket, arrival: Arrival) -> bool:
        """Whether the connection is within the limits; if not, it is closed, or will be."""
        address, addresses = arrival.peer_host, self.addresses
        if self._open_connections() >= addresses.limits.total:
            self._refuse(sock, arrival, f"max.connections={addresses.limits.total} are open")
            return False
        why = addresses.refusal(address) if address else ""
        if why:
            self._refuse(sock, arrival, why)
            return False
        wait_us = addresses.throttle_us(address) if address else 0
        if wait_us:
            addresses.close_later(
                lambda: self._refuse(sock, arrival, "it opens connections faster than its quota"), wait_us
            )
        return not wait_us

    def _arrival(self, name: str, sock: socket.socket, peer: Any) -> Arrival | None:
        """What is known of a connection; None if it is closed. The socket file is for the broker's own user and root.
        Its clients are shown the address of the first listener.
        """
        if sock.family != socket.AF_UNIX:
            local = sock.getsockname()
            return Arrival(plain(str(peer[0])), int(peer[1]), plain(str(local[0])), int(local[1]), name)
        _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid not in (os.geteuid(), 0):
            self._refused.inc()
            sock.close()
            log.warning("refused a connection of user id %d to the socket file: it is another user's", uid)
            return None
        return Arrival("", 0, *self._first_address(), "", principal=SOCKET_FILE)

    def _first_address(self) -> tuple[str, int]:
        """Address of the first listener: what clients are shown that came by none."""
        first = next(each for each in self._listeners.values() if each.family != socket.AF_UNIX)
        local = first.getsockname()
        return plain(str(local[0])), int(local[1])

    def _refuse(self, sock: socket.socket, arrival: Arrival, why: str) -> None:
        self._refused.inc()
        sock.close()
        if self._full.allows():
            where = f"{arrival.peer_host}:{arrival.peer_port}"
            log.warning("refused a connection of %s: %s%s", where, why, self._full.left_out())

    def _open_connections(self) -> int:
        return sum(shard.connections for shard in self._shards)

    def hand_over(self, sock: socket.socket, arrival: Arrival) -> bool:
        """Give a connection to the shard with the fewest that takes it; False if none does."""
        for shard in sorted(self._shards, key=lambda shard: shard.connections):
            if shard.handover.send(sock.fileno(), arrival):
                sock.detach()
                return True
        return False
