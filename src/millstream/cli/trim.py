"""``millstream topic trim``: delete the oldest records of a topic, at once and permanently.

Where the partitions shall start is a position as everywhere: an offset, a time, or the end. An offset past the end of a
partition is refused, as the API refuses it, before anything is deleted. The command shows what would go; only
``--execute`` deletes it. Retention deletes by itself; this is for records that must go before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millstream.cli.completion import complete_topics
from millstream.cli.connect import admin_client, answer, explained, offsets_at, partition_numbers
from millstream.cli.failure import CommandFailed
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table, remark
from millstream.cli.positions import EXPECTED, Anchor, parse_position, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command("trim")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics, help="Name of the topic.")
@click.option("--before", required=True, metavar="POSITION", help=f"Delete what is older than this: {EXPECTED}.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="Only this partition; may be repeated. Default: all of them.",
)
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@as_json_option
@bootstrap_option
@timeout_option
def trim(
    name: str, before: str, partitions: tuple[int, ...], execute: bool, as_json: bool, bootstrap: str, timeout: float
) -> None:
    """Delete the oldest records of a topic permanently. Only shows them without --execute."""
    from millstream.cli.confluent import OffsetSpec, TopicPartition

    what = f"topic '{name}'"
    position = parse_position(before, "--before")
    client = admin_client(bootstrap)
    numbers = sorted(set(partitions or partition_numbers(client, name, bootstrap, timeout)))
    topic_partitions = [TopicPartition(name, number) for number in numbers]
    starts = offsets_at(client, dict.fromkeys(topic_partitions, OffsetSpec.earliest()), what, bootstrap, timeout)
    ends = offsets_at(client, dict.fromkeys(topic_partitions, OffsetSpec.latest()), what, bootstrap, timeout)
    if position.anchor is Anchor.OFFSET:
        _check_within(name, position.value, ends)
    begins = resolve(client, [(name, number) for number in numbers], position, bootstrap, timeout)
    if not execute:
        _show(name, starts, begins, as_json=as_json)
        return
    wanted = [TopicPartition(name, number, begins[name, number]) for number in numbers]
    with explained(what, bootstrap):
        futures = client.delete_records(wanted, request_timeout=timeout, operation_timeout=timeout)
    results: list[dict[str, Any]] = []
    for asked in wanted:
        deleted = answer(futures[asked], f"{what}, partition {asked.partition}", bootstrap, timeout + 1)
        results.append({"topic": name, "partition": asked.partition, "start_offset": deleted.low_watermark})
    if as_json:
        print_json(results)
    else:
        print_table(["#PARTITION", "#START"], [(each["partition"], each["start_offset"]) for each in results])


def _check_within(name: str, offset: int, ends: Mapping[tuple[str, int], int]) -> None:
    beyond = [(number, end) for (_, number), end in sorted(ends.items()) if offset > end]
    if beyond:
        number, end = beyond[0]
        raise CommandFailed(
            f"topic '{name}', partition {number} ends at offset {end}, --before {offset} is past it; nothing was "
            "deleted, '--before end' deletes all records"
        )


def _show(
    name: str, starts: Mapping[tuple[str, int], int], begins: Mapping[tuple[str, int], int], *, as_json: bool
) -> None:
    """What would be deleted. A partition never starts earlier than it does now."""
    rows = [(number, start, max(begins[topic, number], start)) for (topic, number), start in sorted(starts.items())]
    if as_json:
        names = ("topic", "partition", "start_offset", "new_start_offset", "records")
        print_json([dict(zip(names, (name, *row, row[2] - row[1]), strict=True)) for row in rows])
        return
    print_table(["#PARTITION", "#START", "#NEW START", "#RECORDS"], [(*row, row[2] - row[1]) for row in rows])
    remark("nothing was deleted, --execute does it")
