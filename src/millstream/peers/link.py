"""One connection between two brokers, from its first frame to its end.

::

    dialling shard    Link.dial ──connect──HELLO──► WELCOME ─► open ──turns──►     (requests and their answers back)
    accepting shard   Link.accept(hello) ─► the caller's check ─► WELCOME or REFUSAL ─► open

A link is open after the handshake and carries turns in both directions. What is to be sent is queued as buffers, with
the memory that is lent for them, and leaves with one ``sendmsg`` where the kernel takes it. ``queued_bytes`` counts the
bytes that the kernel has not taken; the caller keeps them within a bound.

**Failure.** An error of the socket, a broken frame, a refusal, or a handshake longer than `HANDSHAKE_TIMEOUT_US` closes
the link: lent memory is released, ``on_closed`` is called once with the reason. The kernel detects a peer that
vanished: unacknowledged bytes or keep-alive probes end the connection after `DEAD_AFTER_MS`. A peer that is stopped
keeps its connection; its queue stops at the caller's bound.

Nothing here blocks, and nothing is a task: the reactor calls ``_on_readable`` and ``_on_writable``.
"""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import msgspec

from millstream.errors import Corruption, MillstreamError
from millstream.iobuf.outbox import MAX_BYTES, Buffer, Holder, Outbox
from millstream.peers.frames import FrameKind, encode_frame
from millstream.peers.hello import Greeting, Hello, Refusal, encode_hello, encode_refusal, encode_welcome
from millstream.peers.items import Item, encode_item
from millstream.peers.receiving import FrameReceiver
from millstream.peers.secured import OpeningKind, PeerTls, encode_opening
from millstream.secure.words import say
from millstream.shard.context import Shard

HANDSHAKE_TIMEOUT_US: Final = 5_000_000

DEAD_AFTER_MS: Final = 10_000
"""Until the kernel gives up a connection whose peer acknowledges nothing."""

ANSWER_BYTES_MAX: Final = 8 << 20
"""Answers that may wait for a peer: those of a dozen large requests."""

_KEEPALIVE_S: Final = 3
_SENDS_A_TURN: Final = 4

OnTurn = Callable[["Link", memoryview, Sequence[memoryview] | None], None]


class Events(msgspec.Struct, frozen=True):
    """Callbacks of a link's owner."""

    opened: Callable[["Link"], None]
    """The handshake is done: ``Link.remote`` says who the peer is."""
    turn: OnTurn
    """``turn(link, head, body)``: a turn's frame arrived. The views are valid during the call; ``body`` is None if
    there was no memory for it."""
    drained: Callable[["Link"], None]
    """The kernel has taken all queued bytes, after it had refused some."""
    closed: Callable[["Link", str], None]
    """The link has ended, for this reason. Called exactly once, unless the owner closed the link."""


