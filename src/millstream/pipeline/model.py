"""What a pipeline says, as values: the YAML file's structure and the Python object's.

Field names are the keys of the file. ``document`` reads a file into a ``Pipeline`` and knows the line of each value;
``checks`` says what is wrong with one, whichever way it was made. Quantities with a unit are text (``10s``, ``256MiB``)
and become numbers in ``checks``.
"""

from typing import Final, Literal

import msgspec

Format = Literal["raw", "string", "json", "avro", "protobuf"]
ErrorMode = Literal["fail", "dead_letter", "drop"]
SchemaErrorMode = Literal["fail", "dead_letter"]

DEFAULT_BROKERS: Final = "127.0.0.1:9092"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where records come from and what their values are.

    ``schema`` declares the fields of a JSON value: a mapping of field to type, or one text in Spark's DDL; without it
    they are inferred by the first run. ``registry`` is the URL of a schema registry, for records with schema ids, and
    ``subject`` names the schema there (``<topic>-value``), ``message`` the Protobuf message in full (by default the
    first one). ``pinned`` and ``columns`` are set by the runner alone: that schema, and columns that fields go into.
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
    start: str = "earliest"
    max_records: int | None = None
    max_bytes: str = "4GiB"
    options: dict[str, str | int | bool] = {}


class SideTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topic that the query joins with: read whole when a run begins, visible to SQL under the name of its key.
    ``format`` to ``columns`` are as in ``Source``.
    """

    topic: str
    format: Format = "json"
    schema: str | dict[str, str] | None = None
    registry: str | None = None
    subject: str | None = None
    message: str | None = None
    pinned: str | None = None
    columns: str | None = None


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens between source and sinks: Spark SQL over the view ``source``, or a function of a DataFrame.

    ``python`` is ``module:function``; the directory of the file is on the import path. The function gets the DataFrame
    ``source`` and returns a DataFrame.
    """

    sql: str | None = None
    python: str | None = None


class Sink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One destination; exactly one of ``delta``, ``iceberg``, ``parquet`` and ``topic`` is given.

    ``name`` names the sink's checkpoint and defaults to kind and target. ``sql`` narrows what this sink gets: a query
    over the view ``result``, which is what the transform returned. ``key``, ``format`` and ``delivery`` (exactly once
    unless it says at-least-once) are for topics, ``catalog`` for Iceberg.
    """

    delta: str | None = None
    iceberg: str | None = None
    parquet: str | None = None
    topic: str | None = None
    name: str | None = None
    sql: str | None = None
    key: str | None = None
    format: Literal["json"] = "json"
    delivery: Literal["at-least-once", "exactly-once"] | None = None
    catalog: dict[str, str] | None = None
    compact: bool = True


class Errors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What becomes of a record that cannot be decoded.

    ``dead_letter`` keeps it beside each table, in ``<table>_dead_letters``, and, with ``topic``, in a topic; ``fail``
    stops the pipeline; ``drop`` counts it and goes on. ``on_schema: fail`` stops the pipeline for a record whose schema
    does not fit the columns, or is not the subject's; by default that is a record like any other.
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
    figures are served while it runs, as ``host:port``.
    """

    pipeline: str
    source: Source
    sinks: list[Sink]
    brokers: str = DEFAULT_BROKERS
    tables: dict[str, SideTable] = {}
    transform: Transform | None = None
    errors: Errors = Errors()
    trigger: Trigger = Trigger()
    state: str | None = None
    metrics: str | None = None
    spark: dict[str, str | int | bool] = {}


EXACTLY_ONCE: Final = "exactly-once"
"""Delivery of a topic sink that does not say another."""

SINK_KINDS: Final = ("delta", "iceberg", "parquet", "topic")
TABLE_KINDS: Final = ("delta", "iceberg", "parquet")
