"""The WSGI application: its parts put together, and errors as pages.

An error of the cluster is a page with its reason and what to do; the console itself continues. Bodies of requests are
bounded by ``BODY_MAX``.
"""

import re
import secrets
from typing import Any, Final

from flask import Flask, Response, g, get_flashed_messages, make_response, render_template, request
from werkzeug.exceptions import HTTPException

from millstream import __version__
from millstream.console import guard, showing
from millstream.console.broker_pages import broker_pages
from millstream.console.change_pages import change_pages
from millstream.console.charts import History
from millstream.console.cluster_pages import cluster_pages
from millstream.console.connect_pages import connect_pages
from millstream.console.cookies import SESSION
from millstream.console.group_pages import group_pages
from millstream.console.masks import read_masks
from millstream.console.message_pages import Streams, message_pages
from millstream.console.right_pages import right_pages
from millstream.console.schema_pages import schema_pages
from millstream.console.seeing import lacks_right
from millstream.console.sessions import SIGN_IN_PAGES, Sessions, session_pages
from millstream.console.settings import Settings
from millstream.console.sign_in import name_of
from millstream.console.topic_pages import topic_pages
from millstream.console.visits import PREFIX
from millstream.errors import MillstreamError, Rejected
from millstream.wire.bearer import OAUTHBEARER

BODY_MAX: Final = 2 << 20
THEMES: Final = ("light", "dark")

_PLACES: Final = (
    ("Overview", "cluster.overview", "o"),
    ("Brokers", "cluster.brokers", "b"),
    ("Topics", "topics.topics", "t"),
    ("Groups", "groups.groups", "g"),
    ("Transactions", "cluster.transactions", "x"),
    ("Schemas", "schemas.subjects", "s"),
    ("Connect", "connect.connectors", "c"),
    ("Access", "rights.rules", "a"),
    ("Settings", "cluster.settings", "e"),
    ("This broker", "broker.tiers", "m"),
)
"""What the navigation shows: title, endpoint, and the key after ``g``."""
_WITHOUT_SESSION: Final = frozenset({"static", "messages.live", "messages.export"}) | SIGN_IN_PAGES
_LISTS: Final = frozenset(endpoint for _, endpoint, _ in _PLACES)

_PAGES: Final = (
    connect_pages,
    cluster_pages,
    topic_pages,
    message_pages,
    group_pages,
    schema_pages,
    right_pages,
    broker_pages,
    session_pages,
)


def create(settings: Settings) -> Flask:
    """The application. It connects when the first page is asked for."""
    application = Flask("millstream.console", static_url_path="/static")
    application.secret_key = settings.secret or secrets.token_bytes(32)
    application.config.update(
        MAX_CONTENT_LENGTH=BODY_MAX,
        SESSION_COOKIE_NAME=SESSION,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_COOKIE_PATH=PREFIX if settings.hosted else f"/{settings.name}",
    )
    application.extensions["console"] = Sessions(settings)
    application.extensions["console.masks"] = read_masks(settings.masks)
    application.extensions["console.history"] = History()
    application.extensions["console.streams"] = Streams()
    showing.install(application)
    guard.install(application, None if settings.hosted else settings.hosts)
    application.before_request(_identify)
    application.before_request(_prepare)
    for pages in _PAGES:
        application.register_blueprint(pages)
    if not settings.read_only:
        application.register_blueprint(change_pages)
    application.register_error_handler(MillstreamError, _cluster_error)
    application.register_error_handler(HTTPException, _http_error)

    @application.context_processor
    def shared() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction] (Flask calls it)
        theme = request.cookies.get("theme", "")
        return {
            "said": g.get("said", ()),
            "place": _place(),
            "places": [place for place in _PLACES if place[1] != "connect.connectors" or not settings.hosted],
            "theme": theme if theme in THEMES else "",
            "token": guard.token,
            "version": __version__,
            "bootstrap": settings.bootstrap,
            "user": g.get("user", ""),
            "login": settings.login,
            "tokens": settings.tokens or settings.login == OAUTHBEARER,
            "issuer": name_of(settings.issuer) if settings.issuer else "",
            "passwords": settings.login != OAUTHBEARER,
            "hosted": settings.hosted,
            "cluster": settings.name,
            "clusters": [(name, _same_page(name)) for name in settings.names],
            "by_peers": bool(settings.security.opening),
            "changes": not settings.read_only,
        }

    return application


def _place() -> str:
    """The endpoint of the navigation that this page belongs to; empty for none."""
    blueprint, _, _ = (request.endpoint or "").partition(".")
    if blueprint == "messages":
        return "topics.topics"
    if blueprint in ("changes", "cluster"):
        first = next((part for part in re.split(r"[/-]", request.path) if part), "overview")
        if first == "new":
            return "topics.topics"
        return next((each for _, each, _ in _PLACES if each.partition(".")[2].startswith(first.removesuffix("s"))), "")
    return next((each for _, each, _ in _PLACES if each.partition(".")[0] == blueprint), "")


def _same_page(name: str) -> str:
    """The address in another cluster: the same page, if it is a list, else the first one."""
    return f"/{name}{request.path if not request.view_args and request.endpoint in _LISTS else '/'}"


def _prepare() -> None:
    """Do with the session what a page does with it: its cookie leaves before the page is rendered."""
    if request.method == "GET" and request.endpoint not in _WITHOUT_SESSION:
        guard.token()
        g.said = get_flashed_messages()


def _identify() -> Response | None:
    from flask import current_app

    sessions: Sessions = current_app.extensions["console"]
    g.registry = None
    g.masks = current_app.extensions["console.masks"]
    return sessions.identify()


def _cluster_error(error: MillstreamError) -> Response:
    """403 for a missing right, 400 for what else cannot succeed, 503 for what may succeed later."""
    status, title = (400, "The cluster refuses that")
    if lacks_right(error):
        status, title = 403, f"{g.get('user', '') or 'This console'} may not do that"
    elif not isinstance(error, Rejected):
        status, title = 503, "The cluster does not answer"
    page = render_template("error.html", title=title, reason=error.message, code=error.code.name, status=status)
    return make_response(page, status)


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    if status < 400:
        return make_response(error.get_response())
    page = render_template("error.html", title=error.name, reason=error.description or "", code="", status=status)
    return make_response(page, status)
