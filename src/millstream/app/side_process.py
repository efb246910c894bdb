"""The supervisor's end of the side process: starts it when it is first needed, and passes requests on.

::

    HTTP thread ──exchange──► frames ──► side process: schema registry, console
         ▲                                    │
         └──── queue ◄── reader thread ◄──────┘

The process parses schemas, reads records and renders pages: that takes milliseconds to seconds, large libraries and
hostile input, and the supervisor has none of it. It holds nothing that has to survive. What is promised:

- Requests travel beside each other (``app.side_frames``). Of a response at most ``PARTS_AHEAD`` parts wait here,
  so a client that reads slowly stops the side process and costs no memory.
- A process that dies, or is silent for ``ANSWER_S`` about a request, is replaced at the next request. Every request
  that it had fails with ``SideFailed``: it may have been carried out. The broker does not go down with it.
- It ends after ``IDLE_S`` without a request, and does not exist before the first one.
"""

import contextlib
import queue
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Final

import msgspec

from millstream.app.side_frames import Answer, Ask, Frame, Head, Kind, Receiver, SideRequest, SideSettings, encode, send
from millstream.telemetry.log import log

IDLE_S: Final = 15 * 60.0
ANSWER_S: Final = 60.0
_STOP_S: Final = 2.0
_SEND_TIMEOUT: Final = struct.pack("ll", int(ANSWER_S), 0)

Answerer = Callable[[Ask], tuple[Answer, socket.socket | None]]
"""Answers a question of the side process, on the thread of the request that it is asked for. It takes the socket."""


class SideFailed(Exception):
    """The process ended, or was silent for too long, before the response was complete."""


class Exchange:
    """One open request. Belongs to the thread that sent it; ``close`` it, also after a failure.

    Invariant: it is among the process's exchanges until it is closed, so frames for it find its queue.
    """

    def __init__(self, live: "_Live", number: int, answerer: Answerer | None) -> None:
        self._live = live
        self._number = number
        self._answerer = answerer
        self._done = False
        self.frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        """What the reader got for it; None: the process has ended."""

    def start(self, body: bytes) -> None:
        """Send the request; a process that does not take it makes ``head`` fail."""
        self._live.send(Kind.REQUEST, self._number, body)

    def head(self) -> Head:
        """Status and headers of the response.

        Raises:
            SideFailed: the process sent none.
        """
        frame = self._next()
        if frame.kind is Kind.END:
            self._done = True
            raise SideFailed(frame.body.decode(errors="replace"))
        if frame.kind is not Kind.HEAD:
            raise self._failed(f"a frame of kind {frame.kind.name} came first")
        try:
            head = msgspec.msgpack.decode(frame.body, type=Head)
        except msgspec.DecodeError as error:
            raise self._failed(str(error)) from error
        self._done = not head.more
        return head

    def __iter__(self) -> Generator[bytes]:
        """The parts that follow the head.

        Raises:
            SideFailed: the response is not complete.
        """
        while not self._done:
            frame = self._next()
            if frame.kind is Kind.END:
                self._done = True
                if frame.body:
                    raise SideFailed(frame.body.decode(errors="replace"))
                return
            if frame.kind is not Kind.PART:
                raise self._failed(f"a frame of kind {frame.kind.name} came among the parts")
            yield frame.body
            self._live.send(Kind.CREDIT, self._number)

    def close(self) -> None:
        """Forget the request. If the process still works on it, it gets a CANCEL frame."""
        if self._live.forget(self._number) and not self._done:
            self._live.send(Kind.CANCEL, self._number)

    def _next(self) -> Frame:
        """The next frame that is no question; questions are answered here."""
        while True:
            try:
                frame = self.frames.get(timeout=ANSWER_S)
            except queue.Empty:
                raise self._failed(f"it was silent for {ANSWER_S:.0f} s") from None
            if frame is None:
                raise SideFailed("the process ended")
            if frame.kind is not Kind.ASK:
                return frame
            self._answer(frame.body)

    def _answer(self, body: bytes) -> None:
        try:
            ask = msgspec.msgpack.decode(body, type=Ask)
        except msgspec.DecodeError as error:
            raise self._failed(str(error)) from error
        if self._answerer is None:
            raise self._failed(f"it asked for {ask.what}")
        answer, sock = self._answerer(ask)
        try:
            self._live.send(Kind.ANSWER, self._number, encode(answer), None if sock is None else sock.fileno())
        finally:
            if sock is not None:
                sock.close()

    def _failed(self, why: str) -> SideFailed:
        """The process does not do what it must: it is ended, with all that it has."""
        self._live.end(why)
        return SideFailed(why)


