"""A small HTTP server: ``/metrics``, ``/v1/status``, ``/v1/topics/<name>/segments``, and the schema registry.

It runs on a thread of the supervisor, which holds no data path, so a slow or hostile HTTP client costs the broker
nothing but that thread's time; answers come from callables that the composition root hands in. Only the schema registry
takes other methods than GET, with bodies of up to ``BODY_BYTES_MAX``; it gets its requests as they are.
Requests are bounded by the standard library's limits on the request line and headers; a client that is silent for ten
seconds is dropped, at most ``CONNECTIONS_MAX`` are served at once, and of more than ``OPEN_MAX`` the newest are closed.
"""

import json
import socket
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, Protocol

from millstream.errors import MillstreamError, Rejected
from millstream.telemetry.metrics import Counter, StatsSlab
from millstream.telemetry.table import HTTP_ROUTE

TIMEOUT_S: Final = 10.0
CONNECTIONS_MAX: Final = 32
OPEN_MAX: Final = 256
"""Each has a thread and a descriptor of the process that accepts Kafka's clients, too."""

BODY_BYTES_MAX: Final = 4 << 20
REGISTRY_PATHS: Final = frozenset({"subjects", "schemas", "compatibility", "config", "mode", "contexts"})
"""First parts of the paths that are the schema registry's."""


class Answer(Protocol):
    """A response of the schema registry."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    @property
    def body(self) -> bytes: ...


Registry = Callable[[str, str, dict[str, str], bytes], Answer]
"""Method, target, headers (names in lower case) and body to the answer; does not raise."""


class Routes:
    """What the server can answer; filled by the composition root."""

    def __init__(
        self,
        stats: StatsSlab,
        metrics: Callable[[], bytes],
        status: Callable[[], dict[str, Any]],
        segments: Callable[[str], dict[str, Any]],
        registry: Registry,
    ) -> None:
        self.metrics = metrics
        self.status = status
        self.segments = segments
        self.registry = registry
        self.count: dict[str, Counter] = {
            route: stats.counter("http_requests", route=route) for route in HTTP_ROUTE.values
        }

    def is_registry(self, path: str) -> bool:
        """Whether a request is for the schema registry."""
        return path.lstrip("/").partition("?")[0].partition("/")[0] in REGISTRY_PATHS

    def ask_registry(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Status code, content type and body of the schema registry's answer."""
        self.count["registry"].inc()
        answer = self.registry(method, target, headers, body)
        return answer.status, answer.content_type, answer.body

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status code, content type and body for a GET of ``path``."""
        try:
            parts = [urllib.parse.unquote(part) for part in urllib.parse.urlsplit(path).path.split("/") if part]
        except ValueError:
            parts = []  # no URL, so none that is known
        try:
            if parts == ["metrics"]:
                self.count["metrics"].inc()
                return 200, "text/plain; version=0.0.4; charset=utf-8", self.metrics()
            if parts == ["v1", "status"]:
                self.count["other"].inc()
                return 200, "application/json", _json(self.status())
            if len(parts) == 4 and parts[:2] == ["v1", "topics"] and parts[3] == "segments":
                self.count["manifest"].inc()
                return 200, "application/json", _json(self.segments(parts[2]))
        except Rejected as error:
            return 404, "application/json", _json({"error": error.code.name, "message": error.message})
        except MillstreamError as error:
            return 503, "application/json", _json({"error": error.code.name, "message": error.message})
        self.count["other"].inc()
        known = "/metrics, /v1/status, /v1/topics/<name>/segments, /subjects and what else a schema registry has"
        return 404, "application/json", _json({"error": "NOT_FOUND", "message": f"known paths: {known}"})


class HttpServer:
    """The listening server and its thread.

    Lifecycle: ``start`` after the last fork, ``stop`` before the supervisor ends.
    """

    def __init__(self, host: str, port: int, routes: Routes) -> None:
        """Bind now, so that the port is known; raises OSError when it is taken."""
        slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        room = threading.BoundedSemaphore(OPEN_MAX)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True
            request_queue_size = 16

            def server_bind(self) -> None:
                TCPServer.server_bind(self)
                # The standard library would ask the resolver for a name here, and wait for it. Nobody reads it.
                self.server_name, self.server_port = host, self.server_address[1]

            def process_request(self, request: Any, client_address: Any) -> None:
                if not room.acquire(blocking=False):
                    self.shutdown_request(request)
                    return
                try:
                    super().process_request(request, client_address)
                except BaseException:
                    room.release()
                    raise

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    room.release()

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that went away in the middle is not news either."""

        self._server = Server((host, port), _handler(routes, slots))
        bound_host, bound_port = self._server.server_address[:2]
        self.url = f"http://[{bound_host}]:{bound_port}" if ":" in host else f"http://{bound_host}:{bound_port}"
        self._thread: threading.Thread | None = None

    @property
    def fd(self) -> int:
        return self._server.fileno()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and close the socket."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _handler(routes: Routes, slots: threading.BoundedSemaphore) -> type[BaseHTTPRequestHandler]:
    """What serves a connection; at most as many requests as there are slots are worked on at once."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = TIMEOUT_S
        server_version = "millstream"
        sys_version = ""

        def do_GET(self) -> None:
            if routes.is_registry(self.path):
                self.pass_on()
                return
            with slots:
                status, kind, body = routes.answer(self.path)
            self.respond(status, kind, body)

        def pass_on(self) -> None:
            """Hand the request to the schema registry."""
            length = self.headers.get("Content-Length", "0")
            if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
                self.refuse(411, "a body needs a Content-Length")
            elif not routes.is_registry(self.path):
                self.refuse(404, "only the schema registry takes this method")
            elif int(length) > BODY_BYTES_MAX:
                self.refuse(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
            else:
                sent = self.rfile.read(int(length))
                named = {name.lower(): value for name, value in self.headers.items()}
                with slots:
                    status, kind, body = routes.ask_registry(self.command, self.path, named, sent)
                self.respond(status, kind, body)

        do_POST = do_PUT = do_DELETE = pass_on  # noqa: N815 (the standard library's names)

        def refuse(self, status: int, why: str) -> None:
            """Answer without having read the body; the connection cannot be used again."""
            self.close_connection = True
            self.respond(status, "application/json", _json({"error_code": status, "message": why}))

        def respond(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
            """Scrapes are not news."""

    return Handler


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
