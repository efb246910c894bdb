"""TLS handshakes of new connections, and connections with TLS.

::

    handed over ─► first byte (peeked) ─► handshake, step by step ─► principal ─► TlsConnection of the intake
                        └ no TLS: closed, one line                └ failed, too slow: closed, one line

A handshake costs as much as a large request: 0.2 to 1.2 ms. So all handshakes of a shard together use `SHARE` of its
core, one step after the other in the order in which their bytes came, with bursts of `BURST_US`; requests of open
connections are served in between. One that takes longer than `HANDSHAKE_US`, waiting included, is closed. OpenSSL's
state (about 40 KB) is made when a client's first byte has come: a client that connects and is silent costs a
descriptor. At most `HALF_MAX` handshakes have state at once; one more closes the oldest, so that clients that stop in
the middle keep no other client out.

Bad input: a client that speaks Kafka or HTTP without TLS, a certificate that is not taken, a subject that no rule
matches: the connection is closed, with a few lines a minute in the log. A connection that ends before its first byte
is not logged, because tools look whether a port is open in this way. Crash: nothing to clean.
"""

import socket
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from millstream.errors import Rejected
from millstream.model.principal import ANONYMOUS
from millstream.net.connection import Connection
from millstream.net.intake import Intake
from millstream.secure.endpoint import ServerTls
from millstream.secure.tls_socket import TlsSocket
from millstream.secure.words import say
from millstream.shard.reactor import Timer
from millstream.telemetry.metrics import StatsSlab

HANDSHAKE_US: Final = 10_000_000
SHARE: Final = 0.3
"""Share of the core for all handshakes together."""
BURST_US: Final = 3_000
"""Time of handshakes that may run at once after a quiet while."""
HALF_MAX: Final = 1_000
_CLIENT_HELLO: Final = 0x16
_UNREAD_BYTES: Final = 64 << 10
_HTTP: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI")


class TlsConnection(Connection):
    """A client's connection with TLS. The descriptor is not readable for plaintext that waits inside the socket, so it
    is asked again in the next turn.
    """

    __slots__ = ("_asks",)

    socket: Any  # a TlsSocket: has the methods that a connection calls

    def begin(self) -> None:
        """Receive what came with the end of the handshake."""
        self._asks = False
        self._ask_again()

    def on_readable(self) -> None:
        super().on_readable()
        self._ask_again()

    def resume(self) -> None:
        super().resume()
        self._ask_again()

    def _wake_at(self, size: int) -> None:
        """No effect: plaintext waits inside the socket, where the kernel does not count it."""

    def _ask_again(self) -> None:
        if self.reading and self.socket.more and not self._asks:
            self._asks = True
            self.intake.reactor.call_soon(self._asked)

    def _asked(self) -> None:
        self._asks = False
        if self.reading:
            self.on_readable()


