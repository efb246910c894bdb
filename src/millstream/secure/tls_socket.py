"""TLS over a socket that does not block, with the socket methods that connections call.

::

    kernel ──ciphertext──► MemoryBIO ─► OpenSSL ─► recv_into(views)      plaintext goes where the caller has room
    kernel ◄──ciphertext── MemoryBIO ◄─ OpenSSL ◄─ sendmsg(views)        at most `ENCRYPT_BYTES` a call

What it promises:

- **Receiving.** A call takes no more ciphertext from the kernel than there is room for plaintext, or than one record
  has. So what waits inside, of a connection that is not read, is one record (16 KiB) at most. ``more`` says that
  something may wait inside: the descriptor does not become readable for it, so the owner calls again in the next turn.
  Something may wait right after the handshake, too: ``more`` is true then.
- **Sending.** A count of sent bytes covers bytes whose ciphertext the kernel has, so the lent memory, the stalls and
  the queues of a connection mean what they mean without TLS. The caller presents the remaining bytes again, in the
  same order, as for any socket. Views below `JOIN_BYTES` are joined before they are encrypted: a record for each would
  cost three times the CPU.
- **Errors.** ``BlockingIOError`` (EAGAIN) as of any socket. A broken record, an alert or a stream that ends within the
  handshake is an ``OSError`` (``ssl.SSLError``); ``words.say`` says what it means. An end without close_notify is an
  end: frames have lengths of their own.

A peer that asks for new keys again and again, and takes no answers, is cut off at `ANSWER_BYTES_MAX`.
"""

import errno
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

RECORD_BYTES: Final = 16 << 10
"""Maximum plaintext of a record."""
RECORD_OVERHEAD: Final = 5 + 256
"""Header, and what encryption may add (RFC 8446 §5.2)."""
RECEIVE_BYTES: Final = 256 << 10
"""Maximum ciphertext a call: 0.12 ms."""
ENCRYPT_BYTES: Final = 256 << 10
"""Maximum plaintext that is encrypted in a call: 0.13 ms."""
JOIN_BYTES: Final = 4 << 10
ANSWER_BYTES_MAX: Final = 64 << 10

Buffer = bytes | bytearray | memoryview
_NOTHING: Final = memoryview(b"")
_scratch: Final = bytearray(RECEIVE_BYTES)


