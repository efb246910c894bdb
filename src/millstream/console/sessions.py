"""Who a request acts as.

In a broker (``Settings.hosted``) the broker says who the caller is, and keeps the logins; this file only has the form.
Else, without ``Settings.login`` every request acts as the console itself. With it, a visitor logs in with a name and a
password of the cluster: the console tries them on a connection, keeps them in memory beside a random session id, and
gives the browser nothing but that id, in a signed cookie (HttpOnly, SameSite=Strict, Secure under TLS). With
OAUTHBEARER a visitor logs in with a token instead. A login ends by ``console.kept``, on logging out, when its password
no longer opens a connection, or with the process. A failed login waits ``FAILED_PAUSE_S``, and at most ``TRIES_MAX``
run at once.
"""

import re
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
from millstream.console.access import Access
from millstream.console.guard import speaks_tls
from millstream.console.kept import LOGIN_S, KeptLogins
from millstream.console.registry import Registry
from millstream.console.settings import Settings
from millstream.console.visits import COOKIE, PREFIX, Callers, visit
from millstream.errors import MillstreamError

FAILED_PAUSE_S: Final = 0.5
TRIES_MAX: Final = 2
_PATH: Final = re.compile(r"/(?!/)[!-\[\]-~]*")
"""An address on this host: browsers take tabs and line ends out of an address, and read a backslash as a slash."""
_OPEN: Final = frozenset({"static", "session.login", "session.theme"})


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
        form, wanted = url_for("session.login"), request.script_root + request.full_path.rstrip("?")
        query = "" if request.path == "/" else f"?{urllib.parse.urlencode({'next': wanted})}"
        return cast("Response", redirect(form + query))

    def log_in(self, name: str, password: str, token: str) -> None:
        """Try a login, and keep it for this browser. The name of a token's user is the cluster's to know.

        Raises:
            MillstreamError: the cluster refuses it, or does not answer.
        """
        base = self.settings.security
        protocol = "SASL_SSL" if base.speaks_tls else "SASL_PLAINTEXT"
        login = Login(self.settings.login or "", name, password, token)
        made = self._made(Security(protocol, base.tls, base.check_name, base.verify, login))
        with made.access.cluster() as cluster:
            cluster.any_connection()
        self.log_out()
        session["login"], session["user"] = self._logins.add(made), name or "a token's user"

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
        return make_response(render_template("login.html", target=target, reason=""))
    if not sessions.tries.acquire(timeout=5):
        return make_response(render_template("login.html", target=target, reason="Others log in now; try again."), 503)
    given = [request.form.get(field, "") for field in ("name", "password", "bearer")]
    given[2] = given[2].strip()
    answer = cast("Response", redirect(target, 303))
    try:
        if sessions.settings.hosted:
            cookie = visit().log_in(*given)
            session.clear()
            answer.set_cookie(
                COOKIE, cookie, LOGIN_S, path=PREFIX, secure=speaks_tls(), httponly=True, samesite="Strict"
            )
        else:
            sessions.log_in(*given)
    except MillstreamError as error:
        time.sleep(FAILED_PAUSE_S)
        return make_response(render_template("login.html", target=target, reason=error.message), 403)
    finally:
        sessions.tries.release()
    return answer


@session_pages.post("/logout")
def logout() -> Response:
    """End the login."""
    sessions: Sessions = current_app.extensions["console"]
    answer = cast("Response", redirect(url_for("session.login"), 303))
    if sessions.settings.hosted:
        visit().log_out()
        session.clear()
        answer.delete_cookie(COOKIE, path=PREFIX)
    else:
        sessions.log_out()
    return answer


def _own_address(wanted: str) -> str:
    """An address of the console, which a visitor may be sent to; its first page instead of any other."""
    first = url_for("cluster.overview")
    own = wanted.startswith(first) and _PATH.fullmatch(wanted) is not None
    return wanted if own else first


@session_pages.post("/theme")
def theme() -> Response:
    """Choose light or dark; what the system says without a choice."""
    back = urllib.parse.urlsplit(request.headers.get("Referer", ""))
    answer = redirect(_own_address(f"{back.path}?{back.query}" if back.query else back.path), 303)
    sessions: Sessions = current_app.extensions["console"]
    chosen, path = request.form.get("theme", ""), PREFIX if sessions.settings.hosted else "/"
    if chosen in ("light", "dark"):
        answer.set_cookie("theme", chosen, max_age=365 * 86400, path=path, httponly=True, samesite="Strict")
    else:
        answer.delete_cookie("theme", path=path)
    return cast("Response", answer)
