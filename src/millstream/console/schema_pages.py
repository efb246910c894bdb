"""Pages about schemas: subjects, versions of one, and what changed between two."""

import difflib
import json
from typing import Any, NamedTuple

from flask import Blueprint, g, render_template, request

from millstream.console import showing
from millstream.console.registry import Registry
from millstream.errors import MillstreamError, Rejected

schema_pages = Blueprint("schemas", __name__)


class DiffLine(NamedTuple):
    """A line of a comparison: ``sign`` is ``+``, ``-`` or a space."""

    sign: str
    text: str


@schema_pages.get("/schemas")
def subjects() -> str:
    """The subjects; those on this page with their latest versions."""
    registry: Registry | None = g.registry
    if registry is None:
        return render_template("schemas.html", page=None, latest={})
    page = showing.cut(registry.subjects(), lambda name: name, {"name": lambda name: name})
    latest: dict[str, Any] = {}
    for name in page.rows:
        try:
            latest[name] = registry.get("subjects", name, "versions", "latest")
        except Rejected:
            continue  # it was deleted, or may not be read
    return render_template("schemas.html", page=page, latest=latest, url=registry.url)


@schema_pages.get("/schema")
def subject() -> str:
    """One subject: ``name``, ``version`` (the latest without it) and ``against`` (another version) of the address."""
    registry: Registry | None = g.registry
    if registry is None:
        return render_template("schemas.html", page=None, latest={})
    name, version = request.args.get("name", ""), request.args.get("version", "latest")
    versions = registry.get("subjects", name, "versions")
    shown = registry.get("subjects", name, "versions", version)
    try:
        level = registry.get("config", name, query="?defaultToGlobal=true").get("compatibilityLevel", "")
    except MillstreamError:
        level = ""
    against = request.args.get("against", "")
    lines: list[DiffLine] = []
    if against:
        old = _text(registry.get("subjects", name, "versions", against))
        compared = difflib.ndiff(old.splitlines(), _text(shown).splitlines())
        lines = [DiffLine(each[0], each[2:]) for each in compared if each[0] != "?"]
    return render_template(
        "schema.html",
        name=name,
        versions=versions,
        shown=shown,
        text=_text(shown),
        level=level,
        against=against,
        lines=lines,
    )


def _text(found: dict[str, Any]) -> str:
    """The schema, JSON of it on lines of its own."""
    text = str(found["schema"])
    if str(found.get("schemaType", "AVRO")).upper() == "PROTOBUF":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
