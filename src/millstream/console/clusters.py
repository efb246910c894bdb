"""Several clusters in one console: an application for each, under ``/NAME``.

::

    browser ──► waitress ──► /prod/topics ──► the application of prod ──► its own connections
                        └──► /dev/topics  ──► the application of dev

The applications share nothing: connections, logins, cookies, histories and limits of streams are a cluster's own. At
most ``OPEN_MAX`` requests of a cluster are open at once, and the server has that many threads for each, so a cluster
that does not answer slows no page of another; its own further requests get 503. ``/`` is the first cluster. A name that
is not known is answered with 404 and the names that are.
"""

import html
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from millstream.console.application import create
from millstream.console.guard import HEADERS
from millstream.console.message_pages import STREAMS_MAX
from millstream.console.settings import Settings

OPEN_MAX: Final = STREAMS_MAX + 6

Start = Callable[..., Any]


class Clusters:
    """The WSGI application of several clusters, by the names of their settings."""

    def __init__(self, every: Sequence[Settings]) -> None:
        names = tuple(settings.name for settings in every)
        self._first = names[0]
        self._applications = {
            settings.name: _One(msgspec.structs.replace(settings, names=names if names[1:] else ()))
            for settings in every
        }

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        name, slash, _ = path.lstrip("/").partition("/")
        one = self._applications.get(name)
        if not name or (one is not None and not slash):
            return _said(start_response, "302 Found", "", [("Location", f"/{name or self._first}/")])
        if one is None:
            known = " ".join(f'<a href="/{each}/">{each}</a>' for each in self._applications)
            return _said(
                start_response, "404 Not Found", f"No cluster has the name {html.escape(name)}. There are: {known}"
            )
        return one.answer(
            {**environ, "SCRIPT_NAME": f"/{name}", "PATH_INFO": path.removeprefix(f"/{name}")}, start_response
        )

    def close(self) -> None:
        """Close every connection."""
        for one in self._applications.values():
            one.close()


class _One:
    """One cluster, and how many of its requests are open."""

    def __init__(self, settings: Settings) -> None:
        self._application = create(settings)
        self._name = settings.name
        self._open = threading.BoundedSemaphore(OPEN_MAX)

    def answer(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        if not self._open.acquire(blocking=False):
            busy = f"{OPEN_MAX} requests about {self._name} are open. Try again in a moment."
            return _said(start_response, "503 Service Unavailable", busy, [("Retry-After", "1")])
        try:
            return _Body(self._application(environ, start_response), self._open.release)
        except BaseException:
            self._open.release()
            raise

    def close(self) -> None:
        self._application.extensions["console"].close()


class _Body:
    """A body; its request is open until it is closed, which a WSGI server does once."""

    def __init__(self, body: Iterable[bytes], release: Callable[[], None]) -> None:
        self._body = body
        self._release = release

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            end = getattr(self._body, "close", None)
            if end is not None:
                end()
        finally:
            self._release()


def _said(start: Start, status: str, text: str, headers: Sequence[tuple[str, str]] = ()) -> Iterable[bytes]:
    body = f"<!doctype html><title>Millstream</title><p>{text}</p>".encode() if text else b""
    kind = ("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))
    start(status, [*kind, *HEADERS.items(), *headers])
    return [body]
