"""The console inside a broker: the same application, called with requests that the broker has received.

::

    request ──► respond ──► WSGI environment ──► pages ──► visit.connect ──► the broker, as the caller
                                                       └─► visit.get     ──► its HTTP API, as the caller

The broker has checked ``Host`` and ``Origin``, and says who the caller is (``console.visits``).
"""

import io
import sys
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from flask import Flask

from millstream.client.security import PLAIN, Security
from millstream.config.urls import split_authority
from millstream.console.application import create
from millstream.console.settings import Settings
from millstream.console.visits import PREFIX, VISIT, Visit

_PIECE_BYTES: Final = 16 << 10
_FIRST_BYTES: Final = 512
"""The head of a page leaves before its rows are rendered."""
_BODYLESS: Final = (204, 304)
_EVENTS: Final = "text/event-stream"


class Answered(NamedTuple):
    """A response. ``length`` is None if the body is made as it is read; then it comes in pieces, to be closed."""

    status: int
    content_type: str
    headers: list[tuple[str, str]]
    body: Iterable[bytes]
    length: int | None


def host(
    shown: str,
    connects_to: str,
    secret: bytes,
    *,
    read_only: bool,
    tokens: bool = False,
    security: Security = PLAIN,
    issuer: str = "",
    redirect_uri: str = "",
    masks: tuple[str, ...] = (),
) -> Flask:
    """The application of a broker that clients reach at ``shown``."""
    return create(
        Settings(
            shown,
            security,
            read_only=read_only,
            hosted=True,
            connects_to=connects_to,
            secret=secret,
            tokens=tokens,
            issuer=issuer,
            redirect_uri=redirect_uri,
            masks=masks,
        )
    )


def respond(
    application: Flask,
    visit: Visit,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secure: bool,
) -> Answered:
    """The response to a request under ``PREFIX``; header names are in lower case."""
    path, _, query = target.partition("?")
    path = f"/{path.lstrip('/')}"
    if path == PREFIX:
        moved = [("Location", f"{PREFIX}/{'?' + query if query else ''}")]
        return Answered(308, "text/plain", moved, (b"",), 0)
    said: list[Any] = []

    def start_response(status: str, sent: list[tuple[str, str]], exc_info: Any = None) -> Any:
        assert exc_info is None, "the application answers its own errors"
        said[:] = [status, sent]
        return None

    environ = _environ(visit, method, path, query, headers, body, secure=secure)
    iterable: Iterable[bytes] = application.wsgi_app(environ, start_response)
    status, sent = int(said[0].split()[0]), said[1]
    kind = next((value for name, value in sent if name.lower() == "content-type"), "")
    length = next((int(value) for name, value in sent if name.lower() == "content-length"), None)
    if status in _BODYLESS:
        length = 0
    others = [(name, value) for name, value in sent if name.lower() not in ("content-type", "content-length")]
    if length is None and kind.partition(";")[0] != _EVENTS:
        iterable = _Pieces(iterable)
    return Answered(status, kind, others, iterable, length)


def close(body: Iterable[bytes]) -> None:
    """End a body, read or not."""
    ended = getattr(body, "close", None)
    if ended is not None:
        ended()


class _Pieces:
    """A body in pieces of some kilobytes: templates and exports make it in very small ones."""

    def __init__(self, body: Iterable[bytes]) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        held, size, enough = list[bytes](), 0, _FIRST_BYTES
        for piece in self._body:
            held.append(piece)
            size += len(piece)
            if size >= enough:
                yield b"".join(held)
                held, size, enough = [], 0, _PIECE_BYTES
        if held:
            yield b"".join(held)

    def close(self) -> None:
        close(self._body)


def _environ(
    visit: Visit, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, *, secure: bool
) -> dict[str, Any]:
    scheme = "https" if secure else "http"
    host, port = split_authority(headers.get("host", "localhost"))
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": PREFIX,
        "PATH_INFO": urllib.parse.unquote_to_bytes(path.removeprefix(PREFIX)).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": host or "localhost",
        "SERVER_PORT": port or ("443" if secure else "80"),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": visit.host,
        "CONTENT_TYPE": headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        VISIT: visit,
    }
    for name, value in headers.items():
        if name not in ("content-type", "content-length"):
            environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
    return environ
