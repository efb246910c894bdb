"""Count what came out, without Spark and without millstream: deltalake, pyiceberg and a stock consumer read it back.

Every record of the topic ``flights`` has a partition and an offset, and the tables carry them. So each record can be
looked for: it is a row of the Delta table or one of its dead letters, and never both or twice.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from broker import DemoFailed
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from load import Loaded

LATE_MIN, VERY_LATE_MIN = 60, 300
"""The bounds in ``flights.yaml``, in minutes."""


@dataclass(frozen=True)
class Proof:
    """What was counted. ``sent`` is of records in the result topic."""

    table: Any
    letters: Any
    late: int
    sent: int


def prove(directory: Path, bootstrap: str, loaded: Loaded) -> Proof:
    """Read everything back and compare it with what went in.

    Raises:
        DemoFailed: a record is missing, or there twice.
    """
    table = read_delta(directory / "tables" / "flights")
    letters = read_delta(directory / "tables" / "flights_dead_letters")
    once(table, letters, ends(bootstrap, "flights"))
    equal("rows of the Delta table", table.num_rows, loaded.flights)
    equal("dead letters", letters.num_rows, loaded.bad)
    late = read_iceberg(directory / ".millstream" / "iceberg", "flights.late")
    equal("rows of the Iceberg table", late.num_rows, at_least(table, LATE_MIN))
    once(late, late.slice(0, 0), None)
    sent = consume(bootstrap, "very-late-flights")
    twice = len(sent) - len({(row["partition"], row["offset"]) for row in sent})
    equal("records of the topic that are there again", twice, 0)
    equal("records of the topic", len(sent), at_least(table, VERY_LATE_MIN))
    return Proof(table, letters, late.num_rows, len(sent))


def once(table: Any, letters: Any, wanted: dict[int, int] | None) -> None:
    """Check that each place, partition and offset, is there once, and that all below the ends in ``wanted`` are.

    Raises:
        DemoFailed: with the first that is missing or there too often.
    """
    places: Counter[tuple[int, int]] = Counter()
    for part in (table, letters):
        places.update(zip(part.column("partition").to_pylist(), part.column("offset").to_pylist(), strict=True))
    twice = [place for place, count in places.items() if count > 1]
    if twice:
        raise DemoFailed(f"flights-{twice[0][0]}, offset {twice[0][1]} is there {places[twice[0]]} times")
    for partition, end in (wanted or {}).items():
        missing = next((offset for offset in range(end) if (partition, offset) not in places), None)
        if missing is not None:
            raise DemoFailed(f"flights-{partition}, offset {missing} is nowhere")


def equal(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise DemoFailed(f"{what}: {found:,}, and {wanted:,} should be there")


def at_least(table: Any, minutes: int) -> int:
    """Flights that left so late."""
    return pc.sum(pc.greater_equal(table.column("dep_delay"), minutes)).as_py() or 0


def read_delta(path: Path) -> Any:
    query = deltalake.QueryBuilder().register("rows", deltalake.DeltaTable(str(path)))
    rows = pa.table(query.execute("SELECT * FROM rows"))
    texts = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}  # pyarrow does not sort or compare views
    return rows.cast(pa.schema([field.with_type(texts.get(field.type, field.type)) for field in rows.schema]))


def read_iceberg(place: Path, name: str) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "millstream", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse"
    )
    return catalog.load_table(name).scan().to_arrow()


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The end offset of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "proof", "log_level": 3})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)[1]
            for number in partitions
        }
    finally:
        consumer.close()


def consume(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic of one partition, as a read_committed consumer gets them."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "proof", "log_level": 3, "enable.partition.eof": True}
    consumer = Consumer(settings)
    found: list[dict[str, Any]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            record = consumer.poll(60)
            if record is None:
                raise DemoFailed(f"topic {topic} has no end after {len(found):,} records: a transaction is open")
            if record.error() is not None:
                if record.error().code() == KafkaError._PARTITION_EOF:
                    return found
                continue
            found.append(json.loads(record.value() or b"{}"))
    finally:
        consumer.close()