class _Half:
    """A connection until its handshake is done.

    Invariants: ``timer`` runs until the end. The reactor watches the socket, or ``waits`` is set.
    """

    __slots__ = ("listener", "local", "peer", "principal", "sock", "timer", "tls", "waits")

    def __init__(
        self, sock: socket.socket, peer: tuple[str, int], local: tuple[str, int], listener: str, principal: str
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.local = local
        self.listener = listener
        self.principal = principal
        self.tls: TlsSocket | None = None
        self.timer: Timer
        self.waits = False


class Handshakes:
    """The handshakes of one shard.

    Lifecycle: made with the shard's intake; ``close_all`` at its stop.
    Shard: its own.
    """

    def __init__(self, intake: Intake, listeners: Mapping[str, ServerTls], stats: StatsSlab) -> None:
        self.listeners = dict(listeners)
        """By the listener's name. New ones take the place of old ones."""
        self._intake = intake
        self._reactor = intake.reactor
        self._halves: dict[_Half, None] = {}
        self._with_state: dict[_Half, None] = {}
        self._ready: deque[_Half] = deque()
        self._credit_us: float = BURST_US
        self._counted_us = 0
        self._planned = False
        self._done = stats.counter("tls_handshakes")
        self._failed = stats.counter("tls_failed_handshakes")
        self._waiting = stats.gauge("tls_half_handshakes")

    def begin(
        self,
        sock: socket.socket,
        peer: tuple[str, int],
        local: tuple[str, int],
        listener: str,
        principal: str = ANONYMOUS,
    ) -> None:
        """Take over a socket that was accepted by a listener with TLS. ``principal`` is who it is once its handshake is
        done; with ANONYMOUS its certificate says it.
        """
        sock.setblocking(False)
        half = _Half(sock, peer, local, listener, principal)
        half.timer = self._reactor.call_later(HANDSHAKE_US, lambda: self._too_slow(half))
        self._halves[half] = None
        self._count()
        self._reactor.add_reader(sock.fileno(), lambda: self._on_readable(half))

    def hosts(self) -> Iterator[str]:
        """The address of each client."""
        return (half.peer[0] for half in self._halves)

    def close_all(self) -> None:
        for half in list(self._halves):
            self._drop(half)

    # Turns

    def _on_readable(self, half: _Half) -> None:
        if not self._ready and self._has_credit():
            self._step(half)
            return
        self._reactor.remove_reader(half.sock.fileno())
        half.waits = True
        self._ready.append(half)
        self._plan()

    def _has_credit(self) -> bool:
        now_us = self._reactor.now_us()
        self._credit_us = min(BURST_US, self._credit_us + (now_us - self._counted_us) * SHARE)
        self._counted_us = now_us
        return self._credit_us > 0

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._reactor.call_later(max(0, int(-self._credit_us / SHARE)) + 1_000, self._run)

    def _run(self) -> None:
        self._planned = False
        ready = self._ready
        while ready and self._has_credit():
            half = ready.popleft()
            if half not in self._halves:
                continue
            half.waits = False
            self._reactor.add_reader(half.sock.fileno(), lambda half=half: self._on_readable(half))
            self._step(half)
        if ready:
            self._plan()

    # One handshake

    def _step(self, half: _Half) -> None:
        begun_us = self._reactor.now_us()
        try:
            if half.tls is None and not self._opens(half):
                return
            tls = half.tls
            assert tls is not None
            if tls.handshake():
                self._finish(half, tls)
        except Rejected as error:
            self._fail(half, error.message)
        except OSError as error:
            silent = isinstance(error, ConnectionResetError)  # the client went away: it has seen why itself
            self._fail(half, "" if silent else f"failed in its TLS handshake: {say(error)}")
        finally:
            self._credit_us -= self._reactor.now_us() - begun_us

    def _opens(self, half: _Half) -> bool:
        """Look at the first bytes. False: nothing came, or it is not TLS, and the connection is closed."""
        try:
            start = half.sock.recv(4, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        if not start:
            self._drop(half)
            return False
        if start[0] != _CLIENT_HELLO:
            half.sock.recv(_UNREAD_BYTES)  # closed with unread bytes, the client would see a reset
            what = "HTTP" if start in _HTTP else "plaintext"
            remedy = "" if what == "HTTP" else " (security.protocol=SSL)"
            self._fail(half, f"speaks {what}, and the listener {half.listener} takes TLS only{remedy}")
            return False
        if len(self._with_state) >= HALF_MAX:
            self._fail(next(iter(self._with_state)), f"has not finished its TLS handshake, as {HALF_MAX} others")
        self._with_state[half] = None
        half.tls = TlsSocket(half.sock, self.listeners[half.listener].context, server_side=True)
        return True

    def _finish(self, half: _Half, tls: TlsSocket) -> None:
        certificate = tls.certificate()
        rules = self.listeners[half.listener].rules
        principal = half.principal
        if principal == ANONYMOUS and certificate is not None:
            principal = rules.principal(certificate)
        self._forget(half)
        self._done.inc()
        connection = self._intake.open(tls, half.peer, half.local, half.listener, principal, TlsConnection)
        assert isinstance(connection, TlsConnection)
        connection.begin()

    def _too_slow(self, half: _Half) -> None:
        silent = half.tls is None and not half.waits
        self._fail(half, "" if silent else f"has not finished its TLS handshake in {HANDSHAKE_US // 1_000_000} s")

    def _fail(self, half: _Half, why: str) -> None:
        self._failed.inc()
        if why:
            self._intake.tell_stranger(*half.peer, why)
        self._drop(half)

    def _drop(self, half: _Half) -> None:
        self._forget(half)
        half.sock.close()

    def _forget(self, half: _Half) -> None:
        if self._halves.pop(half, half) is half:
            return
        self._with_state.pop(half, None)
        half.timer.cancel()
        if not half.waits:
            self._reactor.remove_reader(half.sock.fileno())
        self._count()

    def _count(self) -> None:
        self._waiting.set(len(self._halves))
        self._intake.counts.show_in_handshake(len(self._halves))
