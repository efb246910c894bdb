"""Pages about topics: the list, and one topic with its partitions, groups and properties."""

from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Response, abort, current_app, g, request, stream_template

from millstream.client.cluster import TOPIC_RESOURCE
from millstream.console import facts, showing
from millstream.console.access import Access
from millstream.console.charts import History, bar, line, rates
from millstream.console.cluster_pages import SOURCES
from millstream.console.kinds import TOPIC
from millstream.console.seeing import part_of
from millstream.errors import MillstreamError
from millstream.wire.messages.metadata import MetadataResponseTopic

topic_pages = Blueprint("topics", __name__)


def topic_of(access: Access, name: str) -> tuple[facts.Snapshot, MetadataResponseTopic]:
    """A topic of the cluster, and a snapshot that has it; 404 without it."""
    snapshot = access.snapshot_of(name)
    found = snapshot.topics.get(name)
    if found is None:
        abort(404, f"There is no topic {name!r}, or you may not describe it.")
    return snapshot, found


def leaderless(topic: MetadataResponseTopic) -> list[int]:
    """The partitions that cannot be read now."""
    return sorted(one.partition_index for one in topic.partitions if one.leader_id < 0)


def _name(topic: MetadataResponseTopic) -> str:
    return topic.name or ""


@topic_pages.get("/topics")
def topics() -> Response:
    """The list; the head of the page leaves before its rows are rendered."""
    access: Access = g.access
    snapshot = access.snapshot()
    orders: showing.Orders[MetadataResponseTopic] = {
        "name": _name,
        "partitions": lambda topic: (len(topic.partitions), _name(topic)),
        "replicas": lambda topic: (len(topic.partitions[0].replica_nodes) if topic.partitions else 0, _name(topic)),
    }
    internal = "internal" in request.args
    shown = [topic for topic in snapshot.topics.values() if internal or not topic.is_internal]
    page = showing.cut(shown, _name, orders)
    with access.cluster() as cluster:
        spans = facts.spans(cluster, snapshot, [_name(topic) for topic in page.rows])
    records: dict[str, int] = {}
    for (name, _), span in spans.items():
        records[name] = records.get(name, 0) + span.end - span.start
    return Response(
        stream_template(
            "topics.html",
            page=page,
            records=records,
            hidden=len(snapshot.topics) - len(shown),
            part=part_of(TOPIC),
        ),
        mimetype="text/html",
    )


@topic_pages.get("/topics/<name>")
def topic(name: str) -> Iterator[str]:
    """Partitions of a topic."""
    access: Access = g.access
    snapshot, found = topic_of(access, name)
    with access.cluster() as cluster:
        spans = facts.spans(cluster, snapshot, [name])
        try:
            sizes = facts.sizes(cluster, snapshot, name)
        except MillstreamError:
            sizes = dict[int, int]()  # a cluster may not allow it: then the column is empty
    history: History = current_app.extensions["console.history"]
    ends = float(sum(span.end for span in spans.values()))
    speeds = rates(history.add(f"{access.bootstrap} {g.user} topic {name}", ends))
    counts = {partition: span.end - span.start for (_, partition), span in spans.items()}
    most = max(counts.values(), default=0)
    bars = {partition: bar(count, most, f"{count} records") for partition, count in counts.items()}
    return stream_template(
        "topic.html",
        topic=found,
        tab="partitions",
        snapshot=snapshot,
        spans={partition: span for (_, partition), span in spans.items()},
        sizes=sizes,
        bars=bars,
        chart=line(speeds, "records a second"),
        most=max((speed for _, speed in speeds), default=0.0),
        seconds=int(speeds[-1][0] - speeds[0][0]) if speeds else 0,
        partitions=sorted(found.partitions, key=lambda partition: partition.partition_index),
    )


@topic_pages.get("/topics/<name>/groups")
def groups(name: str) -> Iterator[str]:
    """The groups that have committed offsets of a topic, with their lag there."""
    access: Access = g.access
    snapshot, found = topic_of(access, name)
    partitions = [partition.partition_index for partition in found.partitions]
    with access.cluster() as cluster:
        known = facts.list_groups(cluster, snapshot)
        offsets = facts.committed(cluster, list(known.values()), name, partitions)
        having = {group: of for group, of in offsets.items() if of}
        lags = facts.lags(cluster, having)
    rows: list[dict[str, Any]] = []
    for group, places in lags.items():
        total = sum(place.records for place in places)
        rows.append({"group": known[group], "lag": total, "partitions": len(places)})
    rows.sort(key=lambda row: -row["lag"])
    most = max((row["lag"] for row in rows), default=0)
    for row in rows:
        row["bar"] = bar(row["lag"], most, f"{row['lag']} records behind")
    return stream_template("topic_groups.html", topic=found, tab="groups", rows=rows)


@topic_pages.get("/topics/<name>/properties")
def properties(name: str) -> Iterator[str]:
    """The properties of a topic, with where each value comes from."""
    access: Access = g.access
    _, found = topic_of(access, name)
    with access.cluster() as cluster:
        configs = facts.configs(cluster, TOPIC_RESOURCE, name)
    configs.sort(key=lambda config: (config.config_source != 1, config.name))
    return stream_template("topic_properties.html", topic=found, tab="properties", configs=configs, sources=SOURCES)
