"""``millstream topic``: create, list, describe, alter, delete.

Sizes and times of topic properties may be written as ``512MiB`` or ``7d``; they are sent in Kafka's plain spelling.
Properties that only another broker knows are passed on as written, and that broker judges them.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.completion import complete_topics
from millstream.cli.config import SOURCES
from millstream.cli.connect import admin_client, answer, explained, fates, found_at, offsets_at, report_fates
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_table, remark
from millstream.config.topic_properties import TOPIC_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.cli.confluent import AdminClient
    from millstream.cli.connect import FoundOffset


_MOVE_S = 3600.0
"""How long a command waits for replicas that move."""

name_argument = click.argument("name", metavar="TOPIC", shell_complete=complete_topics, help="Name of the topic.")
names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="TOPIC...", help="Names of topics.", shell_complete=complete_topics
)
config_option = click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="A topic property, such as retention.ms=7d; may be repeated."
)


@click.command("create")
@names_argument
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(min=-1),
    default=-1,
    metavar="N",
    help="Number of partitions; -1 leaves it to the broker.",
)
@click.option(
    "--replication",
    "--replication-factor",
    "-r",
    "replication_factor",
    type=click.IntRange(min=-1),
    default=-1,
    metavar="N",
    help="Number of replicas; -1 leaves it to the broker.",
)
@config_option
@click.option("--if-not-exists", is_flag=True, help="Do not complain about topics that exist.")
@as_json_option
@bootstrap_option
@timeout_option
def create(
    names: tuple[str, ...],
    partitions: int,
    replication_factor: int,
    config: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Create topics."""
    from millstream.cli.confluent import NewTopic

    properties = dict(plain_property(text) for text in config or ())
    wanted = [
        NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=properties)
        for name in names
    ]
    client = admin_client(bootstrap)
    with explained(_topic(names[0]), bootstrap):
        futures = client.create_topics(wanted, request_timeout=timeout, operation_timeout=timeout)
    tolerated = "TOPIC_ALREADY_EXISTS" if if_not_exists else ""
    found = fates(futures, "topic", tolerated, bootstrap, timeout + 1)
    report_fates(found, "topic", "created", "kept existing", as_json=as_json)


@click.command("list")
@click.option("--internal", is_flag=True, help="Show internal topics too.")
@as_json_option
@bootstrap_option
@timeout_option
def list_topics(internal: bool, as_json: bool, bootstrap: str, timeout: float) -> None:
    """List topics with their partitions and replicas."""
    with explained("topics", bootstrap):
        topics = admin_client(bootstrap).list_topics(timeout=timeout).topics
    rows = [
        (
            name,
            len(topic.partitions),
            max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
        )
        for name, topic in sorted(topics.items())
        if internal or not name.startswith("__")
    ]
    if as_json:
        print_json(
            [{"topic": name, "partitions": count, "replication_factor": replicas} for name, count, replicas in rows]
        )
    else:
        print_table(
            ["TOPIC", "#PARTITIONS", "#REPLICAS"],
            rows,
            empty="there are no topics; 'millstream topic create NAME' makes one",
        )


