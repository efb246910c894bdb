"""Sign-in at an OpenID provider: what the console keeps for the browser that starts one, and the pages of it.

::

    /oidc/login ──► provider ──► /oidc/callback?state&code ──► code for tokens, ID token tested ──► a login as any other

State, nonce and PKCE verifier of an attempt are in a signed cookie of that browser (HttpOnly, SameSite=Lax, since the
provider sends the browser back; below ``/oidc``; ``ATTEMPT_S``), so attempts cost the console nothing and cannot push
each other out. A callback is taken once, with the cookie of its own attempt: a stranger's link, the code of another
visitor and a second use of an address are refused before the provider is asked.

The login's own cookie is SameSite=Strict: a browser that comes from another site does not send it. So the callback is
answered with a page of ours that leads on (``onward``), from where the browser does.
"""

import hmac
import secrets
import threading
import urllib.parse
from collections import OrderedDict
from typing import Final, NamedTuple

from flask import make_response, render_template, request, url_for
from flask.wrappers import Response
from itsdangerous import BadData, URLSafeTimedSerializer

from millstream.console.cookies import SIGN_IN, name_of_cookie
from millstream.errors import MillstreamError, Rejected, Unavailable

ATTEMPT_S: Final = 600
_SPENT_MAX: Final = 4096
_SALT: Final = "millstream.console.sign-in"
_SAID_MAX: Final = 300


class Attempt(NamedTuple):
    """A sign-in that a browser has started. ``target`` is the page to show afterwards."""

    state: str
    nonce: str
    verifier: str
    target: str


class Attempts:
    """Makes attempts, and knows them again. Safe for threads."""

    def __init__(self, secret: bytes) -> None:
        self._seal = URLSafeTimedSerializer(secret, salt=_SALT)
        self._lock = threading.Lock()
        self._spent: OrderedDict[str, None] = OrderedDict()

    def start(self, target: str) -> Attempt:
        """A new attempt."""
        return Attempt(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), target)

    def keep(self, answer: Response, attempt: Attempt, *, secure: bool) -> None:
        """Give an attempt to the browser."""
        answer.set_cookie(
            _name(), self._seal.dumps(attempt), ATTEMPT_S, path=_path(), secure=secure, httponly=True, samesite="Lax"
        )

    def take(self, answered: str) -> Attempt:
        """The attempt of this request, whose answer has the state ``answered``. It is spent now.

        Raises:
            Rejected: the browser has none, it is too old, or it is another one.
        """
        try:
            found = Attempt(*self._seal.loads(request.cookies.get(_name(), ""), max_age=ATTEMPT_S))
        except (BadData, TypeError):
            raise Rejected("this browser did not start this sign-in, or more than ten minutes ago") from None
        if not hmac.compare_digest(found.state.encode(), answered.encode(errors="replace")):
            raise Rejected("the answer belongs to another sign-in")
        with self._lock:
            if found.state in self._spent:
                raise Rejected("this sign-in was used already")
            self._spent[found.state] = None
            if len(self._spent) > _SPENT_MAX:
                self._spent.popitem(last=False)
        return found


def code_of(issuer: str) -> str:
    """The code that the provider's answer has.

    Raises:
        Rejected: it has an error instead, or is the answer of another provider (RFC 9207).
    """
    if request.args.get("iss", issuer) != issuer:
        raise Rejected("the answer is of another OpenID provider")
    if "error" in request.args:
        said = request.args.get("error_description", "") or request.args["error"]
        raise Rejected(f"the OpenID provider refuses the sign-in: {said[:_SAID_MAX]}")
    code = request.args.get("code", "")
    if not code:
        raise Rejected("the answer has no code")
    return code


def forget(answer: Response) -> None:
    """The browser's attempt is over."""
    answer.delete_cookie(_name(), path=_path())


def onward(target: str) -> Response:
    """A page of this console that leads on to another one, so that the browser sends the login's cookie there."""
    return make_response(render_template("onward.html", target=target, reason=""))


def failed(target: str, error: MillstreamError) -> Response:
    """A page that says why a visitor is not signed in, and leads to the form."""
    again = url_for("session.login", next=target)
    status = 503 if isinstance(error, Unavailable) else 403
    return make_response(render_template("onward.html", target=again, reason=error.message), status)


def from_elsewhere() -> bool:
    """Whether a page of another site led here: then the browser keeps the login's cookie to itself."""
    return request.method == "GET" and request.headers.get("Sec-Fetch-Site", "") == "cross-site"


def name_of(issuer: str) -> str:
    """A provider's name for people: its host."""
    return urllib.parse.urlsplit(issuer).hostname or issuer


def _name() -> str:
    return name_of_cookie(SIGN_IN, request.headers.get("Host", ""))


def _path() -> str:
    return f"{request.script_root}/oidc"
