"""Accepts connections of other brokers, reads their first frame, and passes them on.

::

    accept ─► first frame ─► HELLO: to the shard that it wants (``on_hello``)
                          └► PROBE: answered with what this broker is, and closed

With TLS (``secured``) eight clear bytes come first. A connection for a shard is passed on with them, and the shard does
the handshake; a probe is answered here, after a handshake.

The process that accepts is not the one that owns the connection afterwards, so exactly the first frame is read. A
connection without a whole first frame within `OPENING_TIMEOUT_US`, or with another one, is closed. At most
`OPENINGS_MAX` connections wait for their first frame. A further one closes the oldest, so that silent strangers keep no
broker out.
"""

import socket
from collections.abc import Callable
from typing import Final

from millstream.errors import Corruption
from millstream.peers.frames import FrameKind
from millstream.peers.greeting import Greetings
from millstream.peers.hello import (
    Probe,
    Refusal,
    RefusalReason,
    decode_hello,
    decode_probe,
    encode_probe,
)
from millstream.peers.link import refuse
from millstream.peers.receiving import FirstFrame
from millstream.peers.secured import OPENING_BYTES, OpeningKind, PeerTls, decode_opening
from millstream.secure.tls_socket import TlsSocket
from millstream.shard.reactor import Reactor, Timer
from millstream.telemetry.log import RateLimit, log

OPENING_TIMEOUT_US: Final = 5_000_000
OPENINGS_MAX: Final = 64

OPENING_BYTES_MAX: Final = 8 << 10
"""Head of a hello or a probe: 64 seeds and 64 founders with long names."""

ACCEPTS_A_TURN: Final = 16
_LINES_A_MINUTE: Final = 6

OnHello = Callable[[socket.socket, int, bytes], bool]
"""``on_hello(sock, target, start)`` takes the connection over for a shard; False if it cannot. ``start`` is what was
read: the hello's head, or the clear bytes before TLS.
"""


OnClient = Callable[[socket.socket, OpeningKind], bool]
"""``on_client(sock, kind)`` takes over the connection of a client of another broker's own, of kind CLIENT or CALLER;
False if it cannot.
"""


class PeerListener:
    """The listener for other brokers.

    Lifecycle: ``open`` with a listening socket, ``close`` when the broker stops. Process: the one that has the socket.
    Invariants: every entry of ``_openings`` is watched by the reactor and has a pending timer.
    """

    def __init__(
        self,
        reactor: Reactor,
        says: Callable[[], Probe],
        on_hello: OnHello,
        tls: PeerTls | None = None,
        on_client: OnClient | None = None,
    ) -> None:
        """``says`` returns this broker's answer to probes. Without ``on_client`` no client is taken."""
        self._on_client = on_client
        self._greetings = None if tls is None else Greetings(reactor, tls, OPENING_BYTES_MAX, self._on_greeting)
        self._reactor = reactor
        self._says = says
        self._on_hello = on_hello
        self._listener: socket.socket | None = None
        self._openings: dict[socket.socket, tuple[FirstFrame, Timer]] = {}
        self._strangers = RateLimit(_LINES_A_MINUTE)

    def open(self, listener: socket.socket) -> None:
        """Accept connections on ``listener``, which does not block."""
        self._listener = listener
        self._reactor.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; close what was not passed on."""
        if self._listener is not None:
            self._reactor.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for sock in list(self._openings):
            self._drop(sock)
        if self._greetings is not None:
            self._greetings.close()

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # none waits, the peer has left already, or no descriptor is free: the next turn asks again
            sock.setblocking(False)
            if len(self._openings) >= OPENINGS_MAX:
                self._drop(next(iter(self._openings)))
            timer = self._reactor.call_later(OPENING_TIMEOUT_US, lambda sock=sock: self._drop(sock))
            self._openings[sock] = (FirstFrame(OPENING_BYTES_MAX), timer)
            self._reactor.add_reader(sock.fileno(), lambda sock=sock: self._on_readable(sock))

    def _on_readable(self, sock: socket.socket) -> None:
        try:
            if self._greetings is not None:
                self._on_opening(sock, self._greetings)
                return
            frame = self._openings[sock][0].receive(sock)
            if frame is None:
                return
            kind, head = frame
            if kind is FrameKind.HELLO:
                self._forget(sock)
                hello = decode_hello(head)
                if not self._on_hello(sock, hello.target, head):
                    refuse(sock, Refusal(RefusalReason.NOT_READY, "this broker takes no connections now: try again"))
            elif kind is FrameKind.PROBE:
                decode_probe(head)
                sock.sendmsg(encode_probe(self._says(), answer=True))
                self._drop(sock)
            else:
                raise Corruption(f"a connection begins with a frame of kind {kind.name}")
        except BlockingIOError:
            return
        except (OSError, EOFError):
            self._drop(sock)
        except Corruption as error:
            self._tell(error)
            self._drop(sock)

    def _on_opening(self, sock: socket.socket, greetings: Greetings) -> None:
        """The clear bytes, all at once: a sender sends them in one piece."""
        start = sock.recv(OPENING_BYTES, socket.MSG_PEEK)
        if not start:
            raise EOFError
        if len(start) < OPENING_BYTES:
            return
        kind, target = decode_opening(sock.recv(OPENING_BYTES))
        self._forget(sock)
        if kind in (OpeningKind.CLIENT, OpeningKind.CALLER):
            if self._on_client is None or not self._on_client(sock, kind):
                sock.close()  # the client tries again
            return
        if kind is OpeningKind.BROKER:
            if not self._on_hello(sock, target, start):
                sock.close()  # the dialler tries again
            return
        greetings.take(sock)

    def _on_greeting(self, sock: TlsSocket, frame: tuple[FrameKind, bytes] | str) -> None:
        """A probe over TLS, or (a text) the reason why it is missing."""
        try:
            if isinstance(frame, str) or frame[0] is not FrameKind.PROBE:
                raise Corruption(frame if isinstance(frame, str) else f"the first frame is of kind {frame[0].name}")
            decode_probe(frame[1])
            sock.sendmsg(encode_probe(self._says(), answer=True))
        except Corruption as error:
            self._tell(error)
        except OSError:
            pass
        sock.close()

    def _tell(self, error: Corruption) -> None:
        if self._strangers.allows():
            log.warning("closed a connection to the peer listener: %s%s", error.message, self._strangers.left_out())

    def _forget(self, sock: socket.socket) -> None:
        opening = self._openings.pop(sock, None)
        if opening is not None:
            opening[1].cancel()
            self._reactor.remove_reader(sock.fileno())

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()
