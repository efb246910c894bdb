"""What is wrong with a pipeline, as far as the declaration itself tells: no Spark, no broker, no table is asked.

Each problem names the place of the value it is about as a path from the root of the declaration, so that a file's lines
can be named. ``Settings`` is a checked declaration with its quantities as numbers.
"""

import datetime as dt
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from millstream.client.schema_registry import is_registry_name, unknown_registry_name
from millstream.config.yaml_file import Path, Problem
from millstream.errors import Rejected
from millstream.pipeline.model import SINK_KINDS, TABLE_KINDS, PartitionPart, Pipeline, SideTable, Sink, Source
from millstream.pipeline.wire_schemas import has_schema_ids, registry_decoder_of
from millstream.spark.declared import parse_schema
from millstream.spark.options import READ, parse_options
from millstream.spark.values import Decoder, JsonDecoder, RawDecoder, StringDecoder

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,248}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_VIEW: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DURATIONS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_PART: Final = re.compile(r"(\w+)\s*\(\s*(?:(\d+)\s*,)?\s*([^()]+?)\s*\)")
_TIME_PARTS: Final = ("year", "month", "day", "hour")
_NUMBER_PARTS: Final = ("bucket", "truncate")
_MERGED_BYTES: Final = 128 << 20
"""Log of a batch whose changes are in the driver's memory."""
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

METADATA_NAMES: Final = ("_key", "_topic", "_partition", "_offset", "_timestamp")
"""Columns that stand beside the fields of every record."""

_TAKEN_OPTIONS: Final = {
    "kafka.bootstrap.servers": "brokers", "servers": "brokers", "bootstrap": "brokers", "subscribe": "source.topic",
    "subscribepattern": "source.topic", "assign": "source.topic", "startingoffsets": "source.start",
    "startingtimestamp": "source.start", "startingoffsetsbytimestamp": "source.start",
    "maxoffsetspertrigger": "source.max_records", "maxbytespertrigger": "source.max_bytes",
    "includeheaders": "nothing: headers are not columns of a pipeline", "endingoffsets": "trigger.available_now",
    "value.format": "source.format", "value.schema": "source.schema", "schema.registry.url": "source.registry",
    "value.subject": "source.subject", "filter.pushdown": "transform.sql",
    "stats.dir": "nothing: the pipeline counts by itself",
}  # fmt: skip


def problems_of(pipeline: Pipeline) -> list[Problem]:
    """Everything that is wrong with a declaration; empty if nothing is."""
    return list(_problems(pipeline))


def kind_of(sink: Sink) -> str:
    """``delta``, ``iceberg``, ``parquet`` or ``topic``."""
    return next(kind for kind in SINK_KINDS if getattr(sink, kind) is not None)


def target_of(sink: Sink) -> str:
    """The path, table or topic of a sink, as declared."""
    return getattr(sink, kind_of(sink))


def key_of(sink: Sink) -> tuple[str, ...]:
    """The columns of a sink's key, as declared."""
    return (sink.key,) if isinstance(sink.key, str) else tuple(sink.key or ())


def shown_mode(sink: Sink) -> str:
    """What rows of a sink's table mean, for people: ``append``, or ``upsert by id``."""
    key = ", ".join(key_of(sink)) or "the table's identifier fields"
    return sink.mode if sink.mode == "append" else f"{sink.mode} by {key}"


def batch_bytes(pipeline: Pipeline, sink: Sink) -> int:
    """Bytes of log that a batch of a sink has at most."""
    declared = size(pipeline.source.max_bytes)
    return declared if sink.mode == "append" else min(declared, _MERGED_BYTES)


