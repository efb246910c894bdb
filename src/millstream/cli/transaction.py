"""``millstream transaction``: list and describe transactional ids, and abort a transaction that hangs in a partition.

A transaction hangs where a partition holds it open and no coordinator will end it; read_committed consumers stop there.
``abort`` writes the marker that is missing, in that partition alone. What a coordinator still ends is refused, because
an abort in one of its partitions would break a transaction that is committed in the others. Whether that is so is
asked between two looks at the partition that must find the same transaction. A broker that does not answer might be the
coordinator, so nothing is aborted then. The command shows what it found; only ``--execute`` aborts it.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from millstream.cli import identity
from millstream.cli.connect import reached
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_table, remark

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.client import Cluster
    from millstream.wire.messages.describe_producers import ActiveProducer

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")


@click.command("list")
@click.option(
    "--state",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help=f"Only transactional ids in this state: {', '.join(STATES)}; may be repeated.",
)
@as_json_option
@bootstrap_option
@timeout_option
def list_transactions(state: tuple[str, ...], as_json: bool, bootstrap: str, timeout: float) -> None:
    """List transactional ids, their states and coordinators."""
    from millstream.client import transactions

    with transaction_cluster(bootstrap, timeout) as cluster:
        rows = transactions.list_transactions(cluster, state)
    if as_json:
        print_json([one._asdict() for one in rows])
    else:
        print_table(
            ["TRANSACTIONAL ID", "STATE", "#COORDINATOR", "#PRODUCER ID"],
            rows,
            empty="there are no such transactional ids" if state else "there are no transactional ids",
        )


@click.command("describe")
@click.argument("name", metavar="ID", help="A transactional id.")
@as_json_option
@bootstrap_option
@timeout_option
def describe(name: str, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show a transactional id: its producer, its transaction, and the partitions that wait for the end of it."""
    from millstream.client import transactions
    from millstream.errors import Rejected
    from millstream.model.error_code import ErrorCode

    with transaction_cluster(bootstrap, timeout) as cluster:
        try:
            found = transactions.describe_transaction(cluster, name)
        except Rejected as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            raise CommandFailed(
                f"there is no transactional id '{name}'; 'millstream transaction list' shows those that exist",
                error.code.name,
            ) from None
    if as_json:
        document: dict[str, Any] = found._asdict()
        topic_partitions = [
            {"topic": topic, "partition": partition} for topic, partition in document.pop("topic_partitions")
        ]
        print_json(
            document | {"start_ms": found.start_ms if found.start_ms >= 0 else None, "partitions": topic_partitions}
        )
        return
    print_facts(
        [
            ("transactional id", found.transactional_id),
            ("state", found.state),
            ("coordinator", found.coordinator),
            ("producer id", found.producer_id),
            ("producer epoch", found.producer_epoch),
            ("timeout", f"{found.timeout_ms} ms"),
            ("started", shown_time(found.start_ms)),
        ]
    )
    if found.topic_partitions:
        emit("\n")
        print_table(["TOPIC", "#PARTITION"], found.topic_partitions)


@click.command("abort")
@click.option("--topic", required=True, metavar="TOPIC", help="The topic with the transaction that hangs.")
@click.option("--partition", "-p", required=True, type=click.IntRange(min=0), metavar="N", help="Its partition.")
@click.option("--producer-id", required=True, type=click.IntRange(min=0), metavar="N", help="The producer's id.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@as_json_option
@bootstrap_option
@timeout_option
def abort(
    topic: str, partition: int, producer_id: int, execute: bool, as_json: bool, bootstrap: str, timeout: float
) -> None:
    """Abort a transaction that no coordinator ends, in one partition. Only shows it without --execute."""
    from millstream.client import transactions

    with transaction_cluster(bootstrap, timeout) as cluster:
        _check_exists(cluster, topic, partition)
        before = _open_transaction(cluster, topic, partition, producer_id)
        owner = transactions.coordinated(cluster, topic, partition, producer_id)
        if owner is not None:
            raise CommandFailed(
                f"the transaction of producer {producer_id} does not hang: transactional id "
                f"'{owner.transactional_id}' is {owner.state} and its coordinator ends it (an ongoing one after "
                f"its timeout of {owner.timeout_ms} ms); nothing was aborted"
            )
        found = _open_transaction(cluster, topic, partition, producer_id)
        if found.current_txn_start_offset != before.current_txn_start_offset:
            raise CommandFailed(
                f"producer {producer_id} has gone on to another transaction, so that none hangs; nothing was aborted"
            )
        if execute:
            transactions.abort_in(cluster, topic, partition, found)
    _show(topic, partition, found, executed=execute, as_json=as_json)


def _show(topic: str, partition: int, found: ActiveProducer, *, executed: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "partition": partition,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "coordinator_epoch": found.coordinator_epoch,
                "start_offset": found.current_txn_start_offset,
                "last_timestamp": found.last_timestamp,
                "aborted": executed,
            }
        )
        return
    print_facts(
        [
            ("topic", topic),
            ("partition", partition),
            ("producer id", found.producer_id),
            ("producer epoch", found.producer_epoch),
            ("coordinator epoch", found.coordinator_epoch),
            ("start offset", found.current_txn_start_offset),
            ("last record", shown_time(found.last_timestamp)),
        ]
    )
    remark("aborted" if executed else "nothing was aborted, --execute does it")


def _check_exists(cluster: Cluster, topic: str, partition: int) -> None:
    from millstream.model.error_code import ErrorCode

    found = cluster.metadata([topic]).topics.get(topic)
    if found is None or found.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
        raise CommandFailed(f"there is no topic '{topic}'; 'millstream topic list' shows what exists")
    if found.partitions and partition not in found.partitions:
        raise WrongUsage(
            f"--partition: topic '{topic}' has no partition {partition}, its last one is {max(found.partitions)}"
        )


def _open_transaction(cluster: Cluster, topic: str, partition: int, producer_id: int) -> ActiveProducer:
    """The producer with a transaction that is open in the partition."""
    from millstream.client import transactions

    opened = transactions.open_in(cluster, topic, partition)
    if producer_id not in opened:
        others = f"those of {', '.join(map(str, sorted(opened)))} are open there" if opened else "none is open there"
        raise CommandFailed(
            f"producer {producer_id} has no open transaction in partition {partition} of topic '{topic}'; {others}"
        )
    return opened[producer_id]


@contextmanager
def transaction_cluster(bootstrap: str, timeout_s: float) -> Generator[Cluster]:
    """The cluster, through our own client, as confluent-kafka has no calls for transactions of others."""
    from millstream.client import Cluster
    from millstream.errors import MillstreamError, OutcomeUnknown

    try:
        with Cluster(
            reached(bootstrap), client_id="millstream-cli", timeout_s=timeout_s, security=identity.security()
        ) as cluster:
            yield cluster
    except OutcomeUnknown as error:
        raise CommandFailed(
            f"{error.message}; it may have been done, the same command without --execute shows whether it was",
            error.code.name,
        ) from None
    except MillstreamError as error:
        raise CommandFailed(error.message, error.code.name) from None


def shown_time(timestamp_ms: int) -> str | None:
    """A timestamp for people; None without one."""
    if timestamp_ms < 0:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
