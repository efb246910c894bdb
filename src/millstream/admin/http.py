"""The HTTP server: sockets, threads, and the bounds on both; ``admin.routing`` knows what is answered.

It runs on threads of the supervisor, which holds no data path, so a slow or hostile HTTP client costs the broker
nothing but the time of that process. Bounds: the standard library's on the request line and the headers, which arrive
within ``HEAD_S``, the wait for them included; ten seconds of silence end a connection; ``CONNECTIONS_MAX`` requests are
answered at once, and of more than ``OPEN_MAX`` connections the newest are closed; a body has a length that its route
allows, is one of ``BODIES_MAX`` at once, and arrives within ``BODY_S``. Errors are JSON, those of the HTTP parser
included. A body that was not read ends its connection.

Before a body is read, requests that a web page of another site caused are refused (``admin.access``). Where access is
controlled, so are callers without the route's rights (``admin.callers``); ``LOGINS_MAX`` passwords are tested at once,
so that guessing takes time.
"""

import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any, Final

import msgspec

from millstream.admin.access import Access, check_json
from millstream.admin.callers import Callers, read_proof
from millstream.admin.routing import Caller, HttpError, Parts, Request, Response, Route, Router, failure
from millstream.config.listeners import is_loopback
from millstream.errors import MillstreamError, Rejected
from millstream.secure.endpoint import ServerTls
from millstream.secure.options import REQUESTED
from millstream.telemetry.log import log

TIMEOUT_S: Final = 10.0
HEAD_S: Final = 20.0
CONNECTIONS_MAX: Final = 32
OPEN_MAX: Final = 256
"""Each has a thread and a descriptor of the process that accepts Kafka's clients, too."""
BODIES_MAX: Final = 16
BODY_S: Final = 30.0
LOGINS_MAX: Final = 4
_CLIENT_HELLO: Final = b"\x16"
_SPEAKS_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"this port speaks HTTPS: ask it by https://\n"
)
_YES: Final = ("true", "1")
_PART_BYTES: Final = 64 << 10
_METHODS: Final = frozenset(
    f"do_{name}" for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")
)
"""An unknown one is refused with 501, a known one that a path does not take with 405."""


class HttpServer:
    """The threads behind a listening socket.

    Lifecycle: made with a socket that is bound and does not listen yet; ``start`` after the last fork, when the socket
    listens; ``stop`` before the supervisor ends. The socket is this object's from the beginning.
    """

    def __init__(
        self,
        listener: socket.socket,
        router: Router,
        access: Access,
        tls: ServerTls | None = None,
        callers: Callers | None = None,
        *,
        name: str = "",
    ) -> None:
        """With ``tls`` the port takes TLS only. ``callers`` is None where access is not controlled. ``name`` is that of
        the host in ``url``; empty: its address.
        """
        self._listener = listener
        self._server = _Server(listener, router, access, tls)
        self._server.callers = callers
        host, port = listener.getsockname()[:2]
        host = name or host
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._thread: threading.Thread | None = None

    @property
    def fd(self) -> int:
        return self._listener.fileno()

    def audit_by(self, record: Callable[[str, str, str, int], None]) -> None:
        """Record each change with ``record(principal, host, method and path, status)``, on the request's thread."""
        self._server.audit = record

    def start(self) -> None:
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    def renew(self, tls: ServerTls) -> None:
        """Use other key material from the next handshake on."""
        self._server.tls = tls

    def stop(self) -> None:
        """Stop serving and close the socket."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, router: Router, access: Access, tls: ServerTls | None) -> None:
        address = listener.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = address
        self.router = router
        self.access = access
        self.tls = tls
        self.slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.bodies = threading.BoundedSemaphore(BODIES_MAX)
        self.callers: Callers | None = None
        self.audit: Callable[[str, str, str, int], None] | None = None
        self.logins = threading.BoundedSemaphore(LOGINS_MAX)
        self.room = threading.BoundedSemaphore(OPEN_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            served = request if self.tls is None else self._handshake(request, self.tls)
            if served is not None:
                super().process_request_thread(served, client_address)
        finally:
            self.room.release()

    def _handshake(self, request: socket.socket, tls: ServerTls) -> socket.socket | None:
        """TLS on the thread of the request. None: it failed, and the connection is closed."""
        request.settimeout(TIMEOUT_S)
        try:
            if request.recv(1, socket.MSG_PEEK) != _CLIENT_HELLO:
                request.sendall(_SPEAKS_TLS)
                self.shutdown_request(request)
                return None
            return tls.context.wrap_socket(request, server_side=True)
        except OSError:
            self.shutdown_request(request)
            return None

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle is no news."""