class SideProcess:
    """The process, started by the first request. Shared by the HTTP threads."""

    def __init__(self, settings: SideSettings, idle_s: float = IDLE_S) -> None:
        self.settings = settings
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._live: _Live | None = None
        self._closed = False

    def begin(self, request: SideRequest, answerer: Answerer | None = None) -> Exchange:
        """Send a request. The caller reads the response from the exchange, and closes it.

        Raises:
            SideFailed: the broker is stopping, or the process does not take it. It was not carried out.
        """
        body = encode(request)
        with self._lock:
            if self._closed:
                raise SideFailed("the broker is stopping")
            exchange = None if self._live is None else self._live.begin(answerer)
            if exchange is None:
                try:
                    self._live = _Live(self.settings, self._idle_s, self._expire)
                except OSError as error:
                    raise SideFailed(f"it cannot be started: {error}") from error
                exchange = self._live.begin(answerer)
                if exchange is None:
                    raise SideFailed("it ended at once")
        exchange.start(body)
        return exchange

    def close(self) -> None:
        """End the process, if there is one; requests are refused from now on."""
        with self._lock:
            self._closed = True
            live, self._live = self._live, None
        if live is not None:
            live.end("")

    def _expire(self, live: "_Live") -> bool:
        """Whether an idle process may end: no request can reach it afterwards."""
        with self._lock:
            if live.busy:
                return False
            if self._live is live:
                self._live = None
            return True


class _Live:
    """One process with its channel and the thread that reads from it.

    Threads: the reader, and those of the exchanges. ``_lock`` guards the exchanges and ``runs``; ``_sending`` keeps
    frames whole. The one that ends it first closes the channel, and the reader then reaps the process.
    """

    def __init__(self, settings: SideSettings, idle_s: float, expires: Callable[["_Live"], bool]) -> None:
        self._idle_s = idle_s
        self._expires = expires
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}
        self._number = 0
        self._used = time.monotonic()
        self.runs = True
        self._channel, theirs = socket.socketpair()
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        with theirs:
            command = [sys.executable, "-m", "millstream.app.side_main", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        send(self._channel, Kind.HELLO, 0, encode(settings))
        threading.Thread(target=self._read, name="side", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a request is open."""
        return bool(self._exchanges)

    def begin(self, answerer: Answerer | None) -> Exchange | None:
        """A new exchange; None if the process ends."""
        with self._lock:
            if not self.runs:
                return None
            self._number += 1
            exchange = self._exchanges[self._number] = Exchange(self, self._number, answerer)
            self._used = time.monotonic()
            return exchange

    def forget(self, number: int) -> bool:
        """Whether the exchange was known."""
        with self._lock:
            self._used = time.monotonic()
            return self._exchanges.pop(number, None) is not None

    def send(self, kind: Kind, number: int, body: bytes = b"", fd: int | None = None) -> None:
        """Send a frame. A channel that does not take it ends the process, and with it every exchange."""
        try:
            with self._sending:
                send(self._channel, kind, number, body, fd)
        except OSError as error:
            self.end(f"it takes no frames: {error}")

    def end(self, why: str) -> None:
        """End the process, unless it ends already. ``why`` is empty if that is as it should be."""
        with self._lock:
            if not self.runs:
                return
            self.runs = False
        if why:
            log.warning("the side process (schema registry, console) is replaced: %s", why)
            self._process.kill()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # the reader wakes up

    # The reader's thread

    def _read(self) -> None:
        receiver = Receiver(self._channel)
        why = "it ended"
        try:
            while self._waits(receiver):
                frame = receiver.receive()
                if frame is None:
                    break
                with self._lock:
                    exchange = self._exchanges.get(frame.number)
                if exchange is not None:
                    exchange.frames.put(frame)
            else:
                why = ""
        except OSError as error:
            why = str(error)
        self.end(why)
        with self._lock:
            exchanges = list(self._exchanges.values())
        for exchange in exchanges:
            exchange.frames.put(None)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()

    def _waits(self, receiver: Receiver) -> bool:
        """Wait for a frame. False: there was no request for so long that the process is to end."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while not receiver.has_data:
            left = self._idle_s - (time.monotonic() - self._used)
            if poll.poll(max(left, 1.0) * 1000):
                return True
            if time.monotonic() - self._used >= self._idle_s and self._expires(self):
                return False
        return True
