"""Topic properties of a topic that is also a table: which table, and how its rows get there.

The broker records and checks them, and does nothing else: ``millstream pipeline serve`` runs a pipeline for each topic
whose ``table.mode`` is not ``off``.
"""

from __future__ import annotations

import re

from millstream.config.forms import Boolean, Choice, Form, Integer, Words
from millstream.config.property import Property

_COLUMN = re.compile(r"\w+")
_PART = re.compile(r"\w+|[a-z]+\((\d+ )?\w+\)")
_SINK = re.compile(r"iceberg:[\w-]+(\.[\w-]+)+|delta:\S+")


class TableSink(Form[str]):
    """``iceberg:NAMESPACE.TABLE`` or ``delta:PATH``; empty for none."""

    def read_plain(self, text: str) -> str:
        text = text.strip()
        if not self.accepts(text):
            raise ValueError
        return text

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and (not value or _SINK.fullmatch(value) is not None)

    def write(self, value: str) -> str | None:
        return value or None

    def expected(self) -> str:
        return "iceberg:NAMESPACE.TABLE or delta:PATH, such as iceberg:lake.orders"


class ColumnList(Words):
    """Columns with commas, as Kafka's lists are; with ``transforms`` also ``day(c)`` and ``bucket(16 c)``."""

    def __init__(self, *, transforms: bool = False) -> None:
        self._transforms = transforms

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        form = _PART if self._transforms else _COLUMN
        return len(set(words)) == len(words) and all(form.fullmatch(word) for word in words)

    def expected(self) -> str:
        return "distinct columns, such as day(_timestamp),country" if self._transforms else "distinct columns"


class TableProperties:
    """The properties; ``TopicConfig`` inherits them."""

    table_mode = Property(
        "table.mode",
        Choice("off", "append", "upsert", "changelog"),
        "off",
        doc="append: each record of the topic is a row of the table of table.sink, once. upsert: the latest record of "
        "each key is a row, and a tombstone removes it. changelog: each change is a row with its kind. 'millstream "
        "pipeline serve' writes the table. off pauses that, and it continues where it was.",
    )
    table_sink = Property(
        "table.sink",
        TableSink(),
        "",
        doc="The table of a topic: iceberg:NAMESPACE.TABLE in the catalog of 'millstream pipeline serve', or "
        "delta:PATH. A relative path is relative to the directory of 'pipeline serve'.",
        example="iceberg:lake.orders",
    )
    table_key = Property(
        "table.key",
        ColumnList(),
        ("_key",),
        doc="The columns that tell rows apart with table.mode=upsert or changelog. _key is the key of the record as it "
        "is.",
        example="id",
    )
    table_partition_by = Property(
        "table.partition.by",
        ColumnList(transforms=True),
        (),
        doc="How a table is partitioned that does not exist yet: columns, and for Iceberg year(c), month(c), day(c), "
        "hour(c), bucket(n c) and truncate(n c).",
        example="day(_timestamp)",
    )
    table_format = Property(
        "table.format",
        Choice("auto", "raw", "string", "json", "avro", "protobuf"),
        "auto",
        doc="What the values of the topic's records are. auto: as the subject TOPIC-value of the schema registry says, "
        "if there is one, else JSON objects, text or bytes, as the first records are. It is decided once, with the "
        "first rows.",
    )
    table_target_lag_ms = Property(
        "table.target.lag.ms",
        Integer(1000, unit="ms"),
        20_000,
        doc="How far behind the topic the table may be: a commit begins each half of it.",
        example="5s",
    )
    table_on_error = Property(
        "table.on.error",
        Choice("dead_letter", "drop", "fail"),
        "dead_letter",
        doc="What becomes of a record that does not decode. dead_letter: it is kept in the table NAME_dead_letters. "
        "drop: it is counted. fail: the table stops there.",
    )
    table_delete_with_topic = Property(
        "table.delete.with.topic",
        Boolean(),
        False,
        doc="Whether the table is deleted when the topic is. A table that was there before the topic's is kept.",
    )


def of_tables(name: str) -> bool:
    """Whether a topic property concerns only topics that are tables."""
    return name.startswith("table.")
