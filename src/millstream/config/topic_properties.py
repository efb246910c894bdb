"""Topic properties: what a topic may say for itself, and what it is when it says nothing.

Each property names the node settings that its default comes from, in the order of precedence (Kafka's synonyms), with
the factor between their units. Values travel and are stored in Kafka's plain spelling; ``512MiB`` is for people and is
translated by the command line before it is sent.

Kafka's topic properties that this version does not honour are refused with the reason rather than accepted and ignored;
``UNSUPPORTED`` lists them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from millstream.config.errors import ConfigError
from millstream.config.forms import OptionalInteger
from millstream.config.property import Property, declared
from millstream.config.settings import Settings, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.config.forms import Form

T = TypeVar("T")

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


class Synonym(NamedTuple):
    """A node setting that a topic property's default comes from; ``factor`` turns its unit into the property's."""

    declaration: Property[Any]
    factor: int = 1

    def topic_value(self, settings: Settings) -> Any:
        """The setting in the topic property's unit; None if it is not given. Negative is "forever" in every unit."""
        value = settings.__dict__[self.declaration.field]
        if value is None or self.factor == 1:
            return value
        return min(value * self.factor, 2**63 - 1) if value >= 0 else -1


_SYNONYMS: dict[str, tuple[Synonym, ...]] = {}


def _inherits(setting: Property[T], name: str, *, doc: str, example: str = "") -> Property[T]:
    """A topic property with the form and default of one node setting."""
    _SYNONYMS[name] = (Synonym(setting),)
    return Property(name, setting.form, setting.default, doc=doc, example=example)


def _inherits_first(
    name: str, form: Form[int], fallback: int, synonyms: tuple[Synonym, ...], *, doc: str, example: str = ""
) -> Property[int]:
    """A topic property whose default is the first of several node settings that is given."""
    _SYNONYMS[name] = synonyms
    return Property(name, form, fallback, doc=doc, example=example)


def _inner(setting: Property[int | None]) -> Form[int]:
    assert isinstance(setting.form, OptionalInteger)
    return setting.form.inner


class TopicConfig:
    """The resolved values of one topic. Immutable; a changed configuration is a new one."""

    overrides: Mapping[str, str]
    """What the topic itself says, by Kafka name."""

    cleanup_policy = _inherits(
        Settings.log_cleanup_policy,
        "cleanup.policy",
        doc="delete: old segments go by retention.ms and retention.bytes. compact: of each key the last record is "
        "kept. Both: the two together.",
    )
    retention_ms = _inherits_first(
        "retention.ms",
        _inner(Settings.log_retention_ms),
        168 * _HOUR_MS,
        (
            Synonym(Settings.log_retention_ms),
            Synonym(Settings.log_retention_minutes, _MINUTE_MS),
            Synonym(Settings.log_retention_hours, _HOUR_MS),
        ),
        doc="A segment whose newest record is older than this is deleted; -1 keeps forever.",
        example="7d",
    )
    retention_bytes = _inherits(
        Settings.log_retention_bytes,
        "retention.bytes",
        doc="The oldest segments of a partition are deleted while the rest is at least this large; -1 is no limit.",
        example="10GiB",
    )
    segment_bytes = _inherits(
        Settings.log_segment_bytes,
        "segment.bytes",
        doc="A new segment file is begun when the next batch would make the last one larger than this.",
        example="128MiB",
    )
    segment_ms = _inherits_first(
        "segment.ms",
        _inner(Settings.log_roll_ms),
        168 * _HOUR_MS,
        (Synonym(Settings.log_roll_ms), Synonym(Settings.log_roll_hours, _HOUR_MS)),
        doc="A new segment file is begun when the last one is older than this, so that retention can delete it.",
        example="1d",
    )
    max_message_bytes = _inherits(
        Settings.message_max_bytes,
        "max.message.bytes",
        doc="The largest batch (after compression) that a producer may send.",
    )
    message_timestamp_type = _inherits(
        Settings.log_message_timestamp_type,
        "message.timestamp.type",
        doc="CreateTime keeps the producer's timestamps, LogAppendTime replaces them with the broker's.",
    )
    message_timestamp_before_max_ms = _inherits(
        Settings.log_message_timestamp_before_max_ms,
        "message.timestamp.before.max.ms",
        doc="With CreateTime, a record whose timestamp is further in the past than this is refused.",
    )
    message_timestamp_after_max_ms = _inherits(
        Settings.log_message_timestamp_after_max_ms,
        "message.timestamp.after.max.ms",
        doc="With CreateTime, a record whose timestamp is further in the future than this is refused.",
    )
    compression_type = _inherits(
        Settings.compression_type,
        "compression.type",
        doc="producer keeps each batch as its producer compressed it; otherwise batches of another codec are "
        "compressed anew, beside the path of other topics.",
    )
    compression_gzip_level = _inherits(
        Settings.compression_gzip_level,
        "compression.gzip.level",
        doc="How hard gzip tries where compression.type is gzip; -1 is its usual level.",
    )
    compression_lz4_level = _inherits(
        Settings.compression_lz4_level,
        "compression.lz4.level",
        doc="How hard lz4 tries where compression.type is lz4; 9 is its fast compressor, as in Kafka.",
    )
    compression_zstd_level = _inherits(
        Settings.compression_zstd_level,
        "compression.zstd.level",
        doc="How hard zstd tries where compression.type is zstd.",
    )
    min_insync_replicas = _inherits(
        Settings.min_insync_replicas,
        "min.insync.replicas",
        doc="With acks=all, a write needs this many replicas, or as many as it has if those are fewer, as in Kafka: "
        "one on a single node.",
    )
    flush_messages = _inherits(
        Settings.log_flush_interval_messages,
        "flush.messages",
        doc="With write.caching, sync after this many records. Without it every acknowledged record is synced.",
    )
    flush_ms = _inherits_first(
        "flush.ms",
        Settings.log_flush_scheduler_interval_ms.form,
        Settings.log_flush_scheduler_interval_ms.default,
        (Synonym(Settings.log_flush_interval_ms), Synonym(Settings.log_flush_scheduler_interval_ms)),
        doc="With write.caching, sync at least this often. Without it every acknowledged record is synced.",
    )
    write_caching = _inherits(
        Settings.write_caching,
        "write.caching",
        doc="Acknowledge writes from memory, before they are synced: faster, and a crash loses the newest records.",
    )
    delete_retention_ms = _inherits(
        Settings.log_cleaner_delete_retention_ms,
        "delete.retention.ms",
        doc="How long a compacted topic keeps the mark of a deleted key, from when compaction first came upon it.",
    )
    min_cleanable_dirty_ratio = _inherits(
        Settings.log_cleaner_min_cleanable_ratio,
        "min.cleanable.dirty.ratio",
        doc="A log is compacted when more than this share of it was written since the last time.",
    )
    min_compaction_lag_ms = _inherits(
        Settings.log_cleaner_min_compaction_lag_ms,
        "min.compaction.lag.ms",
        doc="How long every record of a compacted topic is kept, even if a later one has its key.",
        example="1h",
    )
    max_compaction_lag_ms = _inherits(
        Settings.log_cleaner_max_compaction_lag_ms,
        "max.compaction.lag.ms",
        doc="A compacted topic is compacted at the latest when a record is this old; its active segment is sealed in "
        "time for that.",
        example="1d",
    )
    file_delete_delay_ms = _inherits(
        Settings.log_segment_delete_delay_ms,
        "file.delete.delay.ms",
        doc="How long the files that compaction took the place of are kept for whoever still reads them. A segment "
        "that retention deletes goes at once.",
    )
    index_interval_bytes = _inherits(
        Settings.log_index_interval_bytes,
        "index.interval.bytes",
        doc="Bytes of a segment between two entries of its sparse index.",
    )
    unclean_leader_election_enable = _inherits(
        Settings.unclean_leader_election_enable,
        "unclean.leader.election.enable",
        doc="Whether a replica that lacks acknowledged records may lead. Never happens here: a majority elects.",
    )
    internal_segment_bytes = Property(
        "internal.segment.bytes",
        OptionalInteger(1, unit="bytes"),
        None,
        doc="Replaces segment.bytes without its lower bound, for tests.",
        hidden=True,
    )

    @property
    def is_compacted(self) -> bool:
        """Whether the last record of each key is what counts."""
        return "compact" in self.cleanup_policy

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a topic's configuration is immutable, {name} cannot be assigned")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicConfig) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TopicConfig({', '.join(f'{name}={text}' for name, text in sorted(self.overrides.items()))})"


