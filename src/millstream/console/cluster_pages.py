"""Pages about the cluster as a whole: overview, brokers, transactions, settings."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from flask import Blueprint, abort, g, request, stream_template

from millstream.client.cluster import BROKER_RESOURCE
from millstream.client.transactions import ListedTransaction, describe_transaction, list_transactions
from millstream.console import facts, showing
from millstream.console.access import Access
from millstream.console.charts import bar
from millstream.console.kinds import GROUP, TOPIC, TRANSACTIONAL_ID
from millstream.console.seeing import part_of
from millstream.errors import MillstreamError
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsResult

SOURCES: Final = {1: "topic", 2: "broker", 3: "all brokers", 4: "start", 5: "default", 6: "logger"}
"""Where the value of a property comes from (KIP-226)."""
_TROUBLE_MAX: Final = 20

cluster_pages = Blueprint("cluster", __name__)


class BrokerRow(NamedTuple):
    """A broker of the list. ``alive`` is whether it is among those that the cluster names."""

    node_id: int
    address: str
    rack: str | None
    alive: bool
    controller: bool
    leaders: int
    replicas: int
    share: Any


@cluster_pages.get("/")
def overview() -> Iterator[str]:
    """How the cluster is."""
    access: Access = g.access
    snapshot = access.snapshot()
    refused = ""
    groups: dict[str, facts.Group] = {}
    with access.cluster() as cluster:
        try:
            groups = facts.list_groups(cluster, snapshot)
        except MillstreamError as error:
            refused = error.message
    found = facts.trouble(snapshot)
    states: dict[str, int] = {}
    for group in groups.values():
        states[group.state or "unknown"] = states.get(group.state or "unknown", 0) + 1
    own = [topic for topic in snapshot.topics.values() if not topic.is_internal]
    largest = sorted(own, key=lambda topic: -len(topic.partitions))[:8]
    return stream_template(
        "overview.html",
        snapshot=snapshot,
        brokers=_broker_rows(snapshot),
        leaderless=found.leaderless[:_TROUBLE_MAX],
        behind=found.behind[:_TROUBLE_MAX],
        leaderless_count=len(found.leaderless),
        behind_count=len(found.behind),
        groups=groups,
        states=sorted(states.items(), key=lambda entry: -entry[1]),
        largest=largest,
        refused=refused,
        part=part_of(TOPIC),
        group_part=part_of(GROUP),
    )


def _broker_rows(snapshot: facts.Snapshot) -> list[BrokerRow]:
    loads = facts.loads(snapshot)
    most = max((load.replicas for load in loads.values()), default=0)
    rows: list[BrokerRow] = []
    for node_id, load in loads.items():
        broker = snapshot.brokers.get(node_id)
        share = bar(load.replicas, most, f"{load.replicas} replicas")
        address = f"{broker.host}:{broker.port}" if broker else "not alive"
        rack = broker.rack if broker else None
        rows.append(
            BrokerRow(
                node_id,
                address,
                rack,
                broker is not None,
                node_id == snapshot.controller_id,
                load.leaders,
                load.replicas,
                share,
            )
        )
    return rows


@cluster_pages.get("/brokers")
def brokers() -> Iterator[str]:
    """All brokers with their disks."""
    access: Access = g.access
    snapshot = access.snapshot()
    refused = ""
    disks: dict[int, DescribeLogDirsResult] = {}
    bars: dict[int, Any] = {}
    with access.cluster() as cluster:
        for node_id in snapshot.brokers:
            try:
                directories = facts.log_dirs(cluster, node_id, {})
            except MillstreamError as error:
                refused = error.message
                continue
            sized = [directory for directory in directories if directory.total_bytes > 0]
            if sized:
                total = sum(directory.total_bytes for directory in sized)
                usable = sum(directory.usable_bytes for directory in sized)
                disks[node_id] = DescribeLogDirsResult(total_bytes=total, usable_bytes=usable)
                bars[node_id] = bar(total - usable, total, f"{showing.size(total - usable)} used")
    rows = _broker_rows(snapshot)
    return stream_template("brokers.html", snapshot=snapshot, rows=rows, disks=disks, bars=bars, refused=refused)


@cluster_pages.get("/brokers/<int:node_id>")
def broker(node_id: int) -> Iterator[str]:
    """One broker: directories, and its properties."""
    access: Access = g.access
    snapshot = access.snapshot()
    if node_id not in snapshot.brokers:
        abort(404, f"Broker {node_id} is not alive, or not a broker of this cluster.")
    with access.cluster() as cluster:
        try:
            directories, refused = facts.log_dirs(cluster, node_id, {}), ""
        except MillstreamError as error:
            directories, refused = [], error.message
    row = next(row for row in _broker_rows(snapshot) if row.node_id == node_id)
    return stream_template("broker.html", row=row, directories=directories, refused=refused)


@cluster_pages.get("/settings")
def settings() -> Iterator[str]:
    """The properties of a broker, with where each value comes from."""
    access: Access = g.access
    snapshot = access.snapshot()
    chosen = showing.number_of(request.args.get("broker"), next(iter(snapshot.brokers), -1))
    if chosen not in snapshot.brokers:
        abort(404, f"Broker {chosen} is not alive, or not a broker of this cluster.")
    with access.cluster() as cluster:
        found = facts.configs(cluster, BROKER_RESOURCE, str(chosen), node_id=chosen)
    only_set = request.args.get("set") == "1"
    shown = [config for config in found if not only_set or config.config_source not in (5, -1)]
    page = showing.cut(shown, lambda config: config.name, {"name": lambda config: config.name})
    return stream_template(
        "settings.html", snapshot=snapshot, chosen=chosen, page=page, sources=SOURCES, only_set=only_set
    )


@cluster_pages.get("/transactions")
def transactions() -> Iterator[str]:
    """The transactional ids of all coordinators."""
    access: Access = g.access
    with access.cluster() as cluster:
        found = list_transactions(cluster)
    orders: showing.Orders[ListedTransaction] = {
        "name": lambda one: one.transactional_id,
        "state": lambda one: (one.state, one.transactional_id),
    }
    page = showing.cut(found, lambda one: f"{one.transactional_id} {one.state}", orders)
    return stream_template("transactions.html", page=page, part=part_of(TRANSACTIONAL_ID))


@cluster_pages.get("/transaction")
def transaction() -> Iterator[str]:
    """One transactional id with the partitions of its open transaction."""
    access: Access = g.access
    with access.cluster() as cluster:
        found = describe_transaction(cluster, request.args.get("id", ""))
    return stream_template("transaction.html", one=found)
