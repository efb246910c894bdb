"""The console over HTTP: who its visitors are, their way to the side process, and what its pages may ask of the broker.

::

    browser ──► HTTP port: Host, Origin, cookie ──► side process: a page
                                                        │ ask, on the thread of the request
                     the HTTP API, with the caller's rights ◄──┤
                     a connection as the caller, to a shard ◄──┘

The side process never says who a caller is: what it asks for, it asks for on behalf of a request that is open here, and
gets it with the rights of that request's caller. In a cluster with TLS between its brokers it dials their peer
addresses itself, with the certificate of brokers that it has for the registry anyway, and says there for which caller
it acts: the one that this broker has named with the request (``app.own_way``).

Logins are kept here, too. The browser has a random cookie (HttpOnly, SameSite=Strict, Secure over TLS, path
``/console``). A login ends by ``console.kept``, on logging out, with its token, with the broker, and as soon as the
user's credentials are changed or removed. A password or a token that would come in clear from another machine is
refused. A login that fails is answered after ``connection.failed.authentication.delay.ms``, at most ``TRIES_MAX`` are
tried at once, and the audit has each.

People may sign in at an OpenID provider instead (``console.sign_in``). The side process keeps what belongs to the
browser; the code is exchanged here, where the console's secret at the provider is, and the guard tests the ID token. A
provider that does not answer costs the threads of those who sign in, ten seconds each.

A page has to be read within ``READ_S``; live views and exports have limits of their own.

``OPEN_MAX`` requests are open at once; a further one is answered with 503. A page whose side process dies is answered
with 502, and a stream ends with the reason; the next request starts another process.
"""

import importlib.util
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.admin.callers import HEADER_CHARACTERS_MAX, Proof, check_needs
from millstream.admin.page import POLICY, notice
from millstream.admin.routing import HTML, HttpError, Need, Request, Response, Route, Router
from millstream.app.own_way import Connect
from millstream.app.side_frames import Answer, Ask, SideRequest
from millstream.app.side_process import Exchange, SideFailed, SideProcess
from millstream.console.cookies import LOGIN, name_of_cookie
from millstream.console.kept import LOGIN_S, KeptLogins
from millstream.console.kinds import GROUP, TOPIC, TRANSACTIONAL_ID
from millstream.core.access.entry import CLUSTER_NAME
from millstream.errors import MillstreamError, Rejected, how_to_install
from millstream.model.access import Operation, ResourceType
from millstream.model.principal import ANONYMOUS
from millstream.secure.tokens.sign_in import Discovery, Provider, address, exchange, sign_out_address
from millstream.telemetry.metrics import StatsSlab

if TYPE_CHECKING:
    from millstream.app.http_callers import BrokerCallers, KnownCaller, LoggedIn