class TlsSocket:
    """A connected socket with TLS. Thread: the one that made it; a process has one that makes any.

    Lifecycle: made around a socket, which it owns from then on; ``handshake`` until it returns True, then the socket
    methods; ``close``.
    Invariants: ``_reported`` ≤ ``_plain``; both are 0 while ``_unsent`` is empty.
    """

    __slots__ = ("_in", "_out", "_plain", "_socket", "_tls", "_reported", "_total", "_unsent", "more")

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._socket = sock
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side, server_hostname)
        self._unsent = _NOTHING
        """Ciphertext that the kernel has not taken."""
        self._total = 0
        """Length of the ciphertext of which ``_unsent`` is the end."""
        self._plain = 0
        """Bytes of the caller's that it holds."""
        self._reported = 0
        """Bytes of these that were reported as sent."""
        self.more = False

    # Handshake

    def handshake(self) -> bool:
        """Receive once and go on with the handshake. True when it is done.

        Raises:
            OSError: it has failed; the peer has an alert with the reason, where TLS has one.
        """
        try:
            if not self._advance():
                try:
                    data = self._socket.recv(RECORD_BYTES + RECORD_OVERHEAD)
                except BlockingIOError:
                    return False
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "the connection ended within the TLS handshake")
                self._in.write(data)
                if not self._advance():
                    return False
        except ssl.SSLError:
            self._flush_out(quietly=True)
            raise
        self.more = True
        return True

    def _advance(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush_out()
            return False
        self._flush_out()
        return True

    def _flush_out(self, *, quietly: bool = False) -> None:
        """Send what OpenSSL has to say in the handshake. The empty buffer of a new socket has room for it."""
        data = self._out.read()
        if not data:
            return
        try:
            if self._socket.send(data) == len(data) or quietly:
                return
        except OSError:
            if not quietly:
                raise
            return
        raise ConnectionAbortedError(errno.ECONNABORTED, "the peer takes no TLS handshake")

    def certificate(self) -> bytes | None:
        """The peer's certificate, DER; None if it has shown none."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        """Such as TLSv1.3."""
        return self._tls.version() or ""

    # Receiving

    def recv_into(self, view: memoryview) -> int:
        """Receive into ``view``; 0 is the end of the stream."""
        return self._receive((view,))

    def recvmsg_into(self, views: Sequence[memoryview]) -> tuple[int, None]:
        """Receive into several views, one after the other. The count is the first part of the result."""
        return self._receive(views), None

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end of the stream."""
        data = bytearray(size)
        return bytes(data[: self._receive((memoryview(data),))])

    def _receive(self, views: Sequence[memoryview]) -> int:
        read = self._tls.read
        received = 0
        pulled = False
        room = sum(map(len, views))
        self.more = False
        for view in views:
            at = 0
            while at < len(view):
                try:
                    count = int(read(len(view) - at, view[at:]))
                except ssl.SSLWantReadError:
                    if pulled or not self._pull(room - received, received):
                        return self._received(received)
                    pulled = True
                    continue
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    count = 0
                if not count:
                    self.more = received > 0  # a call of its own reports the end
                    return received
                at += count
                received += count
        self.more = True
        return received

    def _pull(self, room: int, received: int) -> bool:
        """Take ciphertext from the kernel. False if there is none."""
        most = max(room, RECORD_BYTES + RECORD_OVERHEAD) - self._in.pending
        try:
            count = self._socket.recv_into(_scratch, min(max(most, 1), RECEIVE_BYTES))
        except BlockingIOError:
            return False
        except OSError:
            if received:
                return False  # first what has arrived; the next call meets the error again
            raise
        if count:
            self._in.write(memoryview(_scratch)[:count])
        else:
            self._in.write_eof()
        return True

    def _received(self, received: int) -> int:
        """The count of a call that has taken all there is."""
        if self._out.pending:
            self._answer()
        if not received:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return received

    def _answer(self) -> None:
        """Send what OpenSSL answers to the peer's messages (new keys), after what is unsent."""
        if self._unsent:
            if self._out.pending > ANSWER_BYTES_MAX:
                raise ConnectionAbortedError(errno.ECONNABORTED, "the peer takes no answers of TLS")
            return  # it stays inside, and leaves with the next bytes that are sent
        self._take_out(0)
        self._push()

    # Sending

    def send(self, view: Buffer) -> int:
        """Send bytes of ``view``; how many, as of any socket."""
        return self.sendmsg((view,))

    def sendmsg(self, views: Sequence[Buffer]) -> int:
        """Send bytes of ``views``; how many of them the kernel has, all of their records included."""
        if self._unsent:
            plain = self._plain
            self._push()
            if self._unsent:
                return self._progress()
            done, self._plain, self._reported = plain - self._reported, 0, 0
            if done:
                return done
        plain = self._encrypt(views)
        self._take_out(plain)
        self._push()
        if self._unsent:
            return self._progress()
        self._plain = self._reported = 0
        return plain

    def _encrypt(self, views: Sequence[Buffer]) -> int:
        write = self._tls.write
        room = ENCRYPT_BYTES
        small: list[Buffer] = []
        small_bytes = 0
        for view in views:
            size = len(view)
            if size < JOIN_BYTES and size <= room:
                small.append(view)
                small_bytes += size
                room -= size
                if small_bytes < RECORD_BYTES - JOIN_BYTES:
                    continue
                size = 0
            if small:
                write(b"".join(small))
                small.clear()
                small_bytes = 0
            if size:
                part = view if size <= room else memoryview(view)[:room]
                if len(part):
                    write(part)
                room -= len(part)
            if room <= 0:
                break
        if small:
            write(b"".join(small))
        return ENCRYPT_BYTES - room

    def _take_out(self, plain: int) -> None:
        data = self._out.read()
        self._unsent = memoryview(data)
        self._total = len(data)
        self._plain = plain
        self._reported = 0

    def _push(self) -> None:
        """Hand ciphertext to the kernel; what it does not take stays in ``_unsent``."""
        while self._unsent:
            try:
                count = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[count:] if count < len(self._unsent) else _NOTHING

    def _progress(self) -> int:
        """Bytes of the caller's to report while ciphertext is unsent: a record less than the sent share of it."""
        sent = self._total - len(self._unsent)
        reported = self._plain * sent // self._total - RECORD_BYTES
        if reported <= self._reported:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        count, self._reported = reported - self._reported, reported
        return count

    # The socket below

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def family(self) -> int:
        return self._socket.family

    def setblocking(self, flag: bool) -> None:
        """Part of the interface; a socket with TLS never blocks."""
        assert not flag

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._socket.setsockopt(level, name, value)

    def getsockopt(self, level: int, name: int) -> int:
        return self._socket.getsockopt(level, name)

    def getpeername(self) -> Any:
        return self._socket.getpeername()

    def getsockname(self) -> Any:
        return self._socket.getsockname()

    def close(self) -> None:
        """Say close_notify, if the kernel takes it, and close the socket."""
        if not self._unsent and self._socket.fileno() >= 0:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # the peer need not answer; in mid-handshake there is nothing to end
            except ValueError:
                pass
            self._flush_out(quietly=True)
        self._socket.close()
