"""Requests, answers and routes of the HTTP port, apart from sockets.

::

    router.add("GET", "/v1/topics/{topic}/segments", segments, needs=Right(READ, TOPIC, "topic"))
    router.add("POST", "/v1/cluster", change, needs=Right(ALTER, CLUSTER), body_bytes_max=1 << 20)
    router.mount("subjects", registry, needs=of_subjects, body_bytes_max=1 << 20, count=count, failure=failure)

Each route names the right that its caller needs where access is controlled (``admin.callers``), unless it is ``open``.
A handler takes a ``Request`` and returns a ``Response``. It runs on a thread of the supervisor and may block for
seconds. Each part of a path is decoded on its own, so ``%2F`` in a name stays part of that name. HEAD is answered
wherever GET is. What a handler raises becomes JSON: ``{"error": "<name>", "message": "<sentence>"}``.

==========================================  ====
``HttpError``                               its status
``Rejected``                                400
any other ``MillstreamError``               503
any other exception                         500, and one line in the operator's log
no such path                                404
a path that does not know the method        405, with ``Allow``
a strange Host, a foreign Origin            403 (``admin.access``)
a change without JSON                       415
==========================================  ====
"""

import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millstream.config.listeners import is_loopback
from millstream.core.access.entry import CLUSTER_NAME
from millstream.errors import MillstreamError, Rejected
from millstream.model.access import Operation, ResourceType
from millstream.model.error_code import ErrorCode
from millstream.telemetry.log import RateLimit, log

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"

_FAILURES_A_MINUTE: Final = 6


class HttpError(Exception):
    """An answer other than success. ``name`` is for programs, ``message`` for people."""

    def __init__(self, status: int, name: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        self.message = message
        self.headers = headers
        self.principal = ""
        """Who is refused, for the audit; empty if that is not known."""


_MISSING: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
RESOURCE_WORDS: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.CLUSTER: "cluster",
    ResourceType.GROUP: "group",
    ResourceType.TRANSACTIONAL_ID: "transactional id",
}


class Need(NamedTuple):
    """One operation on one resource."""

    operation: Operation
    resource: ResourceType
    name: str

    @property
    def error(self) -> ErrorCode:
        """What is said if it is missing."""
        return _MISSING[self.resource]

    def __str__(self) -> str:
        word = RESOURCE_WORDS[self.resource]
        where = "the cluster" if self.resource is ResourceType.CLUSTER else f"{word} {self.name}"
        return f"{self.operation.name} on {where}"


class Caller(Protocol):
    """A caller that was admitted. Used by the thread of one request."""

    principal: str

    def allowed(self, needs: Sequence[Need]) -> list[bool]:
        """For each right whether it has it. Raises MillstreamError if the broker cannot say."""
        ...


class Right(NamedTuple):
    """The right that a route asks for: on the resource that a part of its path names, or on the cluster."""

    operation: Operation
    resource: ResourceType = ResourceType.CLUSTER
    variable: str = ""

    def of(self, request: "Request") -> Sequence[Need]:
        """The right for one request."""
        name = request.variables[self.variable] if self.variable else CLUSTER_NAME
        return (Need(self.operation, self.resource, name),)


class Request(msgspec.Struct, frozen=True):
    """One request, completely received. ``target`` is path and query as they were sent; ``variables`` are the decoded
    parts that the route names in braces; ``headers`` have lower-case names; of a query parameter that is given twice
    ``query`` has the last value. ``caller`` is None where access is not controlled.
    """

    method: str
    path: str
    target: str = ""
    variables: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""
    caller: Caller | None = None
    client_host: str = ""
    over_tls: bool = False

    @property
    def in_clear(self) -> bool:
        """Whether others on a network can read it: a secret in it is refused."""
        return not self.over_tls and not is_loopback(self.client_host)

    def json(self) -> Any:
        """The body as JSON; raises ``HttpError`` 400 if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            raise HttpError(400, "INVALID_JSON", f"the body is not JSON: {error}") from None


class Parts(Protocol):
    """The rest of a long response. It is read once and closed, also if it was not read."""

    def __iter__(self) -> Iterator[bytes]:
        """The parts, as they are made. An exception cuts the response off, so that its reader notices."""
        ...

    def close(self) -> None:
        """Make no more of them."""
        ...


class Response(msgspec.Struct, frozen=True):
    """What is sent back. ``headers`` come on top of Content-Type and Content-Length. ``parts`` follow ``body``:
    ``parts_bytes`` in total, None if that is not known.
    """

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    parts: Parts | None = None
    parts_bytes: int | None = None


Handler = Callable[[Request], Response]
Identify = Callable[[Mapping[str, str], str], Caller | None]
"""Finds a caller by the headers of a request and the client's address; None if they name none that is known."""


def failure(error: HttpError) -> Response:
    """An error as JSON."""
    return Response(dump({"error": error.name, "message": error.message}), error.status, JSON, error.headers)


