"""Who a request acts as.

In a broker (``Settings.hosted``) the broker says who the caller is, and keeps the logins; this file only has the form.
Else, without ``Settings.login`` every request acts as the console itself. With it, a visitor logs in with a name and a
password of the cluster: the console tries them on a connection, keeps them in memory beside a random session id, and
gives the browser nothing but that id, in a signed cookie (HttpOnly, SameSite=Strict, Secure under TLS). With
OAUTHBEARER a visitor logs in with a token instead. With a provider a visitor signs in there, and the console acts with
the access token of that sign-in if it is a JSON web token, else with the ID token. A login ends by ``console.kept``, on
logging out, when its password no longer opens a connection, or with the process. A failed login waits
``FAILED_PAUSE_S``, and at most ``TRIES_MAX`` run at once.
"""

import re
import secrets
import threading
import time
import urllib.parse
from typing import Final, NamedTuple, cast

from flask import (
    Blueprint,
    Response,
    current_app,
    g,
    make_response,
    redirect,
    render_template,
    request,
    session,
    url_for,
)

from millstream.client.schema_registry import registry_access
from millstream.client.security import Login, Security
from millstream.console import sign_in
from millstream.console.access import Access
from millstream.console.cookies import LOGIN, name_of_cookie
from millstream.console.guard import speaks_tls
from millstream.console.kept import LOGIN_S, KeptLogins
from millstream.console.registry import Registry
from millstream.console.settings import Settings
from millstream.console.visits import PREFIX, Callers, Visit, visit
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.secure.tokens.rules import TokenRules
from millstream.secure.tokens.sign_in import (
    Discovery,
    address,
    challenge_of,
    exchange,
    rules_of,
    sign_out_address,
)

FAILED_PAUSE_S: Final = 0.5
TRIES_MAX: Final = 2
SIGN_IN_PAGES: Final = frozenset({"session.start", "session.callback", "session.end_elsewhere"})
"""A browser that comes back from the provider sends no session: these pages must not start another one."""
_BUSY: Final = "Others log in now; try again."
_PATH: Final = re.compile(r"/(?!/)[!-\[\]-~]*")
"""An address on this host: browsers take tabs and line ends out of an address, and read a backslash as a slash."""
_REFERER: Final = re.compile(r"[^:/?#]*://[^/?#]*([^#]*)")
_OPEN: Final = frozenset({"static", "session.login", "session.theme"}) | SIGN_IN_PAGES


class _LoggedIn(NamedTuple):
    access: Access
    registry: Registry | None


