"""``millstream transaction find-hanging``: transactions that are open in a partition and that no coordinator will end.

The command considers only those whose producer wrote nothing for longer than any transaction may take
(``--older-than``). For each of them it asks every coordinator. A broker that does not answer might be the one that ends
it, so the command fails then. It prints the arguments for ``millstream transaction abort``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import click

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table
from millstream.cli.transaction import shown_time, transaction_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.client import Cluster


class Hanging(NamedTuple):
    """A transaction that hangs in a partition. ``last_timestamp`` is that of the producer's last record, in ms."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp: int


@click.command("find-hanging")
@click.option("--topic", metavar="TOPIC", help="Only this topic; without it all topics, the broker's own included.")
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition of the topic.")
@click.option(
    "--older-than",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="Only transactions whose producer wrote nothing for so long; transaction.max.timeout.ms is 15 minutes.",
)
@as_json_option
@bootstrap_option
@timeout_option
def find_hanging(
    topic: str | None, partition: int | None, older_than: int, as_json: bool, bootstrap: str, timeout: float
) -> None:
    """Find transactions that are open in a partition and that no coordinator ends."""
    if partition is not None and topic is None:
        raise WrongUsage("--partition: needs --topic")
    before_ms = int(time.time() * 1000) - older_than * 60_000
    with transaction_cluster(bootstrap, timeout) as cluster:
        rows = list(_hanging(cluster, topic, partition, before_ms))
    if as_json:
        print_json([one._asdict() for one in rows])
    else:
        print_table(
            ["TOPIC", "#PARTITION", "#PRODUCER ID", "#EPOCH", "#START OFFSET", "LAST RECORD"],
            [(*one[:5], shown_time(one.last_timestamp)) for one in rows],
            empty="no transaction hangs",
        )


def _hanging(cluster: Cluster, topic: str | None, partition: int | None, before_ms: int) -> Iterator[Hanging]:
    from millstream.client import transactions

    for name, index in _places(cluster, topic, partition):
        for one in transactions.producers_of(cluster, name, index):
            is_old = one.current_txn_start_offset >= 0 and one.last_timestamp <= before_ms
            if is_old and transactions.coordinated(cluster, name, index, one.producer_id) is None:
                yield Hanging(
                    name,
                    index,
                    one.producer_id,
                    one.producer_epoch,
                    one.current_txn_start_offset,
                    one.last_timestamp,
                )


def _places(cluster: Cluster, topic: str | None, partition: int | None) -> list[tuple[str, int]]:
    from millstream.model.error_code import ErrorCode

    topics = cluster.metadata(None if topic is None else [topic]).topics
    if topic is not None and (topic not in topics or topics[topic].error_code != ErrorCode.NONE):
        raise CommandFailed(f"there is no topic '{topic}'; 'millstream topic list' shows what exists")
    places = [(name, index) for name, found in sorted(topics.items()) for index in sorted(found.partitions)]
    if partition is None:
        return places
    chosen = [place for place in places if place[1] == partition]
    if not chosen:
        raise WrongUsage(f"--partition: topic '{topic}' has no partition {partition}")
    return chosen
