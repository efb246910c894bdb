"""Requests between supervisor and shard, off the data path: "stop", "which segments has topic t", "are you ready".

Each shard has one socket pair (SOCK_SEQPACKET) with msgpack messages. Both ends are of the same class: each can send
requests and serve them::

    control.serve("segments", handler)             # handler(arguments, answer); answer(value) once, now or later
    control.ask("segments", {"topic": "t"}, on_answer, timeout_us)

A message can have any length (the manifest of ten thousand segments is long). It travels in parts of at most
``PART_BYTES``; parts that the socket does not accept wait here, up to ``BACKLOG_BYTES_MAX``. A request ends with its
response or a ``MillstreamError``: the other side's ``Rejected``, ``Unavailable`` if the other end is closed,
``OutcomeUnknown`` on a timeout.

Lifecycle: ``ControlPair`` before the fork, ``ControlEnd`` on each side's reactor after it. ``on_gone`` is called when
the other end has closed.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Unavailable
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.shard.reactor import Reactor, Timer

PART_BYTES: Final = 32 * 1024
BACKLOG_BYTES_MAX: Final = 256 << 20
_PART: Final = struct.Struct("<B")
_MORE: Final = 1
_READS: Final = 32  # parts received per turn


class _Message(msgspec.Struct, array_like=True, frozen=True):
    """Wire format of a message. ``kind``: 0 request, 1 response, 2 refusal. ``name`` is the request's, or the code of a
    refusal.
    """

    kind: int
    number: int
    name: str
    body: Any


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Message).decode
_ASK, _ANSWER, _REFUSAL = range(3)


class ControlPair:
    """The two sockets, created before the fork."""

    def __init__(self) -> None:
        self._supervisor, self._shard = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._supervisor.setblocking(False)
        self._shard.setblocking(False)

    def supervisor_end(self, reactor: Reactor) -> ControlEnd:
        self._shard.close()
        return ControlEnd(self._supervisor, reactor)

    def shard_end(self, reactor: Reactor) -> ControlEnd:
        self._supervisor.close()
        return ControlEnd(self._shard, reactor)


class ControlEnd:
    """One end of the control channel. It sends requests, and serves those of the other end."""

    def __init__(self, sock: socket.socket, reactor: Reactor) -> None:
        self._socket = sock
        self._reactor = reactor
        self._handlers: dict[str, Callable[[Any, Callable[[Any], None]], None]] = {}
        self._asked: dict[int, tuple[Callable[[Any], None], Timer]] = {}
        self._next_number = 1
        self._parts: list[bytes] = []
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self.on_gone: Callable[[], None] | None = None
        self.closed = False
        reactor.add_reader(sock.fileno(), self._on_readable)

    def serve(self, name: str, handler: Callable[[Any, Callable[[Any], None]], None]) -> None:
        """Serve requests ``name`` with ``handler(arguments, answer)``. A ``MillstreamError`` that it raises is the
        response.
        """
        self._handlers[name] = handler

    def ask(self, name: str, arguments: Any, on_answer: Callable[[Any], None], timeout_us: int) -> None:
        """Send a request. ``on_answer(value | MillstreamError)`` is called exactly once."""
        number = self._next_number
        self._next_number += 1
        timer = self._reactor.call_later(
            timeout_us, lambda: self._end(number, OutcomeUnknown(f"no answer to {name} in time"))
        )
        self._asked[number] = (on_answer, timer)
        if self.closed:
            self._reactor.call_soon(self._end, number, Unavailable("the other process is gone"))
        else:
            self._send(_Message(_ASK, number, name, arguments))

    def close(self) -> None:
        """End all open requests with ``Unavailable``, and close the socket."""
        if self.closed:
            return
        self.closed = True
        self._reactor.remove_reader(self._socket.fileno())
        if self._unsent:
            self._reactor.remove_writer(self._socket.fileno())
            self._unsent.clear()
        self._socket.close()
        for number in list(self._asked):
            self._end(number, Unavailable("the other process is gone"))

    def _end(self, number: int, result: Any) -> None:
        entry = self._asked.pop(number, None)
        if entry is not None:
            entry[1].cancel()
            entry[0](result)

    # -- sending

    def _send(self, message: _Message) -> None:
        if self.closed:
            return
        data = _encode(message)
        last = len(data) - 1
        idle = not self._unsent
        for at in range(0, len(data), PART_BYTES):
            end = at + PART_BYTES
            part = _PART.pack(_MORE if end <= last else 0) + data[at:end]
            self._unsent.append(part)
            self._unsent_bytes += len(part)
        if self._unsent_bytes > BACKLOG_BYTES_MAX:
            raise AssertionError("the other process has stopped reading its control channel")
        if idle and not self._flush():
            self._reactor.add_writer(self._socket.fileno(), self._on_writable)

    def _flush(self) -> bool:
        """Send the waiting parts. True if none is left."""
        unsent = self._unsent
        while unsent:
            try:
                self._socket.send(unsent[0])
            except BlockingIOError:
                return False
            except OSError:
                unsent.clear()  # the reader of this socket reports the end
                self._unsent_bytes = 0
                break
            self._unsent_bytes -= len(unsent.popleft())
        return True

    def _on_writable(self) -> None:
        if self._flush():
            self._reactor.remove_writer(self._socket.fileno())

    # -- receiving

    def _on_readable(self) -> None:
        for _ in range(_READS):
            try:
                part = self._socket.recv(PART_BYTES + _PART.size)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            if not part:
                self.close()
                if self.on_gone is not None:
                    self.on_gone()
                return
            self._parts.append(part[_PART.size :])
            if part[0] != _MORE:
                message = _decode(b"".join(self._parts))
                self._parts.clear()
                self._handle(message)
                if self.closed:
                    return

    def _handle(self, message: _Message) -> None:
        if message.kind == _ANSWER:
            self._end(message.number, message.body)
        elif message.kind == _REFUSAL:
            self._end(message.number, Rejected(str(message.body), ErrorCode[message.name]))
        else:
            self._serve(message)

    def _serve(self, message: _Message) -> None:
        handler = self._handlers.get(message.name)
        if handler is None:
            text = f"nobody answers {message.name!r} here"
            self._send(_Message(_REFUSAL, message.number, ErrorCode.INVALID_REQUEST.name, text))
            return

        def answer(value: Any) -> None:
            if isinstance(value, MillstreamError):
                self._send(_Message(_REFUSAL, message.number, value.code.name, value.message))
            else:
                self._send(_Message(_ANSWER, message.number, "", value))

        try:
            handler(message.body, answer)
        except MillstreamError as error:
            answer(error)