TOPIC_PROPERTIES: Mapping[str, Property[Any]] = MappingProxyType(declared(TopicConfig))
"""Every topic property by its Kafka name."""

_NO_REPLICAS = "a single node has no replication to throttle"
_NO_TIER = "tiered storage is not part of this version"

UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "follower.replication.throttled.replicas": _NO_REPLICAS,
        "leader.replication.throttled.replicas": _NO_REPLICAS,
        "local.retention.bytes": _NO_TIER,
        "local.retention.ms": _NO_TIER,
        "preallocate": "segment files grow as they are written",
        "remote.copy.lag.bytes": _NO_TIER,
        "remote.copy.lag.ms": _NO_TIER,
        "remote.log.copy.disable": _NO_TIER,
        "remote.log.delete.on.disable": _NO_TIER,
        "remote.storage.enable": _NO_TIER,
        "segment.index.bytes": "an index is as large as its segment needs",
        "segment.jitter.ms": "segments roll by size and age alone",
    }
)
"""Apache Kafka's topic properties that this version refuses, with the reason."""


def topic_property(name: str) -> Property[Any]:
    """The declaration of a topic property; ConfigError if there is none or if this version does not honour it."""
    declaration = TOPIC_PROPERTIES.get(name)
    if declaration is not None:
        return declaration
    if name in UNSUPPORTED:
        raise ConfigError(name, f"is not supported: {UNSUPPORTED[name]}")
    raise unknown_name(name, TOPIC_PROPERTIES)


def synonyms_of(name: str) -> tuple[Synonym, ...]:
    """The node settings that give the default of a topic property, highest precedence first."""
    return _SYNONYMS.get(name, ())


def validate_topic_property(name: str, value: str) -> None:
    """Raise ConfigError unless ``value``, in Kafka's plain spelling, may be stored for the topic property ``name``."""
    topic_property(name).read(value, plain=True)


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
    if resolved.max_message_bytes > defaults.socket_request_max_bytes:
        raise ConfigError(
            "max.message.bytes",
            f"{resolved.max_message_bytes} is more than the broker's socket.request.max.bytes, which is "
            f"{defaults.socket_request_max_bytes}; no such batch could arrive",
        )
    own["overrides"] = MappingProxyType(dict(overrides))
    return resolved


def default_of(declaration: Property[Any], defaults: Settings) -> Any:
    """What a topic has for this property when it says nothing."""
    for synonym in _SYNONYMS.get(declaration.name, ()):
        value = synonym.topic_value(defaults)
        if value is not None:
            return value
    return declaration.default