class _Arriving(io.RawIOBase):
    """What a connection receives, for a time, so that a byte now and then does not hold a thread for ever."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = 0.0

    def allow(self, seconds: float) -> None:
        """Reads may take this long in total from now on."""
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError after ``TIMEOUT_S`` of silence, and when the time is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(min(left, TIMEOUT_S))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(TIMEOUT_S)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S
    server_version = "millstream"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._arriving = _Arriving(self.connection)
        self.rfile = io.BufferedReader(self._arriving)

    def handle_one_request(self) -> None:
        self._arriving.allow(HEAD_S)
        super().handle_one_request()

    @property
    def _port(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def _serve(self) -> None:
        server = self._port
        try:
            route, request = server.router.find(self.command, self.path)
        except HttpError as error:
            self._refuse(failure(error))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        caller = None
        try:
            if not route.open:
                server.access.check(self.headers.get_all("Host", []), headers)
                caller = self._caller(route, request, headers)
            if route.json_only:
                check_json(headers)
            body = self._body(route.body_bytes_max)
        except HttpError as error:
            self._record(request, error.principal if caller is None else caller.principal, error.status)
            self._refuse(route.failure(error))
            return
        request = msgspec.structs.replace(
            request,
            headers=headers,
            body=body,
            caller=caller,
            client_host=str(self.client_address[0]),
            over_tls=server.tls is not None,
        )
        with server.slots:
            response = server.router.answer(route, request)
        self._record(request, "" if caller is None else caller.principal, response.status)
        self._send(response)

    def _record(self, request: Request, principal: str, status: int) -> None:
        """Record a change in the audit."""
        audit = self._port.audit
        if audit is not None and self.command not in ("GET", "HEAD"):
            dry = "?dry_run=true" if request.query.get("dry_run", "").lower() in _YES else ""
            audit(principal, str(self.client_address[0]), f"{self.command} {request.path}{dry}", status)

    def __getattr__(self, name: str) -> Any:
        """``do_GET`` and its like, by which the standard library looks for a method."""
        if name in _METHODS:
            return self._serve
        raise AttributeError(name)

    def _caller(self, route: Route, request: Request, headers: Mapping[str, str]) -> Caller | None:
        """Who asks, with the rights that the route needs; None where access is not controlled."""
        port = self._port
        principal = self._principal(port.tls)
        if port.callers is None:
            if port.tls is not None and port.tls.client_auth == REQUESTED and not principal:
                raise HttpError(401, "NO_CERTIFICATE", "this needs a client's certificate; /healthz, /metrics do not")
            return None
        host = str(self.client_address[0])
        proof = read_proof(self.headers.get("Authorization", ""), principal)
        logs_in = bool(proof.password or proof.token)
        if logs_in and port.tls is None and not is_loopback(host):
            raise HttpError(403, "LOGIN_IN_CLEAR", "a login from another machine needs http.security.protocol=SSL")
        assert route.needs is not None
        try:
            known = None if route.identify is None else route.identify(headers, host)
            if known is not None:
                return known
            needs = route.needs(request)
            with port.logins if logs_in else nullcontext():
                return port.callers.admit(proof, host, needs)
        except MillstreamError as error:
            raise HttpError(503, error.code.name, error.message) from None

    def _principal(self, tls: ServerTls | None) -> str:
        """The principal of the client's certificate; empty without one."""
        der = self.connection.getpeercert(binary_form=True) if isinstance(self.connection, ssl.SSLSocket) else None
        if der is None or tls is None:
            return ""
        try:
            return tls.rules.principal(der)
        except Rejected as error:
            raise HttpError(401, "BAD_CERTIFICATE", error.message) from None

    def _refuse(self, response: Response) -> None:
        """Answer without having read the body; the connection cannot be used again."""
        self.close_connection = True
        self._send(response)

    def _body(self, bytes_max: int) -> bytes:
        """The whole body, or ``HttpError`` before or while it is read."""
        if "Transfer-Encoding" in self.headers:
            raise HttpError(411, "LENGTH_REQUIRED", "a body needs a Content-Length, chunks are not taken")
        given = self.headers.get("Content-Length", "0")
        if not (given.isascii() and given.isdigit()):
            raise HttpError(400, "INVALID_LENGTH", f"Content-Length is {given!r}, expected a number of bytes")
        length = int(given)
        if not length:
            return b""
        if length > bytes_max:
            allowed = f"at most {bytes_max} bytes" if bytes_max else "no body"
            raise HttpError(413, "BODY_TOO_LARGE", f"the body has {length} bytes, {self.path} takes {allowed}")
        if not self._port.bodies.acquire(timeout=TIMEOUT_S):
            raise HttpError(503, "BUSY", "too many bodies are being received; try again")
        try:
            return self._received(length)
        finally:
            self._port.bodies.release()

    def _received(self, length: int) -> bytes:
        parts: list[bytes] = []
        self._arriving.allow(BODY_S)
        while length:
            try:
                part = self.rfile.read1(min(length, _PART_BYTES))
            except TimeoutError:
                part = b""
            if not part:
                raise HttpError(408, "BODY_INCOMPLETE", f"{length} bytes of the body did not arrive")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        chunked = response.parts is not None and response.parts_bytes is None
        if response.status == HTTPStatus.NOT_MODIFIED:
            chunked = False  # it has no body, and the length would be that of another response
        elif not chunked:
            self.send_header("Content-Length", str(len(response.body) + (response.parts_bytes or 0)))
        elif self.request_version == "HTTP/1.0":
            chunked, self.close_connection = False, True
        else:
            self.send_header("Transfer-Encoding", "chunked")
        own = {name.lower() for name, _ in response.headers}
        for name, value in (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")):
            if name.lower() not in own:
                self.send_header(name, value)
        for name, value in response.headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if response.parts is None:
            if self.command != "HEAD":
                self.wfile.write(response.body)
            return
        with closing(response.parts):
            if self.command != "HEAD":
                self._send_parts(response.body, response.parts, chunked=chunked)

    def _send_parts(self, body: bytes, parts: Parts, *, chunked: bool) -> None:
        """Send parts as they are made. Without its last chunk a response that was cut off is recognized as such."""
        try:
            for part in chain([body], parts):
                if part:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 (the status is sent: all that is left is to cut the response off)
            log.warning("HTTP %s %s was cut off: %s", self.command, self.path[:200], error)
            self.close_connection = True
            return
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses before any method of this class sees it."""
        status = HTTPStatus(code)
        self.close_connection = True
        self.command = self.command or "GET"
        self._send(failure(HttpError(code, status.name, message or explain or status.phrase)))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Requests are not news."""
