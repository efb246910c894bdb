"""Values of topics as typed columns: what the options ``value.format`` and its companions mean.

::

    read_task ──► record batches ──decode──► fields of the value │ _key … _timestamp │ _error _value

A record that does not decode is a row as any other: its fields are null, ``_error`` says why, and ``_value`` has its
bytes, which are null for all others. No record ends a
query, and none is left out; what becomes of bad ones is the query's affair (``WHERE _error IS NULL``). The columns are
fixed when Spark asks for the schema. With a registry, a newer version that comes in between ends the planning, and a
record that needs more columns ends the query; a new start takes the newer schema.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.schema_registry import RegistryAccess
from millstream.errors import Rejected
from millstream.spark.declared import ArrowType, Field, parse_schema
from millstream.spark.options import Options
from millstream.spark.registry_values import RegistryDecoder, latest_schema
from millstream.spark.task import ReadTask
from millstream.spark.values import Decoder, JsonDecoder, StringDecoder
from millstream.spark.wanted import Column

METADATA: Final[tuple[tuple[str, str, ArrowType], ...]] = (
    ("_key", "key", pa.binary()),
    ("_topic", "topic", pa.string()),
    ("_partition", "partition", pa.int32()),
    ("_offset", "offset", pa.int64()),
    ("_timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
)
"""Column beside the fields, column of the topic, type."""
TOPIC_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
"""What a task reads of a topic."""
ERROR_COLUMN: Final = "_error"
VALUE_COLUMN: Final = "_value"

_COMPANIONS: Final = ("value.schema", "schema.registry.url", "value.subject", "value.message")


class ValueFormat(msgspec.Struct, frozen=True):
    """How values are read. ``pinned`` is the registry's schema, once it has been asked. Travels to workers."""

    format: str
    schema: str | None = None
    registry: RegistryAccess | None = None
    subject: str | None = None
    message: str | None = None
    topics: tuple[str, ...] = ()
    pinned: str | None = None


def value_format(options: Options) -> ValueFormat | None:
    """What a query's options say of values; None if they stay bytes. Asks no registry.

    Raises:
        Rejected: options contradict each other, or one is missing.
    """
    kind = options["value.format"]
    if kind == "raw":
        for name in _COMPANIONS:
            if name in options.given:
                raise Rejected(f"option {name} is for values with a format: set value.format")
        return None
    for name in ("includeHeaders", "filter.pushdown"):
        if options[name]:
            raise Rejected(f"options value.format and {name} exclude each other")
    schema, registry, subject, message = (options[name] for name in _COMPANIONS)
    if kind == "json" and (schema is None) == (registry is None):
        raise Rejected(
            "value.format=json needs either value.schema or, for records with schema ids, schema.registry.url"
        )
    if kind in ("avro", "protobuf"):
        options.require("schema.registry.url")
    if kind != "json" and schema is not None:
        raise Rejected(f"option value.schema is for value.format=json, not for {kind}")
    if registry is not None and subject is None:
        names = options["subscribe"] or ()
        if len(names) != 1:
            raise Rejected("several topics with schema ids need value.subject: the schema that the columns have")
        subject = f"{names[0]}-value"
    if message is not None and kind != "protobuf":
        raise Rejected(f"option value.message is for value.format=protobuf, not for {kind}")
    return ValueFormat(kind, schema, options.registry, subject, message, tuple(options["subscribe"] or ()))


def settled(value: ValueFormat) -> ValueFormat:
    """The same with the latest schema of the registry, if there is one to ask.

    Raises:
        Rejected: the registry has no such subject.
        Unavailable: the registry does not answer, or a library is missing.
    """
    if value.registry is None or value.subject is None:
        return value
    return msgspec.structs.replace(value, pinned=latest_schema(value.registry, value.subject, value.message))


def decoder_for(value: ValueFormat) -> Decoder:
    """The decoder of a settled format.

    Raises:
        Rejected: its schema is wrong, or a field has the name of a column beside it.
    """
    decoder: Decoder
    if value.format == "string":
        decoder = StringDecoder()
    elif value.registry is not None:
        assert value.subject is not None and value.pinned is not None, "settled() comes before decoding"
        subjects = [f"{topic}-value" for topic in value.topics]
        decoder = RegistryDecoder(value.format, value.registry, value.subject, value.pinned, subjects=subjects)
    else:
        assert value.schema is not None, "value_format() refuses JSON without a schema"
        decoder = JsonDecoder(parse_schema(value.schema))
    taken = {name for name, _, _ in METADATA} | {ERROR_COLUMN, VALUE_COLUMN}
    for field in decoder.fields:
        if field.name.lower() in taken:
            raise Rejected(f"the value has a field {field.name}, the name of a column beside it")
    return decoder


def typed_schema(fields: Sequence[Field]) -> Any:
    """The Arrow schema of the rows."""
    columns = [(field.name, field.type) for field in fields] + [(name, kind) for name, _, kind in METADATA]
    return pa.schema([*columns, (ERROR_COLUMN, pa.string()), (VALUE_COLUMN, pa.binary())])


def topic_columns() -> tuple[Column, ...]:
    """The columns that tasks read."""
    return tuple(Column(name) for name in TOPIC_COLUMNS)


def typed_rows(task: ReadTask, value: ValueFormat, names: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a task as record batches with these columns.

    Raises:
        SchemaChanged: a record has more than the query's schema.
        MillstreamError: as ``read_task``, or the registry does not answer.
    """
    # Decoding in a worker needs numba, planning does not.
    from millstream.spark.read import read_task

    decoder = decoder_for(value)
    schema = typed_schema(decoder.fields)
    for records in read_task(task):
        decoded = decoder.decode(records.column("value"))
        columns: list[Any] = decoded.columns.flatten()
        values = pa.nulls(len(decoded.errors), pa.binary())
        if decoded.errors.null_count < len(decoded.errors):
            rows = pa.array(range(len(decoded.errors)), pa.int64())
            if_else: Any = getattr(pc, "if_else")  # noqa: B009 (made at run time)
            kept = if_else(decoded.errors.is_null(), rows, pa.scalar(None, pa.int64()))
            columns = [column.take(kept) for column in columns]
            bad = if_else(decoded.errors.is_valid(), rows, pa.scalar(None, pa.int64()))
            values = records.column("value").take(bad)
        columns += [records.column(name) for _, name, _ in METADATA]
        batch = pa.RecordBatch.from_arrays([*columns, decoded.errors, values], schema=schema)
        yield batch.select(list(names))
