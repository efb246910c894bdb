"""The first part of an accepted connection with TLS: the handshake, then exactly one frame.

A greeting that takes longer than `GREETING_US` is ended. Nothing beyond the first frame is taken from the socket; bytes
that wait inside the ``TlsSocket`` come with its owner's next receive.
"""

from collections.abc import Callable
from socket import socket as TcpSocket  # noqa: N812
from typing import Final

from millstream.errors import Corruption
from millstream.peers.frames import FrameKind
from millstream.peers.receiving import FirstFrame
from millstream.peers.secured import PeerTls
from millstream.secure.tls_socket import TlsSocket
from millstream.secure.words import say
from millstream.shard.reactor import Reactor

GREETING_US: Final = 5_000_000

GREETINGS_MAX: Final = 64
"""Connections in their handshake at once; one more closes the oldest."""

Outcome = tuple[FrameKind, bytes] | str
"""Kind and head of the first frame, or the reason why it is missing."""


class Greetings:
    """The greetings of one process.

    Lifecycle: ``take`` for each connection, ``close`` at the end.
    """

    def __init__(
        self, reactor: Reactor, tls: PeerTls, head_bytes_max: int, greeted: Callable[[TlsSocket, Outcome], None]
    ) -> None:
        """``greeted(socket, outcome)`` owns the socket from then on."""
        self.tls = tls
        self._reactor = reactor
        self._head_bytes_max = head_bytes_max
        self._greeted = greeted
        self._open: dict[_Greeting, None] = {}

    def take(self, sock: TcpSocket) -> None:
        """Take over a connection of which the clear bytes were read."""
        if len(self._open) >= GREETINGS_MAX:
            next(iter(self._open)).end("more connections came than there is room for")
        greeting = _Greeting(self._reactor, self.tls.accept(sock), FirstFrame(self._head_bytes_max), self._ended)
        self._open[greeting] = None

    def close(self) -> None:
        """End all greetings."""
        for greeting in list(self._open):
            greeting.end("this broker stops")

    def _ended(self, greeting: "_Greeting", sock: TlsSocket, outcome: Outcome) -> None:
        self._open.pop(greeting, None)
        self._greeted(sock, outcome)


class _Greeting:
    """One connection until its first frame.

    Lifecycle: one ``ended`` call, which owns the socket then. Process: one with a reactor.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: TlsSocket,
        frame: FirstFrame,
        ended: "Callable[[_Greeting, TlsSocket, Outcome], None]",
    ) -> None:
        self._reactor = reactor
        self._socket = sock
        self._frame = frame
        self._ended = ended
        self._handshakes = True
        self._timer = reactor.call_later(GREETING_US, lambda: self.end("no TLS handshake and hello in time"))
        reactor.add_reader(sock.fileno(), self._on_readable)

    def end(self, outcome: Outcome) -> None:
        """End with the first frame, or for a reason."""
        self._timer.cancel()
        self._reactor.remove_reader(self._socket.fileno())
        self._ended(self, self._socket, outcome)

    def _on_readable(self) -> None:
        try:
            if self._handshakes:
                if not self._socket.handshake():
                    return
                self._handshakes = False
            frame = None
            while frame is None:
                frame = self._frame.receive(self._socket)
            self.end(frame)
        except BlockingIOError:
            return
        except Corruption as error:
            self.end(error.message)
        except EOFError as error:
            self.end(str(error))
        except OSError as error:
            self.end(f"TLS failed: {say(error)}")