class Route(msgspec.Struct, frozen=True):
    """A handler; the largest body that it takes, in bytes, 0 for none; and the form of its errors."""

    handler: Handler
    body_bytes_max: int
    count: Callable[[], None]
    needs: Callable[[Request], Sequence[Need]] | None
    """The rights of the caller; None for a route that is open."""
    failure: Callable[[HttpError], Response] = failure

    json_only: bool = False
    """The body must be declared as JSON."""

    identify: Identify | None = None
    """Another proof of who asks, before those of ``admin.callers``: a cookie."""

    @property
    def open(self) -> bool:
        """Answered to everybody, by any name, and to pages of any origin (``admin.access``)."""
        return self.needs is None


class Router:
    """Routes by path and method.

    Lifecycle: filled before the server starts, only read afterwards, by many threads.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        """``count`` is called for each request that no route of its own counts."""
        self._count = count
        self._patterns: dict[tuple[str, ...], dict[str, Route]] = {}
        self._mounted: dict[str, Route] = {}
        self._failures = RateLimit(_FAILURES_A_MINUTE)

    def add(
        self,
        method: str,
        pattern: str,
        handler: Handler,
        *,
        needs: Right | None,
        body_bytes_max: int = 0,
        count: Callable[[], None] | None = None,
    ) -> None:
        """Answer ``method`` of all paths like ``pattern`` with ``handler``; a part in braces matches any one part.

        ``needs`` is the right of the caller; None opens the route to everybody. A method other than GET changes
        something. One that has a body takes JSON only, which no web page sends to another site without a question
        first, as it does not DELETE there.
        """
        methods = self._patterns.setdefault(_split(pattern), {})
        assert method not in methods, f"{method} {pattern} is added twice"
        assert method == "GET" or needs is not None, f"{method} {pattern} is a change, which is never open"
        json_only = method not in ("GET", "DELETE")
        rights = None if needs is None else needs.of
        methods[method] = Route(handler, body_bytes_max, count or self._count, rights, json_only=json_only)

    def mount(
        self,
        first: str,
        handler: Handler,
        *,
        needs: Callable[[Request], Sequence[Need]],
        body_bytes_max: int,
        count: Callable[[], None],
        failure: Callable[[HttpError], Response],
        identify: Identify | None = None,
    ) -> None:
        """Hand every method of all paths that begin with the part ``first`` to ``handler``, which reads ``target``.

        ``failure`` gives the errors of this port the form of that handler's own. HEAD arrives as GET.
        """
        assert first not in self._mounted, f"{first} is mounted twice"
        self._mounted[first] = Route(handler, body_bytes_max, count, needs, failure, identify=identify)

    def find(self, method: str, target: str) -> tuple[Route, Request]:
        """The route of a request line, and the request without headers and body.

        Raises:
            HttpError: 404 or 405.
        """
        named = "GET" if method == "HEAD" else method
        path = target.partition("?")[0]
        mounted = self._mounted.get(path.lstrip("/").partition("/")[0])
        if mounted is not None:
            return mounted, Request(named, path, target)
        try:
            url = urllib.parse.urlsplit(target)
            parts = tuple(urllib.parse.unquote(part, errors="strict") for part in url.path.split("/") if part)
        except ValueError:
            raise HttpError(400, "INVALID_URL", "the request's target is no URL") from None
        allowed: set[str] = set()
        for pattern, methods in self._patterns.items():
            variables = _match(pattern, parts)
            if variables is None:
                continue
            if named in methods:
                query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
                return methods[named], Request(method, url.path, target, variables, query)
            allowed |= methods.keys()
        self._count()
        if allowed:
            known = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
            message = f"{url.path} knows {known}, not {method}"
            raise HttpError(405, "METHOD_NOT_ALLOWED", message, (("Allow", known),))
        raise HttpError(404, "NOT_FOUND", f"there is no {url.path}; {', '.join(self.paths())} exist")

    def paths(self) -> list[str]:
        """The patterns that have a GET."""
        return ["/" + "/".join(pattern) for pattern, methods in self._patterns.items() if "GET" in methods]

    def answer(self, route: Route, request: Request) -> Response:
        """Run the handler; whatever it raises becomes an answer."""
        route.count()
        try:
            return route.handler(request)
        except HttpError as error:
            found = error
        except Rejected as error:
            found = HttpError(400, error.code.name, error.message)
        except MillstreamError as error:
            found = HttpError(503, error.code.name, error.message)
        except Exception as error:  # noqa: BLE001 - a fault in one handler must not end the port
            if self._failures.allows():
                log.exception("HTTP %s %s failed%s", request.method, request.path, self._failures.left_out())
            found = HttpError(500, "INTERNAL_ERROR", f"a fault in millstream: {type(error).__name__}")
        return route.failure(found)


def dump(value: Any) -> bytes:
    """A document, with its line end."""
    return json.dumps(value).encode() + b"\n"


def _split(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _match(pattern: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    """The variables of the pattern; None if the path is another one."""
    if len(pattern) != len(parts):
        return None
    variables: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            variables[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return variables
