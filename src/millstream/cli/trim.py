"""``millstream topic trim``: delete the oldest records of a topic, at once and for good.

Where the partitions shall begin is a position as everywhere: an offset, a time or the end, held within what each of
them has. Retention deletes by itself; this is for records that must go before.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millstream.cli.connect import admin_client, answer, explained, partition_numbers
from millstream.cli.options import BOOTSTRAP_DEFAULT, TIMEOUT_DEFAULT, AsJson, Bootstrap, Timeout
from millstream.cli.output import print_json, print_table
from millstream.cli.positions import EXPECTED, parse_position, resolve


def trim(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    before: Annotated[
        str, typer.Option("--before", metavar="POSITION", help=f"Delete what is older than this: {EXPECTED}.")
    ],
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated. Default: all of them."),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_DEFAULT,
) -> None:
    """Delete the oldest records of a topic, at once and for good."""
    from millstream.cli.confluent import TopicPartition

    what = f"topic '{name}'"
    position = parse_position(before, "--before")
    client = admin_client(bootstrap)
    numbers = sorted(set(partitions or partition_numbers(client, name, bootstrap, timeout)))
    begins = resolve(client, [(name, number) for number in numbers], position, bootstrap, timeout)
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
