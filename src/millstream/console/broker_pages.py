"""Pages of what only the broker itself knows: tiers, caches, tables of topics, the machine, the audit.

They are read from the HTTP API of the broker that hosts this console, with the rights of the visitor, and are about
that broker alone. A console beside a cluster has none of it, and says where it is.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from flask import Blueprint, Response, current_app, make_response, render_template, request

from millstream.console import showing
from millstream.console.charts import bar
from millstream.console.sessions import Sessions
from millstream.console.visits import visit
from millstream.errors import Rejected

AUDIT_ROWS: Final = 100

broker_pages = Blueprint("broker", __name__)


def _shown(template: str, tab: str, path: str, values: Callable[[Any], Mapping[str, Any]]) -> Response:
    """A page of one document; without it, why it is not here."""
    sessions: Sessions = current_app.extensions["console"]
    if not sessions.settings.hosted:
        return make_response(render_template("broker_elsewhere.html", tab=tab))
    try:
        document = visit().get(path)
    except Rejected as error:
        return make_response(render_template("broker_elsewhere.html", tab=tab, refused=error.message), 403)
    return make_response(render_template(template, tab=tab, **values(document)))


@broker_pages.get("/tiers")
def tiers() -> Response:
    """How far tiered topics are archived, and what the object store was asked."""

    def values(document: Any) -> dict[str, Any]:
        rows = document["partitions"]
        page = showing.cut(
            rows,
            lambda row: row["topic"],
            {
                "name": lambda row: (row["topic"], row["partition"]),
                "lag": lambda row: row["lag_bytes"],
                "archived": lambda row: row["archived_bytes"],
                "local": lambda row: row["local_bytes"],
            },
        )
        return {
            "page": page,
            "url": document["objects_url"],
            "requests": document["requests"],
            "archived": sum(row["archived_bytes"] for row in rows),
            "local": sum(row["local_bytes"] for row in rows),
            "lag": sum(row["lag_bytes"] for row in rows),
            "failing": sum(row["failures"] > 0 for row in rows),
        }

    return _shown("tiers.html", "tiers", "/v1/tiers", values)


@broker_pages.get("/caches")
def caches() -> Response:
    """Who served reads, and how large the warm cache must be."""

    def values(document: Any) -> dict[str, Any]:
        served = document["served"]
        most = {unit: max(one["count"] for one in served if one["unit"] == unit) for unit in ("reads", "blocks")}
        rows = [(one, bar(one["count"], most[one["unit"]], f"{one['count']} {one['unit']}")) for one in served]
        used = bar(document["size_bytes"], document["size_bytes_max"], "of the warm cache is used")
        return {"cache": document, "rows": rows, "used": used}

    return _shown("caches.html", "caches", "/v1/cache", values)


@broker_pages.get("/pipelines")
def pipelines() -> Response:
    """The tables of topics, with the lag of those that are served."""

    def values(document: Any) -> dict[str, Any]:
        page = showing.cut(
            document["pipelines"],
            lambda row: f"{row.get('topic')} {row.get('sink')} {row.get('state')}",
            {"name": lambda row: str(row.get("topic")), "lag": lambda row: row.get("lag") or 0},
        )
        return {"page": page}

    return _shown("pipelines.html", "pipelines", "/v1/pipelines", values)


@broker_pages.get("/machine")
def machine() -> Response:
    """What of the machine is off for a broker, as ``millstream tune`` has it."""

    def values(document: Any) -> dict[str, Any]:
        every = document["findings"]
        wrong = [one for one in every if one["outcome"] == "off" and not one["advice"]]
        advice = [one for one in every if one["outcome"] == "off" and one["advice"]]
        others = [one for one in every if one["outcome"] != "off"]
        return {"wrong": wrong, "advice": advice, "others": others, "started": document["facts"]}

    return _shown("machine.html", "machine", "/v1/machine", values)


@broker_pages.get("/audit")
def audit() -> Response:
    """Who logged in, what was refused, who changed and who read what; the newest first."""
    given = {name: request.args.get(name, "").strip() for name in ("q", "before")}
    query = urlencode({"limit": AUDIT_ROWS, "word": given["q"], "before": given["before"]})

    def values(document: Any) -> dict[str, Any]:
        return {
            "kept": document["kept"],
            "records": [_line(record) for record in document["records"]],
            "older": showing.here(before=document["next_before"]) if document["next_before"] else "",
            **given,
        }

    return _shown("audit.html", "audit", f"/v1/audit?{query}", values)


def _line(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of the audit as a row."""
    kind = str(record.get("kind", ""))
    what = ", ".join(str(name) for name in record.get("what") or [record.get("name") or record.get("listener") or ""])
    failed = [str(error) for error in record.get("errors") or []]
    result = record.get("why") or record.get("error") or ", ".join(failed) or record.get("outcome") or ""
    status = record.get("status")
    if status is not None:
        result = f"status {status}"
    if record.get("count") is not None:
        result = f"{result} {record['count']} times".strip()
    bad = kind in ("refused", "lost") or record.get("outcome") == "failed" or bool(failed)
    return {
        "time": str(record.get("time", "")),
        "kind": kind,
        "principal": str(record.get("principal", "")),
        "host": str(record.get("host", "")),
        "api": str(record.get("api", "")),
        "what": what,
        "result": str(result),
        "bad": bad or (status is not None and int(status) >= 400),
    }
