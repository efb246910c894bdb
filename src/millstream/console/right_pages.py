"""Pages about rights: may X do Y on Z, the access control entries, users and quotas.

A cluster without access control says so on the page, which is no error. Changes are confirmed as in ``change_pages``; a
password is never part of a preview or of an address.
"""

import ipaddress
from typing import Any, Final, cast

from flask import Blueprint, Response, current_app, flash, g, make_response, redirect, render_template, request, url_for

from millstream.console import rights, showing
from millstream.console.access import Access
from millstream.console.rights import Rule
from millstream.console.seeing import lacks_right
from millstream.console.sessions import Sessions
from millstream.console.visits import VISIT
from millstream.errors import MillstreamError, Rejected

CLUSTER: Final = "kafka-cluster"
_ENTITIES: Final = ("user", "client-id", "ip")

right_pages = Blueprint("rights", __name__)


def _changes() -> None:
    sessions: Sessions = current_app.extensions["console"]
    if sessions.settings.read_only:
        raise Rejected("this console is read only")


def _why(error: Rejected) -> str:
    """Why there is no list; a right that is missing is a page of its own."""
    if lacks_right(error):
        raise error
    return error.message


def _done(endpoint: str, said: str) -> Response:
    flash(showing.brief(said))
    return cast("Response", redirect(url_for(endpoint), 303))


@right_pages.get("/rights")
def rules() -> Response:
    """The entries, and the answer to a question about them."""
    return _rules()


def _rules(problem: str = "", preview: dict[str, Any] | None = None) -> Response:
    access: Access = g.access
    given = request.args
    refused, found = "", list[Rule]()
    try:
        with access.cluster() as cluster:
            found = rights.list_rules(cluster)
    except Rejected as error:
        refused = _why(error)
    asked = {name: given.get(name, "").strip() for name in ("who", "what", "type", "name", "host")}
    decision = None
    if asked["who"] and not refused:
        who = asked["who"] if ":" in asked["who"] else f"User:{asked['who']}"
        name = asked["name"] or (CLUSTER if asked["type"] == "cluster" else "")
        decision = rights.decide(found, who, asked["host"] or "*", asked["what"], asked["type"], name)
    orders: showing.Orders[Rule] = {
        "name": lambda rule: (rule.resource_type, rule.name, rule.principal),
        "principal": lambda rule: (rule.principal, rule.resource_type, rule.name),
    }
    page = showing.cut(found, " ".join, orders)
    shown = render_template(
        "rights.html",
        tab="rules",
        page=page,
        refused=refused,
        problem=problem,
        preview=preview,
        asked=asked,
        decision=decision,
        types=rights.TYPES,
        operations=rights.OPERATIONS,
    )
    return make_response(shown, 400 if problem else 200)


@right_pages.post("/rights/<action>")
def change_rule(action: str) -> Response:
    """Add an entry or remove one, after its preview."""
    if action not in ("add", "remove"):
        return make_response("", 404)
    rule = Rule(*(request.form.get(name, "").strip() for name in rights.RULE_FIELDS))
    try:
        _changes()
        if action == "add":
            rule = _whole_rule(rule)
        if request.form.get("step") != "do":
            return _rules(preview={"action": action, "rule": rule})
        access: Access = g.access
        with access.cluster() as cluster:
            (rights.add_rule if action == "add" else rights.remove_rule)(cluster, rule)
    except MillstreamError as error:
        return _rules(error.message)
    return _done("rights.rules", f"The entry for {rule.principal} was {'added' if action == 'add' else 'removed'}.")


def _whole_rule(rule: Rule) -> Rule:
    """A rule as a form gives it, with what follows from the rest."""
    principal = rule.principal if ":" in rule.principal else f"User:{rule.principal}"
    name = CLUSTER if rule.resource_type == "cluster" else rule.name
    if not rule.principal or not name:
        raise Rejected("an entry needs a principal and a name ('*' for all)")
    host = rule.host or "*"
    return Rule(rule.resource_type, name, rule.pattern, principal, host, rule.operation, rule.permission)


