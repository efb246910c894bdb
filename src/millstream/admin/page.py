"""The page for people at ``GET /``: one document without a script, with a style of its own.

Names of topics and groups are chosen by clients; everything that is shown is escaped, and the policy in ``POLICY``
forbids everything that the page does not need.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from millstream.admin.overview import Facts, GroupView, Overview, TopicView

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 2rem 0 .3rem; }
p, dt { color: var(--soft); margin: 0; } dl { display: flex; flex-wrap: wrap; gap: .6rem 2rem; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
p.alarm { background: #b22; border-radius: .3rem; color: #fff; margin: 1rem 0; padding: .5rem .8rem; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
"""

_FULL: Final = (
    '<p class="alarm">The disk is full: producers are refused until there is space. '
    "<code>millstream topic trim</code>, retention or another disk make some.</p>\n"
)
_CONSOLE: Final = (
    '<p><a href="/console/">Open the console</a>: messages, groups and their lag, schemas, settings, and changes</p>\n'
)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def page(facts: Facts, overview: Overview, tables: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """The page with what the broker holds now. ``tables`` are those of topics, as ``/v1/pipelines`` has them."""
    version = facts.version
    above, below = _CONSOLE if facts.console else "", "" if facts.accepts_writes else _FULL
    shown = {
        "bootstrap": facts.bootstrap,
        "node": str(facts.node_id),
        "cluster": facts.cluster_id,
        "up": span(facts.uptime_s),
        "at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    described = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Millstream {escape(version)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>Millstream {escape(version)}</h1>\n{above}<dl>{described}</dl>\n{below}"
        f"{_topics(overview)}{_groups(overview)}{_tables(tables)}"
        '<h2>For programs</h2>\n<p><a href="/metrics">/metrics</a> · <a href="/v1/status">/v1/status</a> · '
        '<a href="/healthz">/healthz</a></p>\n</body></html>\n'
    ).encode()


def notice(title: str, said: str) -> bytes:
    """A page with one message."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n<p>{escape(said)}</p>\n</body></html>\n"
    ).encode()


def _topics(overview: Overview) -> str:
    def row(topic: TopicView) -> list[str]:
        return [
            topic.name,
            f"{topic.partitions:,}",
            f"{topic.records:,}",
            size(topic.size_bytes),
            f"{topic.received_records:,}",
            size(topic.received_bytes),
            size(topic.fetched_bytes),
        ]

    columns = ["topic", "partitions", "records", "size", "records in", "bytes in", "bytes out"]
    nothing = "There are no topics yet: <code>millstream topic create NAME</code> makes one."
    return _section("Topics", columns, map(row, overview.topics), overview.topics_total, nothing)


def _groups(overview: Overview) -> str:
    def row(group: GroupView) -> list[str]:
        behind = ", ".join(f"{topic}: {lag:,}" for topic, lag in sorted(group.lag.items()) if lag)
        return [group.name, group.state, f"{group.members:,}", f"{sum(group.lag.values()):,}", behind or "–"]

    columns = ["group", "state", "members", "lag", "where"]
    nothing = "No consumer group has joined or committed yet."
    return _section("Consumer groups", columns, map(row, overview.groups), overview.groups_total, nothing)


def _tables(tables: Sequence[Mapping[str, Any]]) -> str:
    def row(table: Mapping[str, Any]) -> list[str]:
        lag, state = table.get("lag"), str(table.get("state"))
        if not table.get("served") and state in ("starting", "running"):
            state = "no 'pipeline serve' runs it"
        counts = [f"{int(table.get(name) or 0):,}" for name in ("rows", "rejected")]
        why = ": ".join(part for part in (state, str(table.get("reason") or "")) if part)
        return [f"{table.get('topic')}", f"{table.get('sink')}", *counts, "–" if lag is None else f"{lag:,}", why]

    columns = ["topic", "table", "rows", "rejected", "lag", "state"]
    return _section("Tables of topics", columns, map(row, tables), len(tables), "") if tables else ""


def _section(title: str, columns: list[str], rows: Iterable[list[str]], total: int, nothing: str) -> str:
    shown = list(rows)
    if not shown:
        return f"<h2>{title}</h2>\n<p>{nothing}</p>\n"
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in shown)
    left_out = total - len(shown)
    more = f"<p>{left_out:,} more are not shown.</p>\n" if left_out > 0 else ""
    return f"<h2>{title}</h2>\n<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n{more}"


def size(number: int) -> str:
    """Bytes with a unit of 1024s."""
    value = float(number)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def span(seconds: float) -> str:
    """A time as its two largest units."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
