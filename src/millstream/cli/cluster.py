"""``millstream cluster``: the health of the cluster and its brokers.

Any live broker answers, with its view of the others (``/v1/cluster`` of its HTTP port).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from millstream.cli.broker_http import ask_http, http_url
from millstream.cli.connect import admin_client
from millstream.cli.failure import CommandFailed
from millstream.cli.full_disks import disk_full, full_disks
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_table
from millstream.config.forms import human_size

_ASK_S = 3.0
"""Time limit for one of several brokers."""

_NAMED = 20
"""Maximum number of partitions in the table."""


@click.command("health")
@as_json_option
@bootstrap_option
@timeout_option
def health(as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show whether the cluster is healthy, with reasons and remedies; exit code 1 if it is not."""
    status = cluster_status(bootstrap, timeout)
    others = _others(status, timeout)
    status["installs"] = _installs(status, others)
    status["shared"] = _shared(status, others)
    status["full_disks"] = full = _full_disks(status, bootstrap)
    if full:
        status["healthy"] = False
        status["problems"] = [*status["problems"], disk_full(full)]
    if as_json:
        print_json(status)
    else:
        _show(status)
    if not status["healthy"]:
        raise click.exceptions.Exit(1)


def _show(status: dict[str, Any]) -> None:
    brokers = status["brokers"]
    alive = sum(broker["alive"] for broker in brokers)
    print_facts(
        [
            ("cluster", status["cluster_id"]),
            ("health", "healthy" if status["healthy"] else "not healthy"),
            ("controller", status["controller"]),
            ("brokers", f"{alive} of {len(brokers)} alive" if brokers else "1, a single broker"),
            ("topics", status["topics"]),
            ("partitions", status["partitions"]),
            ("leaderless", status["leaderless_count"]),
            *([("leader not known yet", status["not_heard_count"])] if status.get("not_heard_count") else []),
            ("under-replicated", status["under_replicated_count"]),
            ("moving", status.get("moves_count", 0)),
            ("take-overs", status.get("take_overs", 0)),
            ("restored", status.get("restored_partitions", 0)),
        ]
    )
    if status["problems"]:
        emit("\n" + "".join(f"- {problem}\n" for problem in status["problems"]))
    for kind in ("leaderless", "under_replicated"):
        named = status[kind][:_NAMED]
        if named:
            emit("\n")
            what = kind.replace("_", "-").upper()
            print_table([what, "#PARTITION"], [(each["topic"], each["partition"]) for each in named])
            left_out = status[f"{kind}_count"] - len(named)
            if left_out:
                emit(f"and {left_out} more\n")
    if status.get("moves"):
        emit("\n")
        print_table(
            ["MOVING", "#PARTITION", "REPLICAS", "TARGET"],
            [
                (one["topic"], one["partition"], _nodes(one["replicas"]), _nodes(one["target"]))
                for one in status["moves"][:_NAMED]
            ],
        )

    if status["installs"]:
        emit("\n")
        print_table(
            ["RECEIVING FILES", "#BROKER", "#FROM", "#OFFSET", "#OF", "#PERCENT"],
            [
                (one["log"], one["broker"], one["source"], one["next_offset"], one["end_offset"], _percent(one))
                for one in status["installs"][:_NAMED]
            ],
        )
    if status["shared"]:
        emit("\n")
        print_table(
            ["SHARED TOPICS", "#PARTITIONS", "#NOT UPLOADED", "#FOR SECONDS"],
            [
                (
                    f"broker {one['broker']}",
                    one["partitions"],
                    human_size(one["uncommitted_bytes"]),
                    f"{one['upload_lag_ms'] / 1000:.1f}",
                )
                for one in status["shared"]
            ],
        )


def _full_disks(status: dict[str, Any], bootstrap: str) -> list[int]:
    """The brokers that take no records. Others lead their partitions, so nothing else shows it."""
    alive = [broker["id"] for broker in status["brokers"] if broker["alive"]]
    try:
        return full_disks(admin_client(bootstrap), alive or [status["node_id"]])
    except CommandFailed:  # what it says of the cluster is worth more
        return []


def _others(status: dict[str, Any], timeout_s: float) -> dict[int, dict[str, Any]]:
    """What the other brokers tell, by id, where they know something that matters: each knows its own replicas."""
    if not (status["under_replicated_count"] or status.get("shared_topics")):
        return {}
    found: dict[int, dict[str, Any]] = {}
    for broker in status["brokers"]:
        if broker["alive"] and broker["id"] != status["node_id"]:
            with suppress(CommandFailed):  # that it is not reached is no news of the cluster
                found[broker["id"]] = cluster_status(broker["address"], min(timeout_s, _ASK_S))
    return found


def _installs(status: dict[str, Any], others: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The logs that brokers are receiving as files."""
    return [
        {"broker": node, **one}
        for node, theirs in {status["node_id"]: status, **others}.items()
        for one in theirs.get("installs", ())
    ]


def _shared(status: dict[str, Any], others: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of shared topics that brokers have not uploaded yet."""
    return [
        {"broker": node, **theirs["shared"]}
        for node, theirs in sorted({status["node_id"]: status, **others}.items())
        if theirs.get("shared", {}).get("partitions")
    ]


def _percent(install: dict[str, Any]) -> int:
    first, end = install["first_offset"], install["end_offset"]
    return 100 * (install["next_offset"] - first) // max(end - first, 1)


def _nodes(replicas: list[int]) -> str:
    return ",".join(map(str, replicas))


@click.command("brokers")
@as_json_option
@bootstrap_option
@timeout_option
def brokers(as_json: bool, bootstrap: str, timeout: float) -> None:
    """List the brokers of the cluster, those that are not alive included."""
    status = cluster_status(bootstrap, timeout)
    if as_json:
        print_json(status["brokers"])
        return
    print_table(
        ["#BROKER", "STATE", "ADDRESS", "PEERS", "RACK", "#SHARDS", "#LEADERS", "#REPLICAS", "RELEASE"],
        [
            (
                f"{broker['id']}*" if broker["id"] == status["controller"] else broker["id"],
                ("alive" if broker["alive"] else "lost" if broker.get("lost") else "not alive")
                + ("" if broker.get("mode", "serving") == "serving" else f", {broker['mode']}"),
                *(broker[name] for name in ("address", "peer", "rack", "shards", "leaders", "replicas", "release")),
            )
            for broker in status["brokers"]
        ],
        empty=f"{bootstrap} is a single broker; 'millstream dev cluster -n 3 --data DIR' starts a cluster",
    )
    if status["brokers"] and status["controller"] is not None:
        emit("* the controller\n")


def cluster_status(bootstrap: str, timeout_s: float) -> dict[str, Any]:
    """The view of the first broker that answers.

    Raises:
        CommandFailed: no broker answers, or it is not Millstream.
    """
    url = http_url(bootstrap, timeout_s, "/v1/cluster", "does not say how its cluster is")
    return ask_http(url, timeout_s)
