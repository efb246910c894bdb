"""``millstream status``: whether a cluster serves, its brokers, and its problems.

Asks the brokers by Kafka's protocol, so it works against any Kafka-compatible cluster. The exit code is 1 if a
partition has no leader, or if a broker's disk is full, which Millstream's brokers say (``full_disks``). A partition
that lacks replicas is shown and is no failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from millstream.cli.connect import admin_client, answer, explained
from millstream.cli.full_disks import disk_full, full_disks
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_table, remark

if TYPE_CHECKING:
    from collections.abc import Iterable

SHOWN_MAX = 10
"""Partitions that are named in each remark."""


class Partitions(NamedTuple):
    """Partitions of all topics: their number, those without a leader, and those with fewer replicas in sync than they
    have. A partition is named ``topic/number``.
    """

    total: int
    without_leader: list[str]
    short_of_replicas: list[str]


@click.command("status")
@as_json_option
@bootstrap_option
@timeout_option
def status(as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show whether a cluster serves: brokers, full disks, partitions without a leader or short of replicas."""
    client = admin_client(bootstrap)
    with explained("cluster", bootstrap):
        cluster = answer(client.describe_cluster(request_timeout=timeout), "cluster", bootstrap, timeout + 1)
        topics = client.list_topics(timeout=timeout).topics
    brokers = sorted((node.id, f"{node.host}:{node.port}", node.rack) for node in cluster.nodes)
    controller = None if cluster.controller is None else cluster.controller.id
    partitions = count_partitions(topics.values())
    full = full_disks(client, (number for number, _, _ in brokers))
    internal = sum(1 for name in topics if name.startswith("__"))
    if as_json:
        print_json(
            {
                "cluster_id": cluster.cluster_id,
                "controller": controller,
                "brokers": [{"id": number, "address": address, "rack": rack} for number, address, rack in brokers],
                "topics": len(topics) - internal,
                "internal_topics": internal,
                "partitions": partitions.total,
                "without_leader": partitions.without_leader,
                "short_of_replicas": partitions.short_of_replicas,
                "full_disks": full,
            }
        )
    else:
        print_facts(
            [
                ("cluster", cluster.cluster_id),
                ("controller", controller),
                ("topics", f"{len(topics) - internal:,} and {internal} internal"),
                ("partitions", f"{partitions.total:,}"),
                ("without a leader", len(partitions.without_leader) or "none"),
                ("short of replicas", len(partitions.short_of_replicas) or "none"),
            ]
        )
        emit("\n")
        print_table(["#BROKER", "ADDRESS", "RACK"], brokers)
        _name("without a leader", partitions.without_leader)
        _name("short of replicas", partitions.short_of_replicas)
        if full:
            remark(disk_full(full))
    if partitions.without_leader or full:
        raise click.exceptions.Exit(1)


def count_partitions(topics: Iterable[Any]) -> Partitions:
    """The partitions of topics as confluent-kafka lists them."""
    total, without_leader, short = 0, [], []
    for topic in topics:
        total += len(topic.partitions)
        for number, partition in sorted(topic.partitions.items()):
            if partition.leader < 0:
                without_leader.append(f"{topic.topic}/{number}")
            elif len(partition.isrs) < len(partition.replicas):
                short.append(f"{topic.topic}/{number}")
    return Partitions(total, without_leader, short)


def _name(what: str, partitions: list[str]) -> None:
    if partitions:
        more = len(partitions) - SHOWN_MAX
        others = f" and {more} more" if more > 0 else ""
        remark(f"{what}: {', '.join(partitions[:SHOWN_MAX])}{others}")
