"""Topics that are tables: found by their properties, and declared as pipelines.

``table.format=auto`` is decided once, from the registry's subject or from the first records, and kept with the status
of the table, so that a later run on another host decides the same. An empty topic without a subject is not decided.
"""

import http.client
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from millstream.client import Cluster
from millstream.client.schema_registry import RegistryAccess, RegistryRefused, ask
from millstream.errors import Rejected, Unavailable
from millstream.pipeline.checks import sink_name
from millstream.pipeline.inference import infer, sample
from millstream.pipeline.model import Create, ErrorMode, Errors, Format, Mode, Pipeline, Sink, Source, Trigger, Upkeep
from millstream.pipeline.start import source_options

PROPERTIES: Final = (
    "table.mode", "table.sink", "table.key", "table.partition.by", "table.format", "table.target.lag.ms",
    "table.on.error", "table.delete.with.topic",
)  # fmt: skip
_NONE: Final[Mapping[str, str]] = {}
_KEPT_COMMITS: Final = 360
_KEPT_S: Final = 600


class TopicTable(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is a table, as its properties say it. ``sink`` is as in ``table.sink``."""

    topic: str
    topic_id: str
    mode: Mode
    sink: str
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    format: str
    target_lag_ms: int
    on_error: ErrorMode
    delete_with_topic: bool


class Decided(msgspec.Struct, frozen=True):
    """What values are. ``registry`` is set where the registry has their schema; ``schema`` has inferred JSON fields."""

    format: Format
    registry: str | None = None
    schema: dict[str, str] | None = None


def find_tables(cluster: Cluster) -> tuple[dict[str, TopicTable], dict[str, str]]:
    """The topics that are tables now, and the ids of all topics that can be seen, by name.

    Raises:
        MillstreamError: no broker answers.
    """
    topics = {topic.name: topic for topic in cluster.metadata().topics.values() if not topic.error_code}
    ids = {name: topic.topic_id.hex() for name, topic in topics.items()}
    names = [name for name, topic in topics.items() if not topic.is_internal]
    found: dict[str, TopicTable] = {}
    for name, values in cluster.topic_configs(names, PROPERTIES).items():
        if (values.get("table.mode") or "off") != "off":
            found[name] = _table(name, ids[name], values)
    return found, ids


def _table(name: str, topic_id: str, values: Mapping[str, str | None]) -> TopicTable:
    return TopicTable(
        topic=name,
        topic_id=topic_id,
        mode=cast("Mode", values.get("table.mode") or "off"),
        sink=values.get("table.sink") or "",
        key=_words(values.get("table.key")),
        partition_by=_words(values.get("table.partition.by")),
        format=values.get("table.format") or "auto",
        target_lag_ms=int(values.get("table.target.lag.ms") or 20_000),
        on_error=cast("ErrorMode", values.get("table.on.error") or "dead_letter"),
        delete_with_topic=values.get("table.delete.with.topic") == "true",
    )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in (text or "").split(",") if word)


def declared(
    table: TopicTable,
    decided: Decided,
    brokers: str,
    catalog: Mapping[str, str] | None,
    *,
    made: bool,
    security: Mapping[str, str] = _NONE,
) -> Pipeline:
    """The pipeline of a topic.

    Args:
        table: the topic's properties.
        decided: what its values are.
        brokers: of the cluster.
        catalog: for Iceberg tables; None is the embedded one.
        made: the table is the topic's own, which no one else looks after.
        security: properties by which brokers and registry are reached.
    """
    sink = sink_of(table.sink, catalog)
    key = None if table.mode == "append" else list(table.key)
    partition = [part.replace(" ", ", ") for part in table.partition_by]  # words of a list of Kafka's have no commas
    create = Create(partition=partition) if partition else None
    sink = msgspec.structs.replace(sink, mode=table.mode, key=key, create=create)
    if made:
        sink = msgspec.structs.replace(sink, upkeep=_upkeep(table.target_lag_ms / 2000))
    source = Source(topic=table.topic, format=decided.format, registry=decided.registry, schema=decided.schema)
    every = Trigger(every=f"{max(500, table.target_lag_ms // 2)}ms")
    return Pipeline(
        pipeline=table.topic,
        brokers=brokers,
        security=dict(security),
        source=source,
        sinks=[sink],
        errors=Errors(mode=table.on_error),
        trigger=every,
        state=f".millstream/serve/topics/{table.topic}",
    )


def _upkeep(every_s: float) -> Upkeep:
    """An hour of versions at the default lag. Fewer with a shorter one: each commit writes the list of all of them."""
    keep_s = max(_KEPT_S, int(_KEPT_COMMITS * every_s))
    return Upkeep(every=f"{max(60, keep_s // 12)}s", keep=f"{keep_s}s")


def sink_of(text: str, catalog: Mapping[str, str] | None) -> Sink:
    """The sink that a value of ``table.sink`` names."""
    kind, _, target = text.partition(":")
    if kind == "iceberg":
        sink = Sink(iceberg=target, catalog=None if catalog is None else dict(catalog))
    else:
        sink = Sink(delta=target)
    # With the topic's name it is the writer in the table's records, and no pipeline of a file has such a name.
    return msgspec.structs.replace(sink, name=f"topic-{sink_name(sink)}")


def decide(
    table: TopicTable, brokers: str, registry: RegistryAccess | None, security: Mapping[str, str] = _NONE
) -> Decided:
    """What the topic's values are.

    Raises:
        Rejected: the topic is empty, or lacks what its ``table.format`` needs.
        Unavailable: registry or broker do not answer.
    """
    kind = table.format
    if kind in ("raw", "string"):
        return Decided(cast("Format", kind))
    subject = None if registry is None else subject_type(registry, f"{table.topic}-value")
    if subject is not None and kind in ("auto", subject):
        return Decided(subject, None if registry is None else registry.url)
    if kind in ("avro", "protobuf"):
        lacks = (
            "there is no schema registry"
            if registry is None
            else f"{registry.url} has no such subject {table.topic}-value"
        )
        raise Rejected(f"table.format={kind} needs a schema in the registry, and {lacks}")
    source = Source(topic=table.topic)
    reading = Pipeline(pipeline=table.topic, brokers=brokers, security=dict(security), source=source, sinks=[])
    values = list(sample(source_options(reading)))
    if not values:
        raise Rejected(f"topic {table.topic} has no records yet, and its first ones decide what columns the table has")
    if kind == "json" or _most(_is_object, values):
        return Decided("json", schema=infer(values))
    return Decided("string" if _most(_is_text, values) else "raw")


def subject_type(registry: RegistryAccess, subject: str) -> Format | None:
    """The format of a subject's latest schema; None if the registry has none, or the broker no registry.

    Raises:
        Unavailable: it does not answer.
    """
    try:
        found: Any = ask(registry, "GET", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
    except RegistryRefused as error:
        if error.status in (http.client.NOT_FOUND, http.client.NOT_IMPLEMENTED):
            return None
        raise Unavailable(f"the schema registry {registry.url} answers with {error.status}: {error.message}") from error
    kind = str(found.get("schemaType") or "AVRO").lower()
    return cast("Format", kind) if kind in ("avro", "protobuf", "json") else None


def _most(has: Callable[[bytes], bool], values: Sequence[bytes]) -> bool:
    """Whether most of the values are so; the others become dead letters."""
    return 2 * sum(map(has, values)) > len(values)


def _is_object(value: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(value), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