@click.command("describe")
@name_argument
@click.option("--all", "all_config", is_flag=True, help="Show properties that have their default too.")
@as_json_option
@bootstrap_option
@timeout_option
def describe(name: str, all_config: bool, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show the partitions of a topic with their offsets, and its properties."""
    client = admin_client(bootstrap)
    document = describe_topic_document(client, name, bootstrap, timeout)
    values = {entry["name"]: entry["value"] for entry in document["config"]}
    if values.get("table.mode", "off") != "off":
        document["table"] = _table_of(name, bootstrap, timeout)
    if not all_config:
        document["config"] = [entry for entry in document["config"] if entry["source"] != "default"]
    if as_json:
        print_json(document)
        return
    records = sum(_records(partition) or 0 for partition in document["partitions"])
    damaged = [partition["partition"] for partition in document["partitions"] if _records(partition) is None]
    print_facts(
        [
            ("topic", name),
            ("id", document["id"]),
            ("partitions", len(document["partitions"])),
            ("records", f"{records:,}"),
        ]
    )
    emit("\n")
    columns = ["#PARTITION", "#LEADER", "#EPOCH", "REPLICAS", "IN SYNC", "#START", "#END", "#RECORDS"]
    print_table(columns, [_partition_row(partition) for partition in document["partitions"]])
    if damaged:
        remark(
            f"not served: {', '.join(map(str, damaged))}; 'millstream topic repair {name}:{damaged[0]}' says why, and "
            "what to do"
        )
    if document["config"]:
        emit("\n")
        print_table(["PROPERTY", "VALUE", "SOURCE"], [tuple(entry.values()) for entry in document["config"]])
    if "table" in document:
        emit("\n")
        print_facts(_table_facts(document["table"]))


@click.command("alter")
@name_argument
@click.option("--partitions", "-p", type=click.IntRange(min=1), metavar="N", help="New, larger number of partitions.")
@click.option(
    "--replication",
    "-r",
    "replication_factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="New number of replicas; waits until they are there.",
)
@config_option
@click.option("--unset", multiple=True, metavar="NAME", help="Give a property its default back; may be repeated.")
@click.option("--execute", is_flag=True, help="Do it where replicas become fewer; without this it is only shown.")
@as_json_option
@bootstrap_option
@timeout_option
def alter(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[str, ...],
    unset: tuple[str, ...],
    execute: bool,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Change properties of a topic or the number of its replicas, or add partitions. Fewer replicas need --execute."""
    if partitions is None and replication_factor is None and not config and not unset:
        raise WrongUsage("nothing to change; give --partitions N, --replication N, --config NAME=VALUE or --unset NAME")
    changes = dict(plain_property(text) for text in config or ())
    client = admin_client(bootstrap)
    if replication_factor is not None and not execute:
        from millstream.cli.cluster_changes import replicas_of

        most = max(map(len, replicas_of(name, bootstrap).values()))
        if replication_factor < most:
            remark(
                f"nothing was changed: '{name}' would have {replication_factor} of {most} replicas; --execute does it"
            )
            return
    if unset:
        _check_known(client, name, unset, bootstrap, timeout)
    if changes or unset:
        _alter_config(client, name, changes, list(unset), bootstrap, timeout)
    if partitions is not None:
        _add_partitions(client, name, partitions, bootstrap, timeout)
    if replication_factor is not None:
        from millstream.cli.cluster_changes import change_cluster, wait_for_moves

        change_cluster(bootstrap, {"type": "set_replication_factor", "topic": name, "factor": replication_factor})
        wait_for_moves(name, bootstrap, _MOVE_S)
    if as_json:
        print_json(
            {
                "topic": name,
                "partitions": partitions,
                "replication": replication_factor,
                "set": changes,
                "unset": list(unset),
            }
        )
    else:
        remark(f"changed topic '{name}'")


@click.command("delete")
@names_argument
@click.option("--if-exists", is_flag=True, help="Do not complain about topics that do not exist.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@as_json_option
@bootstrap_option
@timeout_option
def delete(
    names: tuple[str, ...], if_exists: bool, execute: bool, as_json: bool, bootstrap: str, timeout: float
) -> None:
    """Delete topics and all their records permanently. Only shows them without --execute."""
    client = admin_client(bootstrap)
    if not execute:
        _show_what_goes(client, names, if_exists, as_json, bootstrap, timeout)
        return
    with explained(_topic(names[0]), bootstrap):
        futures = client.delete_topics(list(names), request_timeout=timeout, operation_timeout=timeout)
    tolerated = "UNKNOWN_TOPIC_OR_PART" if if_exists else ""
    found = fates(futures, "topic", tolerated, bootstrap, timeout + 1)
    report_fates(found, "topic", "deleted", "there was no", as_json=as_json)


def _show_what_goes(
    client: AdminClient, names: tuple[str, ...], if_exists: bool, as_json: bool, bootstrap: str, timeout: float
) -> None:
    """The topics that ``delete`` would delete, with their records. Raises CommandFailed for one that is missing."""
    rows: list[tuple[str, int, int]] = []
    for name in names:
        try:
            partitions = describe_topic_document(client, name, bootstrap, timeout)["partitions"]
        except CommandFailed as failure:
            if if_exists and failure.code == "UNKNOWN_TOPIC_OR_PART":
                continue
            raise
        rows.append((name, len(partitions), sum(_records(partition) or 0 for partition in partitions)))
    if as_json:
        print_json([dict(zip(("topic", "partitions", "records"), row, strict=True)) for row in rows])
        return
    print_table(["TOPIC", "#PARTITIONS", "#RECORDS"], rows, empty="none of these topics exists")
    remark("nothing was deleted, --execute does it")


def plain_property(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` as a person writes it → name and Kafka's plain spelling of the value."""
    name, separator, value = text.partition("=")
    name = name.strip()
    if not separator or not name:
        raise WrongUsage(f"--config: {text!r} is not valid, expected NAME=VALUE, such as retention.ms=7d")
    declaration = TOPIC_PROPERTIES.get(name)
    if declaration is None:
        return name, value
    return name, declaration.write(declaration.read(value)) or ""


def describe_topic_document(client: AdminClient, name: str, bootstrap: str, timeout: float) -> dict[str, Any]:
    """A topic's identity, partitions with offsets, and properties, as ``describe --json`` prints them."""
    from millstream.cli.confluent import ConfigResource, OffsetSpec, ResourceType, TopicCollection, TopicPartition

    what = _topic(name)
    with explained(what, bootstrap):
        futures = client.describe_topics(TopicCollection([name]), request_timeout=timeout)
        resource = ConfigResource(ResourceType.TOPIC, name)
        config_future = next(iter(client.describe_configs([resource], request_timeout=timeout).values()))
    topic = answer(futures[name], what, bootstrap, timeout + 1)
    led = [partition for partition in topic.partitions if partition.leader is not None]
    keys = [TopicPartition(name, partition.id) for partition in led]
    starts = offsets_at(client, dict.fromkeys(keys, OffsetSpec.earliest()), what, bootstrap, timeout, served_only=True)
    ends = found_at(client, dict.fromkeys(keys, OffsetSpec.latest()), what, bootstrap, timeout, served_only=True)
    config = answer(config_future, what, bootstrap, timeout + 1)
    return {
        "topic": name,
        "id": str(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": [
            {
                "partition": partition.id,
                "leader": None if partition.leader is None else partition.leader.id,
                "leader_epoch": _of(ends.get((name, partition.id)), "leader_epoch"),
                "replicas": [node.id for node in partition.replicas],
                "in_sync": [node.id for node in partition.isr],
                "start_offset": starts.get((name, partition.id)),
                "end_offset": _of(ends.get((name, partition.id)), "offset"),
            }
            for partition in sorted(topic.partitions, key=lambda partition: partition.id)
        ],
        "config": [
            {"name": entry.name, "value": entry.value, "source": SOURCES.get(int(entry.source), "unknown")}
            for entry in sorted(config.values(), key=lambda entry: entry.name)
        ],
    }


def _table_of(name: str, bootstrap: str, timeout: float) -> dict[str, Any]:
    """How the table of a topic is, as ``/v1/pipelines`` has it."""
    from millstream.client import Cluster
    from millstream.client.served_tables import ServedTables
    from millstream.errors import MillstreamError

    try:
        with Cluster(bootstrap, client_id="millstream-cli", timeout_s=timeout) as cluster:
            return ServedTables(cluster).one(name)
    except MillstreamError as error:
        raise CommandFailed(error.message) from None


def _table_facts(table: Mapping[str, Any]) -> list[tuple[str, object]]:
    """For people: what becomes of the topic's table, and which process writes it."""
    facts: list[tuple[str, object]] = []
    if "rows" in table:
        facts.append(
            ("table", f"{table['rows']:,} rows, {table['rejected']:,} rejected, version {table['version'] or '-'}")
        )
    if table["lag"] is not None:
        facts.append(("lag", f"{table['lag']:,} records"))
    if not table["served"]:
        facts.append(("state", "no 'millstream pipeline serve' runs, so nothing is written to the table"))
    elif table.get("reason"):
        facts.append(("state", f"{table['state']}: {table['reason']}"))
    else:
        facts.append(("state", f"{table.get('state', 'starting')}, by {table.get('runner', 'a process')}"))
    return facts


def _of(found: FoundOffset | None, field: str) -> int | None:
    return None if found is None else getattr(found, field)


def _partition_row(partition: dict[str, Any]) -> tuple[object, ...]:
    start, end, records = partition["start_offset"], partition["end_offset"], _records(partition)
    replicas, in_sync = (",".join(map(str, partition[name])) for name in ("replicas", "in_sync"))
    leader, epoch = partition["leader"], partition["leader_epoch"]
    return partition["partition"], leader, epoch, replicas, in_sync, start, end, records


def _records(partition: dict[str, Any]) -> int | None:
    """None for a partition that is not served."""
    start, end = partition["start_offset"], partition["end_offset"]
    return None if start is None or end is None else end - start


def _check_known(client: AdminClient, name: str, unset: Sequence[str], bootstrap: str, timeout: float) -> None:
    """Refuse names that the broker does not show: Kafka takes the removal of any name without a word."""
    known = _config(client, name, bootstrap, timeout)
    for text in unset:
        if text not in known:
            near = get_close_matches(text, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise WrongUsage(f"--unset: {_topic(name)} has no property {text!r}{hint}")


def _config(client: AdminClient, name: str, bootstrap: str, timeout: float) -> Mapping[str, Any]:
    """The properties of a topic by name."""
    from millstream.cli.confluent import ConfigResource, ResourceType

    with explained(_topic(name), bootstrap):
        resource = ConfigResource(ResourceType.TOPIC, name)
        future = next(iter(client.describe_configs([resource], request_timeout=timeout).values()))
    return answer(future, _topic(name), bootstrap, timeout + 1)


def _alter_config(
    client: AdminClient, name: str, changes: dict[str, str], unset: Sequence[str], bootstrap: str, timeout: float
) -> None:
    from millstream.cli.confluent import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in changes.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    with explained(_topic(name), bootstrap):
        future = next(iter(client.incremental_alter_configs([resource], request_timeout=timeout).values()))
    answer(future, _topic(name), bootstrap, timeout + 1)


def _add_partitions(client: AdminClient, name: str, partitions: int, bootstrap: str, timeout: float) -> None:
    from millstream.cli.confluent import NewPartitions

    with explained(_topic(name), bootstrap):
        futures = client.create_partitions([NewPartitions(name, partitions)], request_timeout=timeout)
    answer(futures[name], _topic(name), bootstrap, timeout + 1)


def _topic(name: str) -> str:
    return f"topic '{name}'"
