"""``python -m millstream.app.side_main FD``: the process beside the broker that hosts schema registry and console.

The supervisor starts it at the first request (``app.side_process``). FD is its end of a socket pair, over which
everything goes (``app.side_frames``). Each request has a thread; the supervisor bounds how many there are. What a room
needs is imported by its first request. The process ends when the channel does, which a supervisor that dies does, too.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from millstream.app.side_frames import (
    PART_BYTES_MAX,
    PARTS_AHEAD,
    WHOLE_BYTES_MAX,
    Answer,
    Ask,
    Head,
    Kind,
    Receiver,
    SideRequest,
    SideSettings,
    encode,
    send,
)
from millstream.errors import Rejected, Unavailable
from millstream.shard.process import rename
from millstream.telemetry.log import log

NICE: Final = 5
"""A page is not in a hurry; acknowledgements of records are."""


class _Gone(Exception):
    """The response is no longer awaited."""


class _Channel:
    """The channel, for the threads that send."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._sending = threading.Lock()

    def send(self, kind: Kind, number: int, body: bytes = b"") -> None:
        try:
            with self._sending:
                send(self.socket, kind, number, body)
        except OSError as error:
            raise _Gone from error


class Work:
    """One open request. Its thread calls everything but what the reader calls."""

    def __init__(self, channel: _Channel, number: int, request: SideRequest) -> None:
        self.request = request
        self._channel = channel
        self._number = number
        self._credit = threading.Semaphore(PARTS_AHEAD)
        self._answers: queue.SimpleQueue[tuple[Answer, int | None] | None] = queue.SimpleQueue()
        self._gone = False

    # The reader's thread

    def credited(self) -> None:
        """One part more may be sent."""
        self._credit.release()

    def answered(self, answer: Answer, fd: int | None) -> None:
        """The answer to what was asked."""
        self._answers.put((answer, fd))

    def cancelled(self) -> None:
        """The response is no longer awaited."""
        self._gone = True
        self._credit.release()
        self._answers.put(None)

    # The request's thread

    def ask(self, what: str, *arguments: str) -> tuple[Answer, socket.socket | None]:
        """Ask the broker something on behalf of this request. The caller owns the socket, if there is one."""
        self._check()
        self._channel.send(Kind.ASK, self._number, encode(Ask(what, [*arguments])))
        found = self._answers.get()
        if found is None:
            self._answers.put(None)
            raise _Gone
        answer, fd = found
        return answer, None if fd is None else socket.socket(fileno=fd)

    def respond(self, head: Head, body: Iterable[bytes] = ()) -> None:
        """Send a response. ``body`` follows in parts if ``head.more`` says so."""
        whole = head.body
        if len(whole) <= WHOLE_BYTES_MAX and not head.more:
            self._channel.send(Kind.HEAD, self._number, encode(head))
            return
        if not head.more:
            head, body = msgspec.structs.replace(head, body=b"", more=True, length=len(whole)), (whole,)
        self._channel.send(Kind.HEAD, self._number, encode(head))
        for piece in body:
            for start in range(0, len(piece), PART_BYTES_MAX):
                self._credit.acquire()
                self._check()
                self._channel.send(Kind.PART, self._number, piece[start : start + PART_BYTES_MAX])
            self._check()
        self._channel.send(Kind.END, self._number)

    def fail(self, why: str) -> None:
        """End a response that is not complete."""
        self._channel.send(Kind.END, self._number, why.encode())

    def _check(self) -> None:
        if self._gone:
            raise _Gone


Room = Callable[[Work], None]
"""Answers one request."""