def partition_part(text: str) -> PartitionPart:
    """A part of a partition key, such as ``country``, ``day(time)`` or ``bucket(16, id)``.

    Raises:
        ValueError: the text is not a part.
    """
    text = text.strip()
    if "(" not in text and ")" not in text and text:
        return PartitionPart(text)
    match = _PART.fullmatch(text)
    if match is None or match[1].lower() not in (*_TIME_PARTS, *_NUMBER_PARTS):
        known = ", ".join(
            [*(f"{name}(column)" for name in _TIME_PARTS), *(f"{name}(n, column)" for name in _NUMBER_PARTS)]
        )
        raise ValueError(f"{text!r} is no part of a partition key; known are a column, {known}")
    name = match[1].lower()
    if (name in _NUMBER_PARTS) != (match[2] is not None) or match[2] == "0":
        raise ValueError(f"{name} takes {'a number above 0 and ' if name in _NUMBER_PARTS else ''}a column")
    return PartitionPart(match[3].strip(), name, int(match[2] or 0))


def sort_column(text: str) -> tuple[str, bool]:
    """A column of a sort order, and whether it descends: ``id`` or ``id desc``."""
    name, _, direction = text.strip().rpartition(" ")
    if name and direction.lower() in ("asc", "desc"):
        return name.strip(), direction.lower() == "desc"
    return text.strip(), False


def sink_name(sink: Sink) -> str:
    """What a sink's checkpoint is called."""
    return sink.name or re.sub(r"[^A-Za-z0-9_.]+", "-", f"{kind_of(sink)}-{target_of(sink)}").strip("-")


def topics_of(source: Source) -> tuple[str, ...]:
    """The topics that are read."""
    return (source.topic,) if isinstance(source.topic, str) else tuple(source.topic)


def decoder_of(declared: Source | SideTable, *, fail_on_schema: bool = False) -> Decoder:
    """The decoder of a checked source. ``fail_on_schema``: a record's schema that does not fit ends the decoding.

    Raises:
        Rejected: its schema is wrong.
        Unavailable: a library for its format is not installed.
    """
    if declared.format == "raw":
        return RawDecoder()
    if declared.format == "string":
        return StringDecoder()
    if declared.format == "json" and not has_schema_ids(declared):
        if declared.schema is None:
            raise Rejected("the schema of the JSON values has not been inferred yet; the first run does that")
        return JsonDecoder(parse_schema(declared.schema))
    return registry_decoder_of(declared, fail_on_schema=fail_on_schema)


def start_ms(start: str) -> int | None:
    """The time that a source starts at, in ms; None for earliest and latest.

    Raises:
        ValueError: it is not a time either.
    """
    if start in ("earliest", "latest"):
        return None
    moment = dt.datetime.fromisoformat(start)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)


