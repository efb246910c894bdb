"""One topic's configuration: its own properties over the node's defaults, and the rules across them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from millstream.config.errors import ConfigError
from millstream.config.event_properties import of_events
from millstream.config.forms import INT32_MAX
from millstream.config.relations import shared_needs
from millstream.config.topic_properties import TOPIC_PROPERTIES, TopicConfig, default_of, topic_property

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.config.settings import Settings

INDEX_ENTRY_BYTES: Final = 20
"""Size of one entry of a segment's index (``format.index``)."""

INDEX_INTERVAL_MIN_BYTES: Final = 4096
"""Minimum bytes of a segment per index entry, whatever index.interval.bytes says."""

_SHARED_SEGMENT_BYTES: Final = 16 << 20
"""Largest segment of a shared topic: each goes from the disk as a whole when all of it is uploaded."""

_EVENT_OVERHEAD_BYTES: Final = 4096
"""What a push of one event has around metadata and data, at most."""


def topic_config(overrides: Mapping[str, str], defaults: Settings) -> TopicConfig:
    """Resolve a topic's own properties over the node's defaults.

    Raises ConfigError for an unknown name or a bad value. Relations across the two (a batch must fit a request frame)
    are checked here too.
    """
    resolved = TopicConfig()
    own = resolved.__dict__
    for declaration in TOPIC_PROPERTIES.values():
        own[declaration.field] = default_of(declaration, defaults)
    for name, text in overrides.items():
        declaration = topic_property(name)
        own[declaration.field] = declaration.read(text, plain=True)
    if resolved.internal_segment_bytes is not None:
        own["segment_bytes"] = resolved.internal_segment_bytes
    own["retention_bytes"] = max(resolved.retention_bytes, -1)
    own["segment_bytes"] = min(resolved.segment_bytes, _indexed_bytes(resolved))
    if resolved.is_tiered and resolved.is_compacted:
        if "storage.mode" in overrides:
            raise ConfigError(
                "storage.mode",
                "a compacted topic cannot be tiered, because compaction rewrites segments that are archived. A local "
                "topic that was compacted can be: set cleanup.policy=delete. For compacted records of a tiered topic "
                "create another topic and copy the records",
            )
        own["storage_mode"] = "local"
    _check_shared(resolved, overrides, defaults)
    if resolved.is_tiered and defaults.seeds and not defaults.objects_url:
        raise ConfigError(
            "storage.mode",
            "a tiered topic of a cluster needs an object store that every broker reaches; start each broker with "
            "--set objects.url=URL",
        )
    if resolved.min_compaction_lag_ms > resolved.max_compaction_lag_ms:
        raise ConfigError(
            "min.compaction.lag.ms",
            f"{resolved.min_compaction_lag_ms} is more than max.compaction.lag.ms, which is "
            f"{resolved.max_compaction_lag_ms}",
        )
    if resolved.max_message_bytes > defaults.socket_request_max_bytes:
        if "max.message.bytes" in overrides:
            raise ConfigError(
                "max.message.bytes",
                f"{resolved.max_message_bytes} is more than the broker's socket.request.max.bytes, which is "
                f"{defaults.socket_request_max_bytes}; no such batch could arrive",
            )
        own["max_message_bytes"] = defaults.socket_request_max_bytes
    own["overrides"] = MappingProxyType(dict(overrides))
    _settle_kind(resolved, defaults)
    _check_table(resolved)
    return resolved


def _check_shared(resolved: TopicConfig, overrides: Mapping[str, str], defaults: Settings) -> None:
    """Bound the segments of a shared topic. Raise ConfigError for one that cannot be shared; one shared by default
    becomes local.
    """
    if not resolved.is_shared:
        return
    if resolved.is_compacted:
        why = "a compacted topic cannot be shared, because compaction rewrites what is uploaded"
    elif resolved.has_events:
        why = "an event topic cannot be shared, because its chunks are files; expected local or tiered"
    else:
        why = shared_needs(defaults)
        why = f"a shared topic {why}" if why else ""
    if not why:
        resolved.__dict__["segment_bytes"] = min(resolved.segment_bytes, _SHARED_SEGMENT_BYTES)
    elif "storage.mode" in overrides:
        raise ConfigError("storage.mode", why)
    else:
        resolved.__dict__["storage_mode"] = "local"


def _settle_kind(config: TopicConfig, defaults: Settings) -> None:
    """Refuse what does not go together with the kind of the topic, and give an event topic the limits of its chunks.

    Raises:
        ConfigError: with what was expected.
    """
    if not config.has_events:
        strange = sorted(name for name in config.overrides if of_events(name))
        if strange:
            raise ConfigError(strange[0], "is a property of event topics, expected topic.kind=events beside it")
        return
    if config.is_compacted:
        raise ConfigError(
            "cleanup.policy", "compact needs keys, and events have none, expected delete with topic.kind=events"
        )
    if config.compression_type not in ("producer", "uncompressed"):
        raise ConfigError(
            "compression.type",
            f"{config.compression_type} would keep consumers from reading ranges of data, expected producer with "
            "topic.kind=events",
        )
    if config.event_partition.path:
        raise ConfigError("events.partition", "names a path, expected none: chunks lie in the data directory")
    if config.events_max_bytes + _EVENT_OVERHEAD_BYTES > defaults.socket_request_max_bytes:
        raise ConfigError(
            "events.max.bytes",
            f"{config.events_max_bytes} and {_EVENT_OVERHEAD_BYTES} around it are more than the broker's "
            f"socket.request.max.bytes, which is {defaults.socket_request_max_bytes}; no such event could arrive",
        )
    own = config.__dict__
    own["segment_bytes"] = INT32_MAX
    own["max_message_bytes"] = defaults.socket_request_max_bytes


def _check_table(config: TopicConfig) -> None:
    """Raise ConfigError for properties that contradict each other, or the kind of the topic."""
    if config.table_mode == "off":
        return
    if not config.table_sink:
        raise ConfigError(
            "table.mode", f"{config.table_mode} needs table.sink as well: the table, such as iceberg:lake.orders"
        )
    if config.table_mode != "append" and not config.table_key:
        raise ConfigError(
            "table.mode", f"{config.table_mode} needs table.key as well: the columns that tell rows apart"
        )
    if config.has_events:
        raise ConfigError("table.mode", "an event topic cannot be a table, because events have data beside them")


def _indexed_bytes(config: TopicConfig) -> int:
    """Bytes of a segment that an index of ``segment.index.bytes`` can cover. At least 1, since a first batch always
    fits.
    """
    entries = config.segment_index_bytes // INDEX_ENTRY_BYTES
    return max(entries * max(config.index_interval_bytes, INDEX_INTERVAL_MIN_BYTES), 1)
