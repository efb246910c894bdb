"""What a request has to be before a page sees it, and what every response says to the browser.

- ``Host`` has to be one of the console's names. A page of another site whose name was made to resolve to this address
  (DNS rebinding) carries its own.
- A request that changes something has to come from a page of this console (``Origin``), and to carry the token of the
  session. A browser sends ``Origin`` with every form that is posted; a request without one is refused.
- Every response forbids scripts, styles, frames and connections that are not the console's own, and sniffing.
"""

import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from flask import Flask, Response, abort, request, session
from flask.sessions import SecureCookieSessionInterface

from millstream.config.urls import authority_of, split_authority
from millstream.console.cookies import name_of_cookie

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types part"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Cookies(SecureCookieSessionInterface):
    """The session's cookie has the port in its name, and is Secure if the browser uses TLS, which ends at a proxy
    before the console.
    """

    def get_cookie_name(self, app: Flask) -> str:
        return name_of_cookie(super().get_cookie_name(app), request.headers.get("Host", ""))

    def get_cookie_secure(self, app: Flask) -> bool:
        return super().get_cookie_secure(app) or speaks_tls()


def speaks_tls() -> bool:
    """Whether the browser uses TLS, to this port or to a proxy before it. ``Origin`` says so with every form."""
    return request.is_secure or request.headers.get("Origin", "").startswith("https:")


def install(application: Flask, hosts: Sequence[str] | None) -> None:
    """Check every request, and complete every response. Without ``hosts`` others have checked ``Host``."""
    known = None if hosts is None else frozenset(host.lower() for host in hosts)

    def check() -> None:
        host, _ = split_authority(request.host)
        if known is not None and host not in known:
            abort(421, f"This console is not addressed as {host!r}; start it with --host {host} if it should be.")
        if request.method in _CHANGING:
            if authority_of(request.headers.get("Origin", "")) != request.host.lower():
                abort(403, "A change has to come from a page of this console.")
            given = request.form.get("token", "")
            if not hmac.compare_digest(given.encode(), token().encode()):
                abort(403, "The form is too old. Go back, load the page again, and send it again.")

    def complete(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if request.endpoint != "static":
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    application.session_interface = Cookies()
    application.before_request(check)
    application.after_request(complete)


def token() -> str:
    """The token that forms of this session carry."""
    if "token" not in session:
        session["token"] = secrets.token_urlsafe(24)
    return str(session["token"])