class Side:
    """The process: the reader, and a thread for each request."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = _Channel(sock)
        self._receiver = Receiver(sock)
        self._lock = threading.Lock()
        self._works: dict[int, Work] = {}
        self._rooms: dict[str, Room] = {}

    def run(self) -> None:
        """Serve until the channel ends."""
        hello = self._receiver.receive()
        if hello is None:
            return
        self._settings = msgspec.msgpack.decode(hello.body, type=SideSettings)
        while (frame := self._receiver.receive()) is not None:
            if frame.kind is Kind.REQUEST:
                self._begin(frame.number, msgspec.msgpack.decode(frame.body, type=SideRequest))
                continue
            with self._lock:
                work = self._works.get(frame.number)
            if frame.kind is Kind.ANSWER:
                answer = msgspec.msgpack.decode(frame.body, type=Answer)
                fd = self._receiver.fds.popleft() if answer.fds else None
                if work is not None:
                    work.answered(answer, fd)
                elif fd is not None:
                    os.close(fd)
            elif work is None:
                continue
            elif frame.kind is Kind.CREDIT:
                work.credited()
            elif frame.kind is Kind.CANCEL:
                work.cancelled()

    def _begin(self, number: int, request: SideRequest) -> None:
        work = Work(self._channel, number, request)
        with self._lock:
            self._works[number] = work
        threading.Thread(target=self._serve, args=(number, work), daemon=True).start()

    def _serve(self, number: int, work: Work) -> None:
        try:
            self._room(work.request.room)(work)
        except _Gone:
            pass
        except Exception:  # noqa: BLE001 (a request does not end the process)
            log.error("a request of the side process failed: %s", traceback.format_exc())
            with contextlib.suppress(_Gone):
                work.fail("a fault in millstream, which the broker's log has")
        finally:
            with self._lock:
                del self._works[number]

    def _room(self, name: str) -> Room:
        with self._lock:
            found = self._rooms.get(name)
            if found is None:
                found = self._rooms[name] = _ROOMS[name](self._settings)
        return found


def _registry(settings: SideSettings) -> Room:
    from millstream.client import Cluster
    from millstream.client.compacted_topic import CompactedTopic
    from millstream.registry.serve import TOPIC, HttpRequest, Registry

    cluster = Cluster(
        settings.registry_bootstrap,
        client_id="millstream-registry",
        timeout_s=10.0,
        security=settings.registry_security,
    )
    registry = Registry(CompactedTopic(cluster, TOPIC), lambda message: log.warning("%s", message))
    turn = threading.Lock()

    def answer(work: Work) -> None:
        asked = work.request
        with turn:
            found = registry.respond(HttpRequest(asked.method, asked.target, asked.headers, asked.body))
        work.respond(Head(found.status, found.content_type, [], found.body))

    return answer


class _Visit:
    """What the console's pages have of the broker (``console.hosted.Visit``)."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.principal = work.request.principal
        self.login = work.request.login
        self.host = work.request.host

    def get(self, path: str) -> Any:
        return json.loads(self._asked("get", path))

    def sees_all(self, kind: str) -> bool:
        return self._asked("sees_all", kind) == b"yes"

    def connect(self) -> socket.socket:
        answer, sock = self._work.ask("connect")
        if sock is None:
            raise Unavailable(answer.body.decode())
        return sock

    def log_in(self, name: str, password: str, token: str) -> str:
        return self._asked("log_in", name, password, token).decode()

    def log_out(self) -> None:
        self._asked("log_out")

    def sign_in_address(self, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
        return self._asked("sign_in_address", redirect_uri, state, nonce, challenge).decode()

    def sign_in(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> str:
        return self._asked("sign_in", code, verifier, redirect_uri, nonce).decode()

    def sign_out_address(self, back: str) -> str:
        return self._asked("sign_out_address", back).decode()

    def _asked(self, what: str, *arguments: str) -> bytes:
        answer, _ = self._work.ask(what, *arguments)
        if answer.status == 200:
            return answer.body
        kind = Unavailable if answer.status >= 500 and answer.status != 501 else Rejected
        raise kind(answer.body.decode())


def _console(settings: SideSettings) -> Room:
    from millstream.console.hosted import close, host, respond

    application = host(
        settings.shown_bootstrap,
        settings.console_bootstrap,
        settings.secret,
        read_only=settings.read_only,
        tokens=settings.tokens,
        security=settings.console_security,
        issuer=settings.issuer,
        redirect_uri=settings.redirect_uri,
        masks=settings.masks,
    )

    def answer(work: Work) -> None:
        asked = work.request
        answered = respond(
            application, _Visit(work), asked.method, asked.target, asked.headers, asked.body, secure=asked.secure
        )
        try:
            head = Head(answered.status, answered.content_type, answered.headers, b"")
            if answered.length is None:
                work.respond(msgspec.structs.replace(head, more=True), answered.body)
            else:
                work.respond(msgspec.structs.replace(head, body=b"".join(answered.body)))
        finally:
            close(answered.body)

    return answer


_ROOMS: Final[dict[str, Callable[[SideSettings], Room]]] = {"registry": _registry, "console": _console}


def main() -> int:
    """Serve until the supervisor closes the socket or exits."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the supervisor decides when to stop
    rename("registry, console")
    os.nice(NICE)
    log.who("side")
    with contextlib.suppress(OSError):  # the supervisor has exited
        Side(socket.socket(fileno=int(sys.argv[1]))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
