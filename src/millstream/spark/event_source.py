"""Event topics in Spark: what ``option("events", "true")`` reads, and the function that fetches data later.

The fields are declared (``value.schema``) or inferred from the first events. By default no data are read:
``_descriptor`` says where they are, and ``event_data`` fetches those of the rows that a query has left. With
``events.data=read`` they are in ``_data``; with ``filter.pushdown`` conditions on metadata are then applied before
data are read.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, IntegralType, StringType, StructType

from millstream.client.security import PLAIN, Security
from millstream.errors import Rejected
from millstream.spark.bounds import subscription
from millstream.spark.declared import parse_schema
from millstream.spark.event_rows import TAKEN, EventSettings, Term, client, event_rows, event_schema
from millstream.spark.inferred import infer
from millstream.spark.logs import Logs
from millstream.spark.options import Options
from millstream.spark.plan import plan_batch
from millstream.spark.task import ReadTask
from millstream.spark.wanted import Column, Predicate

SAMPLE: Final = 1_000
"""Events from whose metadata fields are inferred, over all partitions."""
_COMPARED: Final = {EqualTo: "eq", LessThan: "lt", LessThanOrEqual: "le", GreaterThan: "gt", GreaterThanOrEqual: "ge"}
_COLUMNS: Final = (Column("value"),)


def check_event_options(options: Options) -> None:
    """Refuse options that mean nothing for events.

    Raises:
        Rejected: there is one.
    """
    for name in (
        "value.format",
        "schema.registry.url",
        "value.subject",
        "value.message",
        "includeHeaders",
        "events.data",
    ):
        meant = options["events"] if name == "events.data" else not options["events"]
        if name in options.given and not meant:
            raise Rejected(
                "option events.data is for event topics: set events=true"
                if name == "events.data"
                else f"options events and {name} exclude each other: metadata are JSON, with the fields of value.schema"
            )


def event_settings(options: Options) -> EventSettings:
    """How a query's events become rows.

    Raises:
        Rejected: the fields are wrong, or cannot be inferred.
        Unavailable: no broker answers.
    """
    schema = options["value.schema"]
    if schema is None:
        schema = infer(_sample(options), TAKEN, "value.schema")
    for field in parse_schema(schema):
        if field.name.lower() in TAKEN:
            raise Rejected(f"the metadata have a field {field.name}, the name of a column beside them")
    return EventSettings(schema, options["events.data"] == "read")


def spark_schema_of(settings: EventSettings) -> StructType:
    """The columns in Spark's types."""
    return from_arrow_schema(event_schema(settings))


def _sample(options: Options) -> Iterator[bytes]:
    from millstream.spark.event_rows import event_texts

    logs = Logs(options, subscription(options))
    try:
        partitions = logs.source_partitions()
    finally:
        logs.close()
    timeout_s = options["kafka.request.timeout.ms"] / 1000
    opened = client(options["kafka.bootstrap.servers"], timeout_s, options.security)
    share = max(1, SAMPLE // max(1, len(partitions)))
    for one in partitions:
        yield from event_texts(opened, one.topic, one.partition, share, timeout_s)


class EventsReading:
    """What batch and stream have in common: pickled to tasks, which read with it."""

    def __init__(self, settings: EventSettings, schema: StructType) -> None:
        known = {field.name: field.dataType for field in spark_schema_of(settings).fields}
        for field in schema.fields:
            if known.get(field.name) != field.dataType:
                found = known[field.name].simpleString() if field.name in known else "unknown"
                raise Rejected(f"column {field.name!r} is {found}, not {field.dataType.simpleString()}")
        self.names = tuple(schema.fieldNames())
        self.settings = settings
        self._types = known

    def take(self, filters: list[Filter]) -> list[Filter]:
        """Note the conditions that can be applied exactly; returns the others."""
        left: list[Filter] = []
        terms: list[Term] = []
        for one in filters:
            term = self._term(one)
            if term is None:
                left.append(one)
            else:
                terms.append(term)
        self.settings = msgspec.structs.replace(self.settings, terms=tuple(terms))
        return left

    def rows(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition.value, ReadTask):
            return iter(())  # Spark plans a source without partitions as one partition of None
        return event_rows(partition.value, self.settings, self.names)

    def tasks(self, options: Options) -> list[ReadTask]:
        return plan_batch(options, _COLUMNS, Predicate())

    def _term(self, one: Filter) -> Term | None:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1 or attribute[0] in TAKEN:
            return None
        name = attribute[0]
        kind, value = self._types.get(name), getattr(one, "value", None)
        if isinstance(one, IsNotNull):
            return Term(name, "known")
        if isinstance(one, In):
            plain = all(_fits(kind, item) for item in one.value)
            return Term(name, "in", list(one.value)) if plain else None
        if not _fits(kind, value):
            return None
        if isinstance(one, StringStartsWith):
            return Term(name, "prefix", value)
        compared = next((name for kind, name in _COMPARED.items() if type(one) is kind), None)
        return None if compared is None else Term(name, compared, value)


def _fits(kind: Any, value: object) -> bool:
    """Whether Arrow compares a column with a value as Spark does: whole numbers, text and booleans."""
    if isinstance(value, bool):
        return isinstance(kind, BooleanType)
    return (isinstance(value, int) and isinstance(kind, IntegralType)) or (
        isinstance(value, str) and type(kind) is StringType
    )


def event_data(bootstrap: str, topic: str, *, timeout_s: float = 30.0, security: Security = PLAIN) -> Any:
    """A function of columns that fetches the data of events: ``event_data(…)("_partition", "_offset", "_descriptor")``.

    Apply it after the filters of a query: only the data of rows that are left are fetched. The result is binary.

    Args:
        bootstrap: ``host:port`` of brokers.
        topic: the event topic.
        timeout_s: limit of a request, retries included.
        security: TLS and login of the connections (``millstream.client.security.read_security``).
    """
    import pandas as pd
    from pyspark.sql import functions as F  # noqa: N812

    def fetch(partitions: pd.Series, offsets: pd.Series, descriptors: pd.Series) -> pd.Series:
        from millstream.format.events import decode_descriptor

        opened = client(bootstrap, timeout_s, security).open_topic(topic)
        found: list[bytes] = [b""] * len(offsets)
        for number in set(partitions):
            rows = [row for row, partition in enumerate(partitions) if partition == number]
            asked = [(int(offsets[row]), decode_descriptor(bytes(descriptors[row]))) for row in rows]
            for row, data in zip(rows, opened.fetch_data(int(number), asked), strict=True):
                found[row] = bytes(data)
        return pd.Series(found)

    make: Any = F.pandas_udf
    return make(fetch, BinaryType())
