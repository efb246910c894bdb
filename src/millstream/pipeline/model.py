"""What a pipeline says, as values: the YAML file's structure and the Python object's.

Field names are the keys of the file. ``document`` reads a file into a ``Pipeline`` and knows the line of each value;
``checks`` says what is wrong with one, whichever way it was made. Quantities with a unit are text (``10s``, ``256MiB``)
and become numbers in ``checks``.
"""

from typing import Final, Literal

import msgspec

from millstream.client.schema_registry import is_registry_name

Format = Literal["raw", "string", "json", "avro", "protobuf"]
ErrorMode = Literal["fail", "dead_letter", "drop"]
SchemaErrorMode = Literal["fail", "dead_letter"]
Mode = Literal["append", "upsert", "changelog"]
KeyFormat = Literal["string", "json", "avro", "protobuf"]

DEFAULT_BROKERS: Final = "127.0.0.1:9092"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where records come from and what their values are.

    ``schema`` declares the fields of a JSON value: a mapping of field to type, or one text in Spark's DDL; without it
    they are inferred by the first run. ``registry`` is the URL of a schema registry, for records with schema ids, and
    ``subject`` names the schema there (``<topic>-value``), ``message`` the Protobuf message in full (by default the
    first one). ``pinned``, ``columns`` and ``reached`` are set by the runner alone: that schema, columns that fields go
    into, and the properties by which the registry is reached, references not resolved.
    ``key_format`` says what the keys of tombstones are, for tables with a row for each key.
    ``start`` (``earliest``, ``latest`` or a time in ISO 8601) counts for the first run only. ``options`` are further
    options of the Spark source (``docs/spark.md``).
    """

    topic: str | list[str]
    format: Format = "raw"
    schema: str | dict[str, str] | None = None
    registry: str | None = None
    subject: str | None = None
    message: str | None = None
    pinned: str | None = None
    columns: str | None = None
    reached: dict[str, str] | None = None
    key_format: KeyFormat | None = None
    start: str = "earliest"
    max_records: int | None = None
    max_bytes: str = "4GiB"
    options: dict[str, str | int | bool] = {}


class SideTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topic that the query joins with: read whole when a run starts, visible to SQL under the name of its key. Of a
    compacted topic it is the latest value of each key.
    ``format`` to ``reached`` are as in ``Source``.
    """

    topic: str
    format: Format = "json"
    schema: str | dict[str, str] | None = None
    registry: str | None = None
    subject: str | None = None
    message: str | None = None
    pinned: str | None = None
    columns: str | None = None
    reached: dict[str, str] | None = None


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens between source and sinks: Spark SQL over the view ``source``, or a function of a DataFrame.

    ``python`` is ``module:function``; the directory of the file is on the import path. The function gets the DataFrame
    ``source`` and returns a DataFrame.
    """

    sql: str | None = None
    python: str | None = None


class Create(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a table gets when the pipeline makes it; one that exists keeps what it has.

    ``partition`` has columns, in Iceberg also ``year(c)``, ``month(c)``, ``day(c)``, ``hour(c)``, ``bucket(n, c)`` and
    ``truncate(n, c)``. ``sort`` (Iceberg) has columns, each perhaps with ``desc`` after it, and ``location`` (Iceberg)
    is the address of the table's files. ``properties`` are the format's own.
    """

    partition: list[str] = []
    sort: list[str] = []
    properties: dict[str, str | int | bool] = {}
    location: str | None = None


class PartitionPart(msgspec.Struct, frozen=True):
    """One part of a partition key: a column, what is done to it, and the number that ``bucket`` and such take."""

    column: str
    transform: str = "identity"
    argument: int = 0


class Upkeep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a table is looked after while it is written to: every so often, versions older than ``keep`` are expired, and
    so are the files that they alone have named.
    """

    every: str = "10m"
    keep: str = "7d"


class Sink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One destination; exactly one of ``delta``, ``iceberg``, ``parquet`` and ``topic`` is given.

    ``name`` names the sink's checkpoint and defaults to kind and target. ``sql`` narrows what this sink gets: a query
    over the view ``result``, which is what the transform returned. ``format`` and ``delivery`` (exactly once
    unless it says at-least-once) are for topics, ``catalog`` for Iceberg.

    ``mode`` says what rows of a table mean: each record one (``append``), or the latest record of each key
    (``upsert``), whose deleted keys are remembered for ``keep_deletes``, or each record one with its kind
    (``changelog``). ``key`` names the columns of that key, or the
    column that is the key of a topic's records. ``create`` says more of a table that the pipeline makes. ``compact``
    merges small files as the table is written to, ``upkeep`` also expires old versions.
    """

    delta: str | None = None
    iceberg: str | None = None
    parquet: str | None = None
    topic: str | None = None
    name: str | None = None
    sql: str | None = None
    mode: Mode = "append"
    key: str | list[str] | None = None
    keep_deletes: str = "30d"
    create: Create | None = None
    format: Literal["json"] = "json"
    delivery: Literal["at-least-once", "exactly-once"] | None = None
    catalog: dict[str, str] | None = None
    compact: bool = True
    upkeep: Upkeep | None = None


class Errors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What becomes of a record that cannot be decoded.

    ``dead_letter`` keeps it beside each table, in ``<table>_dead_letters``, and, with ``topic``, in a topic; ``fail``
    stops the pipeline; ``drop`` counts it and continues. ``on_schema: fail`` stops the pipeline for a record whose
    schema does not fit the columns, or is not the subject's; by default that is a record like any other.
    """

    mode: ErrorMode = "dead_letter"
    on_schema: SchemaErrorMode = "dead_letter"
    topic: str | None = None


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When to read: all that there is and then every ``every``, or all that there is and no more."""

    every: str = "10s"
    available_now: bool = False


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A declared pipeline.

    ``state`` is the directory of its checkpoints, on a disk that driver and workers share. ``metrics`` is where its
    figures are served while it runs, as ``host:port``. ``security`` has properties of a Kafka client, such as
    ``security.protocol``, and of a schema registry's client, such as ``basic.auth.user.info``; a value may be
    ``${env:NAME}`` or ``${file:PATH}``.
    """

    pipeline: str
    source: Source
    sinks: list[Sink]
    brokers: str = DEFAULT_BROKERS
    security: dict[str, str | bool] = {}
    tables: dict[str, SideTable] = {}
    transform: Transform | None = None
    errors: Errors = Errors()
    trigger: Trigger = Trigger()
    state: str | None = None
    metrics: str | None = None
    spark: dict[str, str | int | bool] = {}

    @property
    def reach(self) -> dict[str, str]:
        """Options of Spark's reader and writer with which its brokers are reached."""
        texts = {f"kafka.{name}": text for name, text in self._secured.items() if not is_registry_name(name)}
        return {"kafka.bootstrap.servers": self.brokers} | texts

    @property
    def registry_reach(self) -> dict[str, str]:
        """Properties with which its schema registries are reached: theirs, and what is known of the brokers."""
        return {"bootstrap.servers": self.brokers} | self._secured

    @property
    def _secured(self) -> dict[str, str]:
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in self.security.items()}


EXACTLY_ONCE: Final = "exactly-once"
"""Delivery of a topic sink that does not say another."""

SINK_KINDS: Final = ("delta", "iceberg", "parquet", "topic")
TABLE_KINDS: Final = ("delta", "iceberg", "parquet")