ROOM: Final = "console"
BODY_BYTES_MAX: Final = 2 << 20
DOCUMENT_BYTES_MAX: Final = 8 << 20
OPEN_MAX: Final = 20
"""Eight live views and exports, and pages beside them."""
TRIES_MAX: Final = 4
READ_S: Final = 60.0
_PACKAGES: Final = ("flask", "jinja2")
_READING: Final = re.compile(r"/console/topics/([^/]+)/(?:messages|live|export)/?")
_SIGN_IN: Final = ("sign_in_address", "sign_in", "sign_out_address")
_EVENTS: Final = "text/event-stream"
_PAGE: Final = "text/html"
_LISTED: Final = {
    TOPIC: ResourceType.TOPIC,
    GROUP: ResourceType.GROUP,
    TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
_SEES_GROUPS: Final = Need(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
"""Gives the list of all groups, too."""


class _Login(NamedTuple):
    principal: str
    mark: str
    """Mark of the credentials at the login (``http_callers``)."""


class ConsoleRequests:
    """The console's routes and logins. Shared by the HTTP threads."""

    def __init__(self, side: SideProcess, connect: Connect, problem: str, provider: Provider | None = None) -> None:
        """``problem`` is why there is no console here; empty if there is one."""
        self._provider = None if provider is None else Discovery(provider)
        self._side = side
        self._connect = connect
        self._problem = problem or _missing()
        self._open = threading.BoundedSemaphore(OPEN_MAX)
        self._tries = threading.BoundedSemaphore(TRIES_MAX)
        self._logins = KeptLogins[_Login](lambda _: None)
        self._callers: BrokerCallers | None = None
        self.audit: Callable[[str, str, str], None] | None = None
        """Records that records were read: principal, host, topic. None where nothing is recorded."""

    @property
    def works(self) -> bool:
        """Whether there is a console."""
        return not self._problem

    def mount(self, router: Router, stats: StatsSlab, callers: "BrokerCallers | None") -> None:
        """Answer under ``/console``. ``callers`` is None where access is not controlled."""
        self._callers = callers
        self._router = router
        router.mount(
            ROOM,
            self.answer,
            needs=lambda _: (),
            body_bytes_max=BODY_BYTES_MAX,
            count=stats.counter("http_requests", route="console").inc,
            failure=lambda error: _page(error.status, "The console refuses that", error.message, error.headers),
            identify=self._identify,
        )

    def answer(self, request: Request) -> Response:
        """The response to one request."""
        if self._problem:
            return _page(501, "There is no console here", self._problem)
        if not self._open.acquire(blocking=False):
            said = f"{OPEN_MAX} pages and streams are open. Try again in a moment."
            return _page(503, "The console is busy", said, (("Retry-After", "1"),))
        opened = _Opened(self._open)
        try:
            return self._answered(request, opened)
        finally:
            if opened.exchange is None:
                opened.close()

    def _answered(self, request: Request, opened: "_Opened") -> Response:
        principal = "" if request.caller is None or request.caller.principal == ANONYMOUS else request.caller.principal
        sent = SideRequest(
            ROOM,
            request.method,
            request.target,
            _without_cookie(request.headers),
            request.body,
            principal,
            self._callers is not None,
            request.client_host,
            request.over_tls,
        )
        exchange: Exchange | None = None
        try:
            exchange = self._side.begin(sent, lambda ask: self._asked(request, ask))
            head = exchange.head()
        except SideFailed as error:
            if exchange is not None:
                exchange.close()
            doubt = "" if request.method == "GET" else " It is not known if the change was made."
            said = f"The process that makes the pages failed: {error}. The broker's data are not affected.{doubt}"
            return _page(502, "The console failed", said)
        reading = _READING.fullmatch(request.path)
        if reading and head.status == 200 and self.audit is not None:
            who = ANONYMOUS if request.caller is None else request.caller.principal
            self.audit(who, request.client_host, urllib.parse.unquote(reading[1]))
        headers = tuple((name, value) for name, value in head.headers)
        if not head.more:
            exchange.close()
            return Response(head.body, head.status, head.content_type, headers)
        opened.exchange, opened.events = exchange, head.content_type.startswith(_EVENTS)
        opened.is_page = head.content_type.startswith(_PAGE)
        length = None if head.length < 0 else head.length
        return Response(head.body, head.status, head.content_type, headers, opened, length)

    # What pages ask

    def _asked(self, request: Request, ask: Ask) -> tuple[Answer, socket.socket | None]:
        try:
            if ask.what == "get":
                return self._got(request, *ask.arguments), None
            if ask.what == "sees_all":
                return Answer(200, b"yes" if self._sees_all(request, *ask.arguments) else b"no"), None
            if ask.what == "connect":
                return Answer(200, b"", 1), self._connect(
                    self._principal(request), request.client_host, request.over_tls
                )
            if ask.what == "log_in":
                return self._log_in(request, *ask.arguments), None
            if ask.what == "log_out":
                self._logins.remove(_cookie(request.headers))
                return Answer(200, b""), None
            if ask.what in _SIGN_IN and self._provider is not None:
                return getattr(self, f"_{ask.what}")(request, self._provider, *ask.arguments), None
            return Answer(400, f"there is no question {ask.what}".encode()), None
        except HttpError as error:
            return Answer(error.status, error.message.encode()), None
        except Rejected as error:
            return Answer(403, error.message.encode()), None
        except MillstreamError as error:
            return Answer(503, error.message.encode()), None

    def _principal(self, request: Request) -> str:
        """Whom a connection acts as."""
        if self._callers is None:
            return ANONYMOUS
        if request.caller is None or request.caller.principal == ANONYMOUS:
            raise HttpError(401, "UNAUTHORIZED", "a login is needed")
        return request.caller.principal

    def _got(self, request: Request, path: str) -> Answer:
        """A document of the HTTP API, with the caller's rights."""
        route, inner = self._router.find("GET", path)
        if route.handler == self.answer:
            raise HttpError(400, "INVALID_REQUEST", "a page of the console is not a document of it")
        inner = Request(inner.method, inner.path, inner.target, inner.variables, inner.query, caller=request.caller)
        self._check(route, inner)
        response = self._router.answer(route, inner)
        if len(response.body) > DOCUMENT_BYTES_MAX:
            return Answer(500, b"the document is too large to be shown")
        if response.status >= 400:
            return Answer(response.status, _reason(response.body).encode())
        return Answer(200, response.body)

    def _sees_all(self, request: Request, kind: str) -> bool:
        """Whether the caller may describe everything of a kind."""
        if self._callers is None:
            return True
        self._principal(request)
        assert request.caller is not None
        every = Need(Operation.DESCRIBE, _LISTED[kind], "*")
        return any(request.caller.allowed([every, _SEES_GROUPS] if kind == GROUP else [every]))

    def _check(self, route: Route, request: Request) -> None:
        """Raises HttpError if a right of the route is missing."""
        if self._callers is None or route.needs is None:
            return
        principal, needs = self._principal(request), route.needs(request)
        assert request.caller is not None
        check_needs(principal, needs, request.caller.allowed(needs))

    # Logins

    def _log_in(self, request: Request, user: str, password: str, token: str) -> Answer:
        if self._callers is None:
            return Answer(400, b"this broker asks for no logins")
        if request.in_clear:
            return Answer(403, b"a login from another machine needs http.security.protocol=SSL")
        if not token and not (user and password):
            return Answer(403, b"name or password is missing")
        if len(token) > HEADER_CHARACTERS_MAX:
            return Answer(403, b"the token is too long")
        with self._tries:
            found = self._callers.log_in(Proof(token=token) if token else Proof(user, password), request.client_host)
        return self._kept(request, found, found.lifetime_ms / 1000 if found and found.lifetime_ms else LOGIN_S)

    def _kept(self, request: Request, found: "LoggedIn | None", holds_s: float) -> Answer:
        if found is None:
            return Answer(403, b"the login failed")
        self._logins.remove(_cookie(request.headers))
        return Answer(200, self._logins.add(_Login(found.principal, found.mark), holds_s).encode())

    def _sign_in_address(
        self, _: Request, provider: Discovery, redirect_uri: str, state: str, nonce: str, challenge: str
    ) -> Answer:
        where = address(provider.endpoints(), provider.provider, redirect_uri, state, nonce, challenge)
        return Answer(200, where.encode())

    def _sign_out_address(self, _: Request, provider: Discovery, back: str) -> Answer:
        return Answer(200, sign_out_address(provider.endpoints(), provider.provider, back).encode())

    def _sign_in(
        self, request: Request, provider: Discovery, code: str, verifier: str, redirect_uri: str, nonce: str
    ) -> Answer:
        if self._callers is None:
            return Answer(400, b"this broker asks for no logins")
        if request.in_clear:
            return Answer(403, b"a login from another machine needs http.security.protocol=SSL")
        if not nonce:
            return Answer(400, b"a sign-in has a nonce")
        with self._tries:
            tokens = exchange(provider.endpoints(), provider.provider, code, verifier, redirect_uri)
            found = self._callers.log_in(Proof(token=tokens.id_token, nonce=nonce), request.client_host)
        return self._kept(request, found, provider.provider.session_s)

    def _identify(self, headers: Mapping[str, str], host: str) -> "KnownCaller | None":
        key = _cookie(headers)
        login = self._logins.find(key) if key else None
        if login is None or self._callers is None:
            return None
        known = self._callers.remember(login.principal, login.mark, host)
        if known is None:
            self._logins.remove(key)
        return known


class _Opened:
    """One open request, as the rest of its response. ``exchange`` is set if there is a rest."""

    def __init__(self, slots: threading.BoundedSemaphore, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots: threading.BoundedSemaphore | None = slots
        self._clock = clock
        self.exchange: Exchange | None = None
        self.events = False
        self.is_page = False

    def __iter__(self) -> Iterator[bytes]:
        """The parts. A stream of events says itself why it ends."""
        assert self.exchange is not None
        until = self._clock() + READ_S
        try:
            for part in self.exchange:
                yield part
                if self.is_page and self._clock() > until:
                    raise SideFailed(f"it was not read within {READ_S:.0f} s")
        except SideFailed as error:
            if not self.events:
                raise
            yield f"event: failed\ndata: The console's process failed: {error}.\n\n".encode()

    def close(self) -> None:
        """Free the place, once."""
        if self.exchange is not None:
            self.exchange.close()
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()


def _missing() -> str:
    """What to do if the packages of the console are missing."""
    if all(importlib.util.find_spec(name) is not None for name in _PACKAGES):
        return ""
    return f"The console needs more packages: {how_to_install('console')}, then start the broker again."


def _cookie(headers: Mapping[str, str]) -> str:
    """The value of the login's cookie; empty without one."""
    wanted = name_of_cookie(LOGIN, headers.get("host", ""))
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""


def _without_cookie(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that the side process gets: no proof of who the caller is."""
    left = {name: value for name, value in headers.items() if name not in ("authorization", "cookie")}
    cookies = [part.strip() for part in headers.get("cookie", "").split(";") if part.strip()]
    others = [cookie for cookie in cookies if not cookie.startswith(LOGIN)]
    return {**left, "cookie": "; ".join(others)} if others else left


def _reason(body: bytes) -> str:
    """The message of an error."""
    try:
        said: Any = json.loads(body)
        return str(said["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode(errors="replace")


def _page(status: int, title: str, said: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(notice(title, said), status, HTML, (("Content-Security-Policy", POLICY), *headers))
