"""Pages about Kafka Connect: the connectors of all its clusters, and one with its tasks; pause, resume, restart.

A Connect cluster that does not answer is a sentence on the page, beside those that do. Changes of a connector's state
are done at once: each can be turned round, and none loses records.
"""

from typing import Final, NamedTuple, cast

from flask import Blueprint, Response, abort, current_app, flash, redirect, render_template, request, url_for

from millstream.console import connect, showing
from millstream.console.sessions import Sessions
from millstream.errors import Rejected

connect_pages = Blueprint("connect", __name__)
_SAID: Final = {
    "pause": "will pause",
    "resume": "will resume",
    "restart": "will restart",
    "restart-failed": "will restart what failed",
}


class Row(NamedTuple):
    """A connector, and the place of its Connect cluster among those of the console."""

    place: int
    status: connect.Status


def _accesses() -> tuple[connect.ConnectAccess, ...]:
    sessions: Sessions = current_app.extensions["console"]
    return sessions.settings.connects


def _access(place: int) -> connect.ConnectAccess:
    accesses = _accesses()
    if place >= len(accesses):
        abort(404, f"There is no Connect cluster {place} here.")
    return accesses[place]


@connect_pages.get("/connect")
def connectors() -> str:
    """All connectors."""
    accesses = _accesses()
    found = connect.all_of(accesses)
    rows = [Row(place, status) for place, (_, every, _) in enumerate(found) for status in every]
    orders: showing.Orders[Row] = {
        "name": lambda row: (row.status.name, row.place),
        "state": lambda row: (not row.status.failed, row.status.connector.state, row.status.name),
        "kind": lambda row: (row.status.type, row.status.name),
    }
    page = showing.cut(rows, lambda row: f"{row.status.name} {row.status.connector.state}", orders)
    clusters = [(access.url, *said) for access, said in zip(accesses, found, strict=True)]
    return render_template("connect.html", page=page, clusters_of=clusters)


@connect_pages.get("/connect/<int:place>")
def connector(place: int) -> str:
    """One connector, ``name`` of the address."""
    access = _access(place)
    status, config = connect.connector(access, request.args.get("name", ""))
    return render_template("connector.html", place=place, url=access.url, one=status, config=config)


@connect_pages.post("/connect/<int:place>/<action>")
def change(place: int, action: str) -> Response:
    """Tell a connector, or one of its tasks, to do something."""
    sessions: Sessions = current_app.extensions["console"]
    if action not in _SAID:
        abort(404)
    if sessions.settings.read_only:
        raise Rejected("this console is read only")
    name, given = request.form.get("name", ""), request.form.get("task", "")
    task = showing.number_of(given, -1) if given else None
    if task == -1:
        raise Rejected(f"{given!r} is no number of a task")
    connect.change(_access(place), name, action, task)
    flash(showing.brief(f"{name if task is None else f'Task {task} of {name}'} {_SAID[action]}."))
    return cast("Response", redirect(url_for("connect.connector", place=place, name=name), 303))
