"""Pages about groups: the list with lags, and one group with members, partitions and its lag over time."""

from collections.abc import Iterator

from flask import Blueprint, Response, abort, current_app, g, request, stream_template

from millstream.console import facts, shares, showing
from millstream.console.access import Access
from millstream.console.charts import History, bar, line
from millstream.console.kinds import GROUP, TOPIC
from millstream.console.seeing import part_of

group_pages = Blueprint("groups", __name__)


@group_pages.get("/groups")
def groups() -> Response:
    """The list. Lags are those of the groups on this page alone."""
    access: Access = g.access
    brokers = access.snapshot_of()
    orders: showing.Orders[facts.Group] = {
        "name": lambda group: group.group_id,
        "state": lambda group: (group.state, group.group_id),
        "kind": lambda group: (group.kind, group.group_id),
    }
    with access.cluster() as cluster:
        known = facts.list_groups(cluster, brokers)
        page = showing.cut(known.values(), lambda group: f"{group.group_id} {group.state}", orders)
        described = facts.describe_groups(cluster, page.rows) | shares.describe_shares(cluster, page.rows)
        lags = facts.lags(cluster, facts.committed(cluster, page.rows))
        lags |= shares.share_lags(cluster, page.rows)
    totals = {group: sum(lag.records for lag in of) for group, of in lags.items() if of}
    most = max(totals.values(), default=0)
    rows = [
        {
            "group": group,
            "members": len(described[group.group_id].members) if group.group_id in described else None,
            "lag": totals.get(group.group_id),
            "topics": sorted({lag.topic for lag in lags.get(group.group_id, ())}),
            "bar": bar(totals.get(group.group_id, 0), most, "lag"),
        }
        for group in page.rows
    ]
    return Response(stream_template("groups.html", page=page, rows=rows, part=part_of(GROUP)), mimetype="text/html")


@group_pages.get("/group")
def group() -> Iterator[str]:
    """One group, ``id`` of the address."""
    access: Access = g.access
    name = request.args.get("id", "")
    history: History = current_app.extensions["console.history"]
    with access.cluster() as cluster:
        known = facts.find_group(cluster, name)
        if known is None:
            abort(404, f"There is no group {name!r}, or you may not describe it.")
        described = shares.described(cluster, known)
        lags = shares.lags_of(cluster, known)
    total = sum(lag.records for lag in lags)
    owners: dict[facts.TopicPartition, list[str]] = {}
    for member in described.members if described else ():
        for place in member.assigned:
            owners.setdefault(place, []).append(member.client_id)
    most = max((lag.records for lag in lags), default=0)
    samples = history.add(f"{access.bootstrap} {g.user} group {name}", total)
    return stream_template(
        "group.html",
        group=known,
        described=described,
        lags=[(lag, owners.get((lag.topic, lag.partition), []), bar(lag.records, most, "lag")) for lag in lags],
        total=total,
        chart=line(samples, "lag"),
        most=max(value for _, value in samples),
        seconds=int(samples[-1][0] - samples[0][0]),
        part=part_of(TOPIC),
    )