class Link:
    """A socket between a shard of this broker and a shard of a peer, with what is queued for it.

    Lifecycle: ``dial`` or ``accept``, then ``close`` or an end of its own. Shard: the one that made it.
    Invariants: ``remote`` is None until the link is open, so never on the accepting side. ``_writing`` says whether the
    reactor watches for room.
    """

    __slots__ = (
        "_connecting",
        "_events",
        "_fd",
        "_greeting",
        "_outbox",
        "_receiver",
        "_shard",
        "_socket",
        "_timer",
        "_writing",
        "closed",
        "remote",
    )

    def __init__(self, shard: Shard, scratch: memoryview, sock: Any, hello: Hello, events: Events) -> None:
        """For `dial` and `accept`. ``sock`` is a socket, or a ``TlsSocket``."""
        self._shard = shard
        self._socket = sock
        self._fd = sock.fileno()
        self._greeting = Greeting(hello)
        self._events = events
        self._outbox = Outbox()
        self._receiver = FrameReceiver(shard.arena, scratch, self._on_frame)
        self._connecting = False
        self._writing = False
        self.closed = False
        self.remote: Hello | None = None
        """The hello of the other side."""
        self._timer = shard.reactor.call_later(HANDSHAKE_TIMEOUT_US, self._too_late)
        tune(sock)

    @classmethod
    def dial(
        cls,
        shard: Shard,
        scratch: memoryview,
        family: int,
        address: tuple[object, ...],
        hello: Hello,
        events: Events,
    ) -> Self:
        """A connection to ``address`` (as ``getaddrinfo`` gives it), on which ``hello`` is said first.

        Raises:
            OSError: no socket can be made, or the address cannot be reached at all.
        """
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        error = sock.connect_ex(address)
        if error not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(error, os.strerror(error))
        link = cls(shard, scratch, sock, hello, events)
        link._connecting = True
        link._writing = True
        shard.reactor.add_writer(link._fd, link._on_writable)
        return link

    @classmethod
    def accept(cls, shard: Shard, scratch: memoryview, sock: Any, hello: Hello, remote: Hello, events: Events) -> Self:
        """The accepting side of a connection on which ``remote`` was said; ``hello`` is sent as welcome."""
        sock.setblocking(False)
        link = cls(shard, scratch, sock, hello, events)
        link._timer.cancel()
        link.remote = remote
        shard.reactor.add_reader(link._fd, link._on_readable)
        link.send(encode_welcome(hello))
        return link

    @property
    def is_open(self) -> bool:
        """Whether turns can be sent."""
        return self.remote is not None and not self.closed

    @property
    def refusal(self) -> Refusal | None:
        """The other side's refusal, if there was one."""
        return self._greeting.refusal

    @property
    def queued_bytes(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._outbox.queued_bytes

    def send(self, buffers: Sequence[Buffer], holder: Holder | None = None) -> None:
        """Queue a frame and send what the kernel takes. ``holder`` is released when all of it was sent, or the link
        has ended.
        """
        if self.closed:
            if holder is not None:
                holder.release()
            return
        self._outbox.push(buffers, sum(map(len, buffers)), holder)
        if not self._writing:
            self._send()

    def close(self) -> None:
        """End the connection without a report to the owner."""
        if self.closed:
            return
        self.closed = True
        self._timer.cancel()
        reactor = self._shard.reactor
        if not self._connecting:
            reactor.remove_reader(self._fd)
        if self._writing:
            reactor.remove_writer(self._fd)
        self._receiver.drop()
        self._outbox.drop()
        self._socket.close()

    # Sending

    def _on_writable(self) -> None:
        if self._connecting:
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self.end(os.strerror(error))
                return
            self._connecting = False
            self._shard.reactor.add_reader(self._fd, self._on_readable)
            self._on_connected()
            return
        self._send()

    def _on_connected(self) -> None:
        """Say hello."""
        hello = encode_hello(self._greeting.hello)
        self._outbox.push(hello, sum(map(len, hello)), None)
        self._send()

    def _send(self) -> None:
        outbox = self._outbox
        for _ in range(_SENDS_A_TURN):
            if not outbox.queued_bytes:
                break
            views = outbox.next_views()
            wanted = sum(map(len, views))
            try:
                count = self._socket.sendmsg(views)
            except BlockingIOError:
                break
            except OSError as error:
                self.end(_words(error))
                return
            outbox.sent(count)
            if count < wanted or wanted >= MAX_BYTES:
                break
        reactor = self._shard.reactor
        if outbox.queued_bytes:
            if not self._writing:
                self._writing = True
                reactor.add_writer(self._fd, self._on_writable)
        elif self._writing:
            self._writing = False
            reactor.remove_writer(self._fd)
            if self.remote is not None:
                self._events.drained(self)

    # Receiving

    def _on_readable(self) -> None:
        try:
            count = self._receiver.receive(self._socket)
        except BlockingIOError:
            return
        except MillstreamError as error:
            self.end(error.message)
            return
        except OSError as error:
            self.end(_words(error))
            return
        if not count and not self.closed:
            self.end("closed by the peer")

    def _on_frame(self, kind: FrameKind, head: memoryview, body: Sequence[memoryview] | None) -> None:
        if self.remote is None:
            self.remote = self._greeting.welcomed_by(kind, head)
            self._timer.cancel()
            self._events.opened(self)
        elif kind is FrameKind.TURN:
            self._events.turn(self, head, body)
        else:
            raise Corruption(f"a frame of kind {kind.name} is out of place")

    # Ending

    def _too_late(self) -> None:
        self.end(f"no handshake within {HANDSHAKE_TIMEOUT_US // 1_000_000} s")

    def end(self, reason: str) -> None:
        """End the connection and report it."""
        if not self.closed:
            self.close()
            self._events.closed(self, reason)


class TlsLink(Link):
    """A link with TLS. The descriptor is not readable for plaintext that waits inside the socket, so it is asked again
    in the next turn.

    Invariants: ``_dialling`` is set during the dialling side's handshake.
    """

    __slots__ = ("_asks", "_dialling", "_host")

    def __init__(self, shard: Shard, scratch: memoryview, sock: Any, hello: Hello, events: Events) -> None:
        super().__init__(shard, scratch, sock, hello, events)
        self._asks = False
        self._host = ""
        self._dialling: PeerTls | None = None

    def secure(self, tls: PeerTls, host: str) -> None:
        """On the dialling side: how the link is encrypted, and the name that the certificate must have."""
        self._dialling = tls
        self._host = host

    def receive_rest(self) -> None:
        """On the accepting side: receive what came with the hello."""
        self._ask_again()

    def _on_connected(self) -> None:
        assert self._dialling is not None
        self._writing = False
        self._shard.reactor.remove_writer(self._fd)
        opening = encode_opening(OpeningKind.BROKER, self._greeting.hello.target)
        plain: Any = self._socket
        try:
            self._socket = self._dialling.dial(plain, self._host, opening)
        except OSError as error:
            self.end(_words(error))
            return
        self._handshake()

    def _handshake(self) -> None:
        try:
            done = self._socket.handshake()
        except OSError as error:
            self.end(f"TLS failed with {self._host}: {say(error)}")
            return
        if done:
            self._dialling = None
            super()._on_connected()
            self._ask_again()

    def _on_readable(self) -> None:
        if self._dialling is not None:
            self._handshake()
            return
        super()._on_readable()
        self._ask_again()

    def _ask_again(self) -> None:
        if not self.closed and self._socket.more and not self._asks:
            self._asks = True
            self._shard.reactor.call_soon(self._asked)

    def _asked(self) -> None:
        self._asks = False
        if not self.closed:
            self._on_readable()


def answer(link: Link, *items: Item) -> None:
    """Send ``items`` back on the connection that a peer dialled. A peer that takes no answers loses the connection."""
    if link.queued_bytes > ANSWER_BYTES_MAX:
        link.end("it does not take its answers")
    else:
        link.send(encode_frame(FrameKind.TURN, [encode_item(item) for item in items]))


def refuse(sock: Any, refusal: Refusal) -> None:
    """Answer a hello with ``refusal`` and close the connection. The refusal fits the empty buffer of the socket."""
    try:
        sock.setblocking(False)
        sock.sendmsg(encode_refusal(refusal))
    except OSError:
        pass  # the peer has left, or does not read: it finds the connection closed
    sock.close()


def tune(sock: Any) -> None:
    """Options of every connection between brokers: no delay, and an end when the peer has vanished."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)


def _words(error: OSError) -> str:
    return error.strerror or str(error)