def seconds(text: str) -> float:
    """A duration such as ``10s``.

    Raises:
        ValueError: the text is not a duration.
    """
    match = re.fullmatch(r"(\d+)\s*([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _DURATIONS:
        raise ValueError(f"{text!r} is no duration such as 500ms, 10s or 5m")
    return int(match[1]) * _DURATIONS[match[2]]


def size(text: str) -> int:
    """A size such as ``256MiB``, in bytes.

    Raises:
        ValueError: the text is not a size.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", text.strip().lower())
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no size such as 512MiB or 4GiB")
    return int(match[1]) * _SIZES[match[2]]


def _problems(pipeline: Pipeline) -> Iterator[Problem]:
    if not _NAME.fullmatch(pipeline.pipeline):
        yield Problem(("pipeline",), "a name has letters, digits, dot, dash and underscore, at most 249 of them")
    yield from _source_problems(pipeline.source)
    yield from _side_table_problems(pipeline)
    yield from _transform_problems(pipeline)
    yield from _sink_problems(pipeline)
    yield from _error_problems(pipeline)
    for name in pipeline.security:
        if (fault := unknown_registry_name(name)) is not None:
            yield Problem(("security", name), fault, at_key=True)
    if pipeline.metrics is not None and not re.fullmatch(r"(\[[^\]]+\]|[^:]+):\d{1,5}", pipeline.metrics):
        yield Problem(("metrics",), f"{pipeline.metrics!r} is no address such as 127.0.0.1:9180")
    try:
        seconds(pipeline.trigger.every)
    except ValueError as error:
        yield Problem(("trigger", "every"), str(error))


def _source_problems(source: Source) -> Iterator[Problem]:
    names = topics_of(source)
    if not names:
        yield Problem(("source", "topic"), "name at least one topic")
    for index, name in enumerate(names):
        path: Path = ("source", "topic") if isinstance(source.topic, str) else ("source", "topic", index)
        yield from _topic_problems(path, name)
        if name in names[:index]:
            yield Problem(path, f"topic {name} stands here twice")
    yield from _schema_problems(("source",), source)
    yield from _key_format_problems(source)
    try:
        start_ms(source.start)
    except ValueError:
        yield Problem(("source", "start"), f"{source.start!r} is neither earliest, latest nor a time in ISO 8601")
    try:
        size(source.max_bytes)
    except ValueError as error:
        yield Problem(("source", "max_bytes"), str(error))
    if source.max_records is not None and source.max_records < 1:
        yield Problem(("source", "max_records"), "a whole number above 0")
    for name, value in source.options.items():
        path = ("source", "options", name)
        if (instead := _TAKEN_OPTIONS.get(name.lower())) is not None:
            yield Problem(path, f"option {name} belongs to the pipeline itself; say {instead}", at_key=True)
            continue
        if is_registry_name(name.lower()):
            yield Problem(path, f"option {name} belongs to the pipeline itself; say security", at_key=True)
            continue
        try:
            parse_options({name: option_text(value)}, READ)
        except Rejected as error:
            yield Problem(path, error.message, at_key=True)


def option_text(value: str | int | bool) -> str:
    """A value of the file as the text that Spark's options are."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _schema_problems(path: Path, declared: Source | SideTable) -> Iterator[Problem]:
    for name in ("pinned", "columns", "reached"):
        if getattr(declared, name) is not None:
            yield Problem((*path, name), f"{name} is set by the runner; name registry and subject", at_key=True)
    if declared.message is not None and declared.format != "protobuf":
        yield Problem((*path, "message"), "message is for format protobuf", at_key=True)
    if has_schema_ids(declared):
        yield from _registry_problems(path, declared)
        return
    for name in ("registry", "subject"):
        if getattr(declared, name) is not None:
            yield Problem((*path, name), f"{name} is for formats avro, protobuf and json", at_key=True)
    if declared.format in ("raw", "string") and declared.schema is not None:
        yield Problem((*path, "schema"), f"format {declared.format} has no schema: its only field is value")
        return
    if declared.format == "json" and declared.schema is None:
        return  # inferred by the first run
    if isinstance(declared.schema, dict):
        faults = list(_field_problems((*path, "schema"), declared.schema))
        yield from faults
        if faults:
            return
    try:
        fields = decoder_of(declared).fields
    except Rejected as error:
        yield Problem((*path, "schema" if declared.schema is not None else "format"), error.message)
        return
    for field in fields:
        if field.name.lower() in METADATA_NAMES:
            yield Problem((*path, "schema", field.name), f"{field.name} is the name of a column of the pipeline's own")


def _key_format_problems(source: Source) -> Iterator[Problem]:
    if source.key_format in ("avro", "protobuf") and source.registry is None:
        yield Problem(
            ("source", "key_format"), f"key_format {source.key_format} needs registry: where the key's schema is"
        )


def _registry_problems(path: Path, declared: Source | SideTable) -> Iterator[Problem]:
    if declared.schema is not None:
        yield Problem((*path, "schema"), f"format {declared.format} has its schema in the registry", at_key=True)
    if declared.registry is None:
        yield Problem((*path, "format"), f"format {declared.format} needs registry: the URL of a schema registry")
    elif not re.match(r"https?://.", declared.registry):
        yield Problem((*path, "registry"), f"{declared.registry!r} is no URL such as http://127.0.0.1:9644")
    if declared.subject is None and not isinstance(declared.topic, str) and len(declared.topic) > 1:
        yield Problem(
            (*path, "format"), "several topics with schema ids need subject: the schema that the columns have"
        )


def _field_problems(path: Path, schema: dict[str, str]) -> Iterator[Problem]:
    for name, kind in schema.items():
        try:
            parse_schema({name: kind})
        except Rejected as error:
            yield Problem((*path, name), error.message)


def _side_table_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for name, table in pipeline.tables.items():
        path: Path = ("tables", name)
        if not _VIEW.fullmatch(name) or name.lower() in ("source", "result"):
            yield Problem(path, f"{name} cannot be the name of a view; letters, digits and underscore can", at_key=True)
        yield from _topic_problems((*path, "topic"), table.topic)
        yield from _schema_problems(path, table)
    if pipeline.tables and pipeline.transform is None:
        yield Problem(("tables",), "tables are for the query to join with, and there is no transform", at_key=True)


def _transform_problems(pipeline: Pipeline) -> Iterator[Problem]:
    transform = pipeline.transform
    if transform is None:
        return
    if (transform.sql is None) == (transform.python is None):
        yield Problem(("transform",), "a transform has either sql or python", at_key=True)
    if transform.sql is not None and not transform.sql.strip():
        yield Problem(("transform", "sql"), "the query is empty")
    if transform.python is not None and not _FUNCTION.fullmatch(transform.python):
        yield Problem(("transform", "python"), f"{transform.python!r} is not of the form module:function")


def _sink_problems(pipeline: Pipeline) -> Iterator[Problem]:
    if not pipeline.sinks:
        yield Problem(("sinks",), "name at least one sink")
    seen: set[str] = set()
    for index, sink in enumerate(pipeline.sinks):
        path: Path = ("sinks", index)
        yield from _key_problems(path, sink, pipeline)
        yield from _create_problems((*path, "create"), sink)
        kinds = [kind for kind in SINK_KINDS if getattr(sink, kind) is not None]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none"
            yield Problem(path, f"a sink is one of {', '.join(SINK_KINDS)}; given is {given}")
            continue
        if not target_of(sink).strip():
            yield Problem((*path, kinds[0]), "must not be empty")
            continue
        name = sink_name(sink)
        if not _NAME.fullmatch(name):
            yield Problem((*path, "name"), f"{name!r} cannot be a sink's name: letters, digits, dot, dash, underscore")
        if name in seen:
            yield Problem(path, f"a second sink of the name {name}; give one of them another name")
        seen.add(name)
        if sink.sql is not None and not sink.sql.strip():
            yield Problem((*path, "sql"), "the query is empty")
        yield from _topic_sink_problems(path, sink) if kinds[0] == "topic" else _table_sink_problems(path, sink)


def _key_problems(path: Path, sink: Sink, pipeline: Pipeline) -> Iterator[Problem]:
    """What is wrong with the mode of a sink, and with its key."""
    key, place = key_of(sink), (*path, "key")
    if sink.topic is not None:
        if sink.mode != "append":
            yield Problem((*path, "mode"), "a mode is for tables", at_key=True)
        if len(key) > 1 or sink.key == []:
            yield Problem(place, "the key of a topic's records is one column")
        return
    if sink.mode == "append":
        if sink.key is not None:
            yield Problem(place, "a key is for topics, and for modes upsert and changelog", at_key=True)
        return
    if sink.parquet is not None and sink.mode == "upsert":
        yield Problem((*path, "mode"), "rows of plain Parquet are not replaced: mode upsert is for Delta and Iceberg")
        return
    if not key and (sink.iceberg is None or sink.mode == "changelog"):
        yield Problem((*path, "mode"), f"mode {sink.mode} needs key: the columns that tell rows apart")
    if len(set(key)) < len(key):
        yield Problem(place, "a column stands here twice")
    try:
        seconds(sink.keep_deletes)
    except ValueError as error:
        yield Problem((*path, "keep_deletes"), str(error))
    if pipeline.transform is None and sink.sql is None:
        yield from _key_column_problems(place, key, pipeline.source)
    kind = pipeline.source.key_format
    if kind == "string" and len(key) > 1:
        yield Problem(("source", "key_format"), "a key of several columns is not one text: say json, avro or protobuf")


def _create_problems(path: Path, sink: Sink) -> Iterator[Problem]:
    """What is wrong with the table that a sink would make."""
    create = sink.create
    if create is None:
        return
    if sink.delta is None and sink.iceberg is None:
        yield Problem(path, "create is for Delta and Iceberg tables", at_key=True)
        return
    for index, text in enumerate(create.partition):
        try:
            part = partition_part(text)
        except ValueError as error:
            yield Problem((*path, "partition", index), str(error))
            continue
        if sink.delta is not None and part.transform != "identity":
            yield Problem((*path, "partition", index), f"Delta partitions by columns; make {text} one in the query")
    if sink.delta is not None and create.sort:
        yield Problem((*path, "sort"), "a Delta table has no sort order", at_key=True)
    if sink.delta is not None and create.location is not None:
        yield Problem((*path, "location"), "the location of a Delta table is the path after delta:", at_key=True)


def _key_column_problems(place: Path, key: tuple[str, ...], source: Source) -> Iterator[Problem]:
    """What is wrong with a key whose columns are fields of the value."""
    if has_schema_ids(source):
        return  # the registry has the schema
    try:
        fields = {field.name: field.type for field in decoder_of(source).fields}
    except Rejected:
        return  # not inferred yet, or wrong, and that is said elsewhere
    for name in key:
        if name not in fields and name != "_key":
            known = ", ".join((*fields, "_key"))
            yield Problem(
                place, f"{name} is no column of the rows; they have {known}, and transform.sql can make others"
            )
        elif name in fields and pa.types.is_floating(fields[name]):
            yield Problem(
                place, f"{name} is {fields[name]}, and such numbers are no key: two that look the same may differ"
            )
        elif name in fields and pa.types.is_nested(fields[name]):
            yield Problem(place, f"{name} is {fields[name]}, and a key has simple columns")


def _topic_sink_problems(path: Path, sink: Sink) -> Iterator[Problem]:
    yield from _topic_problems((*path, "topic"), sink.topic or "")
    if sink.catalog is not None:
        yield Problem((*path, "catalog"), "a catalog is for Iceberg", at_key=True)
    if sink.upkeep is not None:
        yield Problem((*path, "upkeep"), "upkeep is for tables", at_key=True)


def _table_sink_problems(path: Path, sink: Sink) -> Iterator[Problem]:
    if sink.delivery == "at-least-once":
        yield Problem((*path, "delivery"), "a table gets every row exactly once; leave delivery out")
    if sink.catalog is not None and sink.iceberg is None:
        yield Problem((*path, "catalog"), "a catalog is for Iceberg", at_key=True)
    if sink.upkeep is not None and sink.parquet is not None:
        yield Problem((*path, "upkeep"), "a Parquet directory has no versions that could be expired", at_key=True)
    for name in ("every", "keep") if sink.upkeep is not None else ():
        try:
            seconds(getattr(sink.upkeep, name))
        except ValueError as error:
            yield Problem((*path, "upkeep", name), str(error))
    if sink.iceberg is not None and not re.fullmatch(r"[\w-]+(\.[\w-]+)+", sink.iceberg):
        yield Problem((*path, "iceberg"), f"{sink.iceberg!r} is not of the form namespace.table")


def _error_problems(pipeline: Pipeline) -> Iterator[Problem]:
    errors = pipeline.errors
    if errors.topic is not None:
        yield from _topic_problems(("errors", "topic"), errors.topic)
        if errors.mode != "dead_letter":
            yield Problem(("errors", "topic"), f"a topic of dead letters contradicts mode {errors.mode}")
    tables = any(getattr(sink, kind) is not None for sink in pipeline.sinks for kind in TABLE_KINDS)
    if errors.mode == "dead_letter" and pipeline.sinks and not tables and errors.topic is None:
        yield Problem(
            ("sinks", 0),
            "without a table there is nowhere to keep dead letters: name errors.topic, or say mode: fail or drop",
        )


def _topic_problems(path: Path, name: str) -> Iterator[Problem]:
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        yield Problem(path, f"{name!r} cannot be a topic's name")