@right_pages.get("/users")
def users() -> Response:
    """Users that log in by SCRAM."""
    return _users()


def _users(problem: str = "", preview: dict[str, str] | None = None) -> Response:
    access: Access = g.access
    refused, found = "", list[rights.Credential]()
    try:
        with access.cluster() as cluster:
            found = rights.list_users(cluster)
    except Rejected as error:
        refused = _why(error)
    orders: showing.Orders[rights.Credential] = {"name": lambda one: (one.user, one.mechanism)}
    page = showing.cut(found, lambda one: one.user, orders)
    shown = render_template("users.html", tab="users", page=page, refused=refused, problem=problem, preview=preview)
    return make_response(shown, 400 if problem else 200)


@right_pages.post("/users/<action>")
def change_user(action: str) -> Response:
    """Set a password, or remove a credential after its preview."""
    if action not in ("password", "remove"):
        return make_response("", 404)
    user, mechanism = request.form.get("user", "").strip(), request.form.get("mechanism", "")
    try:
        _changes()
        if action == "remove" and request.form.get("step") != "do":
            return _users(preview={"user": user, "mechanism": mechanism})
        access: Access = g.access
        with access.cluster() as cluster:
            if action == "remove":
                rights.remove_credential(cluster, user, mechanism)
            else:
                require_private()
                rights.set_password(cluster, user, mechanism, request.form.get("password", ""))
    except MillstreamError as error:
        return _users(error.message)
    said = f"{user} no longer logs in by {mechanism}." if action == "remove" else f"{user} has a new password."
    return _done("rights.users", said)


def require_private() -> None:
    """Refuse a password that has crossed a network in clear on its way to the broker that serves this page. From here
    on its way is the broker's own.
    """
    address = ipaddress.ip_address(request.remote_addr or "::1")
    if VISIT in request.environ and not request.is_secure and not address.is_loopback:
        raise Rejected("this page is not encrypted: set passwords over HTTPS, or from the broker's machine")


@right_pages.get("/quotas")
def quotas() -> Response:
    """All quotas."""
    return _quotas()


def _quotas(problem: str = "") -> Response:
    access: Access = g.access
    refused, rows = "", list[dict[str, Any]]()
    try:
        with access.cluster() as cluster:
            found = rights.list_quotas(cluster)
    except Rejected as error:
        refused, found = _why(error), []
    for entity, values in found:
        names = dict(entity)
        said = ", ".join(f"{kind} {'(all others)' if name is None else name}" for kind, name in sorted(names.items()))
        rows += [{"said": said, "names": names, "key": key, "value": value} for key, value in values.items()]
    orders: showing.Orders[dict[str, Any]] = {"name": lambda row: (row["said"], row["key"])}
    page = showing.cut(rows, lambda row: f"{row['said']} {row['key']}", orders)
    shown = render_template(
        "quotas.html", tab="quotas", page=page, refused=refused, problem=problem, keys=rights.QUOTAS, kinds=_ENTITIES
    )
    return make_response(shown, 400 if problem else 200)


@right_pages.post("/quotas/set")
def set_quota() -> Response:
    """Set a quota, or remove it (``remove``)."""
    form = request.form
    entity = [
        (kind, None if form.get(f"{kind}-default") == "1" else form.get(kind, "").strip())
        for kind in _ENTITIES
        if form.get(f"{kind}-default") == "1" or form.get(kind, "").strip()
    ]
    try:
        _changes()
        if not entity:
            raise Rejected("a quota needs a user, a client id or an address")
        value = None if form.get("remove") == "1" else _rate(form.get("value", "").strip())
        access: Access = g.access
        with access.cluster() as cluster:
            rights.set_quota(cluster, entity, form.get("key", ""), value)
    except MillstreamError as error:
        return _quotas(error.message)
    return _done("rights.quotas", "The quota was removed." if value is None else "The quota was set.")


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise Rejected(f"{text!r} is no number above 0")
    return value