class Sessions:
    """The identities of one console. Safe for threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._own: _LoggedIn | None = None
        self._callers = Callers(settings.connects_to, settings.security)
        if settings.login is None and not settings.hosted:
            self._own = self._made(settings.security)
        self._logins = KeptLogins[_LoggedIn](lambda ended: ended.access.close())
        self.tries = threading.BoundedSemaphore(TRIES_MAX)
        self.attempts = sign_in.Attempts(settings.secret or secrets.token_bytes(32))
        self._provider = None if settings.provider is None else Discovery(settings.provider)

    def identify(self) -> Response | None:
        """Give the request its identity; a response if it has to log in first."""
        if self.settings.hosted:
            caller = visit()
            if caller.principal or not caller.login:
                g.user = caller.principal
                g.access, g.registry = self._callers.of(caller)
                return None
        else:
            found = self._own or self._logins.find(str(session.get("login")))
            if found is not None:
                g.user = str(session.get("user", ""))
                g.access, g.registry = found.access, found.registry
                return None
        if request.endpoint in _OPEN:
            return None
        if sign_in.from_elsewhere():
            return sign_in.onward(_own_address(_asked_address()))
        form = url_for("session.login")
        query = "" if request.path == "/" else f"?{urllib.parse.urlencode({'next': _asked_address()})}"
        return cast("Response", redirect(form + query))

    def log_in(self, name: str, password: str, token: str) -> None:
        """Try a login, and keep it for this browser. The name of a token's user is the cluster's to know.

        Raises:
            MillstreamError: the cluster refuses it, or does not answer.
        """
        self._log_in(name, password, token, LOGIN_S)

    def _log_in(self, name: str, password: str, token: str, holds_s: float) -> None:
        base = self.settings.security
        protocol = "SASL_SSL" if base.speaks_tls else "SASL_PLAINTEXT"
        login = Login(self.settings.login or "", "" if token else name, password, token)
        made = self._made(Security(protocol, base.tls, base.check_name, base.verify, login))
        with made.access.cluster() as cluster:
            cluster.any_connection()
        self.log_out()
        session["login"], session["user"] = self._logins.add(made, holds_s), name or "a token's user"

    def signs_in(self) -> "Sessions | Visit":
        """Who speaks with the OpenID provider: the broker, or this console itself."""
        return visit() if self.settings.hosted else self

    def callback(self) -> str:
        """Where the provider sends browsers back to."""
        return self.settings.redirect_uri or url_for("session.callback", _external=True)

    def sign_in_address(self, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
        """As ``visits.Visit``."""
        provider = self._needed()
        return address(provider.endpoints(), provider.provider, redirect_uri, state, nonce, challenge)

    def sign_out_address(self, back: str) -> str:
        """As ``visits.Visit``."""
        provider = self._needed()
        return sign_out_address(provider.endpoints(), provider.provider, back)

    def sign_in(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> str:
        """Log in whom the provider's code is about; the answer is empty, since the login is in the session.

        Raises:
            MillstreamError: the provider or the cluster refuses it, or does not answer.
        """
        from millstream.secure.tokens.document import read_document
        from millstream.secure.tokens.keys import BadKeys, read_keys
        from millstream.secure.tokens.verify import UnknownKey, verify_sign_in

        discovery = self._needed()
        provider = discovery.provider
        tokens = exchange(discovery.endpoints(), provider, code, verifier, redirect_uri)
        rules = rules_of(provider, TokenRules(""))
        try:
            keys = read_keys(read_document(rules))
            verdict = verify_sign_in(tokens.id_token, nonce, keys, rules, time.time())
        except UnknownKey:
            raise Rejected("the ID token's key is not one of the provider's") from None
        except BadKeys as error:
            raise Unavailable(f"the keys of the OpenID provider cannot be used: {error}") from None
        if not verdict.user:
            raise Rejected(verdict.reason)
        is_jwt = tokens.access_token.count(".") == 2
        self._log_in(verdict.user, "", tokens.access_token if is_jwt else tokens.id_token, provider.session_s)
        return ""

    def _needed(self) -> Discovery:
        if self._provider is None:
            raise Rejected("this console knows no OpenID provider")
        return self._provider

    def log_out(self) -> None:
        """Forget the login of this session."""
        self._logins.remove(str(session.get("login")))
        session.clear()

    def close(self) -> None:
        """Close every connection."""
        self._logins.clear()
        if self._own is not None:
            self._own.access.close()
        self._callers.close()

    def _made(self, security: Security) -> _LoggedIn:
        settings, registry = self.settings, None
        if settings.registry:
            access = registry_access(settings.registry, settings.registry_properties, security, settings.bootstrap)
            registry = Registry(access)
        return _LoggedIn(Access(self.settings.bootstrap, security), registry)


session_pages = Blueprint("session", __name__)


@session_pages.route("/login", methods=["GET", "POST"])
def login() -> Response:
    """The login form, and what it sends."""
    sessions: Sessions = current_app.extensions["console"]
    target = _own_address(request.values.get("next", ""))
    needs_login = visit().login if sessions.settings.hosted else sessions.settings.login is not None
    if not needs_login:
        return cast("Response", redirect(url_for("cluster.overview")))
    if request.method == "GET":
        return _form(target)
    if not sessions.tries.acquire(timeout=5):
        return _form(target, _BUSY, 503)
    given = [request.form.get(field, "") for field in ("name", "password", "bearer")]
    given[2] = given[2].strip()
    answer = cast("Response", redirect(target, 303))
    try:
        if sessions.settings.hosted:
            _keep(answer, visit().log_in(*given), secure=speaks_tls())
        else:
            sessions.log_in(*given)
    except MillstreamError as error:
        time.sleep(FAILED_PAUSE_S)
        return _form(target, error.message, 403)
    finally:
        sessions.tries.release()
    return answer


@session_pages.get("/oidc/login")
def start() -> Response:
    """Send the browser to the OpenID provider."""
    sessions: Sessions = current_app.extensions["console"]
    target = _own_address(request.args.get("next", ""))
    attempt = sessions.attempts.start(target)
    challenge = challenge_of(attempt.verifier)
    try:
        where = sessions.signs_in().sign_in_address(sessions.callback(), attempt.state, attempt.nonce, challenge)
    except MillstreamError as error:
        return sign_in.failed(target, error)
    answer = cast("Response", redirect(where))
    sessions.attempts.keep(answer, attempt, secure=sessions.callback().startswith("https:"))
    return answer


@session_pages.get("/oidc/callback")
def callback() -> Response:
    """Log in whom the provider sends back."""
    sessions: Sessions = current_app.extensions["console"]
    secure, target = sessions.callback().startswith("https:"), url_for("cluster.overview")
    if not sessions.tries.acquire(timeout=5):
        return sign_in.failed(target, Unavailable(_BUSY))
    try:
        attempt = sessions.attempts.take(request.args.get("state", ""))
        target = _own_address(attempt.target)
        code = sign_in.code_of(sessions.settings.issuer)
        cookie = sessions.signs_in().sign_in(code, attempt.verifier, sessions.callback(), attempt.nonce)
    except MillstreamError as error:
        time.sleep(FAILED_PAUSE_S)
        return sign_in.failed(target, error)
    finally:
        sessions.tries.release()
    answer = sign_in.onward(target)
    if cookie:
        _keep(answer, cookie, secure=secure)
    sign_in.forget(answer)
    return answer


@session_pages.get("/oidc/logout")
def end_elsewhere() -> Response:
    """Send the browser to where it ends its session at the OpenID provider."""
    sessions: Sessions = current_app.extensions["console"]
    back = url_for("session.login")
    try:
        where = sessions.signs_in().sign_out_address(urllib.parse.urljoin(sessions.callback(), back))
    except MillstreamError as error:
        return sign_in.failed(back, error)
    if not where:
        return sign_in.failed(back, Rejected("the OpenID provider has no page that ends its session"))
    return cast("Response", redirect(where))


def _form(target: str, reason: str = "", status: int = 200) -> Response:
    return make_response(render_template("login.html", target=target, reason=reason), status)


def _keep(answer: Response, cookie: str, *, secure: bool) -> None:
    """Give the browser its login at the broker."""
    session.clear()
    name = name_of_cookie(LOGIN, request.headers.get("Host", ""))
    answer.set_cookie(name, cookie, LOGIN_S, path=PREFIX, secure=secure, httponly=True, samesite="Strict")


@session_pages.post("/logout")
def logout() -> Response:
    """End the login."""
    sessions: Sessions = current_app.extensions["console"]
    answer = cast("Response", redirect(url_for("session.login", out=1 if sessions.settings.issuer else None), 303))
    if sessions.settings.hosted:
        visit().log_out()
        session.clear()
        answer.delete_cookie(name_of_cookie(LOGIN, request.headers.get("Host", "")), path=PREFIX)
    else:
        sessions.log_out()
    return answer


def _asked_address() -> str:
    """The address of the request on this host."""
    query = request.query_string.decode("latin-1")
    return urllib.parse.quote(request.script_root + request.path) + (f"?{query}" if query else "")


def _own_address(wanted: str) -> str:
    """An address of the console, which a visitor may be sent to; its first page instead of any other."""
    first = url_for("cluster.overview")
    own = wanted.startswith(first) and _PATH.fullmatch(wanted) is not None
    return wanted if own else first


@session_pages.post("/theme")
def theme() -> Response:
    """Choose light or dark; what the system says without a choice."""
    back = _REFERER.match(request.headers.get("Referer", ""))
    answer = redirect(_own_address(back[1] if back else ""), 303)
    sessions: Sessions = current_app.extensions["console"]
    chosen, path = request.form.get("theme", ""), PREFIX if sessions.settings.hosted else "/"
    if chosen in ("light", "dark"):
        answer.set_cookie("theme", chosen, max_age=365 * 86400, path=path, httponly=True, samesite="Strict")
    else:
        answer.delete_cookie("theme", path=path)
    return cast("Response", answer)
