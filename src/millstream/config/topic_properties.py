"""Topic properties: what a topic may say for itself, and what it is when it says nothing.

Each property names the node settings that its default comes from, in the order of precedence (Kafka's synonyms), with
the factor between their units. Values travel and are stored in Kafka's plain spelling; ``512MiB`` is for people and is
translated by the command line before it is sent.

Values of Kafka's topic properties that this version does not honour are refused with the reason rather than
accepted and ignored. What only replication or tiered storage would ever look at is accepted and shown: it cannot be
wrong here.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from millstream.config.errors import ConfigError
from millstream.config.forms import TYPE_LIST, Boolean, Form, Only, OptionalInteger
from millstream.config.property import Property, declared
from millstream.config.settings import Settings, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

INDEX_ENTRY_BYTES = 16
"""Of a segment's index (``format.index``)."""

INDEX_INTERVAL_MIN_BYTES = 4096
"""No entry of an index covers less of its segment, whatever index.interval.bytes says."""

_THROTTLED = re.compile(r"\d+:\d+")
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


class ThrottledReplicas(Form["tuple[str, ...]"]):
    """``*``, or a list of ``partition:broker``."""

    kafka_type = TYPE_LIST

    def read_plain(self, text: str) -> tuple[str, ...]:
        found = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
        if not self.accepts(found):
            raise ValueError
        return found

    def accepts(self, value: object) -> bool:
        if not isinstance(value, tuple):
            return False
        words: tuple[object, ...] = value
        return words == ("*",) or all(isinstance(word, str) and _THROTTLED.fullmatch(word) for word in words)

    def write(self, value: tuple[str, ...]) -> str:
        return ",".join(value)

    def expected(self) -> str:
        return "* or a list of partition:broker, such as 0:1,1:1"


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
    segment_jitter_ms = _inherits_first(
        "segment.jitter.ms",
        _inner(Settings.log_roll_jitter_ms),
        0,
        (Synonym(Settings.log_roll_jitter_ms), Synonym(Settings.log_roll_jitter_hours, _HOUR_MS)),
        doc="How much earlier than segment.ms a partition may begin a new segment file, each partition another time, "
        "so that many do not do it at once.",
    )
    segment_index_bytes = _inherits(
        Settings.log_index_size_max_bytes,
        "segment.index.bytes",
        doc="A new segment file is begun when the index of the last one would be larger than this, with an entry of 16 "
        "bytes for each index.interval.bytes.",
    )
    preallocate = _inherits(
        Settings.log_preallocate,
        "preallocate",
        doc="Whether the space of a segment file is taken when it is begun: never, it grows as it is written.",
    )
    follower_throttled_replicas = Property(
        "follower.replication.throttled.replicas",
        ThrottledReplicas(),
        (),
        doc="Replicas (partition:broker, or * for all) whose fetching from their leader is slowed down. A single node "
        "has none that fetch.",
    )
    leader_throttled_replicas = Property(
        "leader.replication.throttled.replicas",
        ThrottledReplicas(),
        (),
        doc="Replicas (partition:broker, or * for all) whose sending to followers is slowed down. A single node has no "
        "followers.",
    )
    remote_storage_enable = Property(
        "remote.storage.enable",
        Only(False, "tiered storage is not part of this version"),
        False,
        doc="Whether old segments move to remote storage. This version has none.",
    )
    remote_log_copy_disable = Property(
        "remote.log.copy.disable",
        Boolean(),
        False,
        doc="With remote.storage.enable, whether no more segments are copied.",
    )
    remote_log_delete_on_disable = Property(
        "remote.log.delete.on.disable",
        Boolean(),
        False,
        doc="Whether what is in remote storage goes when remote.storage.enable is turned off.",
    )
    local_retention_ms = _inherits(
        Settings.log_local_retention_ms,
        "local.retention.ms",
        doc="With remote.storage.enable, how long segments stay here too; -2 is retention.ms.",
    )
    local_retention_bytes = _inherits(
        Settings.log_local_retention_bytes,
        "local.retention.bytes",
        doc="With remote.storage.enable, how much stays here too; -2 is retention.bytes.",
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

REFUSED_VALUES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        name: ("false" if declaration.form.value else "true", declaration.form.reason)
        for name, declaration in TOPIC_PROPERTIES.items()
        if isinstance(declaration.form, Only)
    }
)
"""Values of Apache Kafka's topic properties that this version refuses, with the reason."""


def topic_property(name: str) -> Property[Any]:
    """The declaration of a topic property; ConfigError if there is none."""
    declaration = TOPIC_PROPERTIES.get(name)
    if declaration is None:
        raise unknown_name(name, TOPIC_PROPERTIES)
    return declaration


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
    own["retention_bytes"] = max(resolved.retention_bytes, -1)
    own["segment_bytes"] = min(resolved.segment_bytes, _indexed_bytes(resolved))
    if resolved.min_compaction_lag_ms > resolved.max_compaction_lag_ms:
        raise ConfigError(
            "min.compaction.lag.ms",
            f"{resolved.min_compaction_lag_ms} is more than max.compaction.lag.ms, which is "
            f"{resolved.max_compaction_lag_ms}",
        )
    if resolved.max_message_bytes > defaults.socket_request_max_bytes:
        raise ConfigError(
            "max.message.bytes",
            f"{resolved.max_message_bytes} is more than the broker's socket.request.max.bytes, which is "
            f"{defaults.socket_request_max_bytes}; no such batch could arrive",
        )
    own["overrides"] = MappingProxyType(dict(overrides))
    return resolved


def _indexed_bytes(config: TopicConfig) -> int:
    """How much of a segment an index of ``segment.index.bytes`` has room for; a first batch always goes."""
    entries = config.segment_index_bytes // INDEX_ENTRY_BYTES
    return max(entries * max(config.index_interval_bytes, INDEX_INTERVAL_MIN_BYTES), 1)


def default_of(declaration: Property[Any], defaults: Settings) -> Any:
    """What a topic has for this property when it says nothing."""
    for synonym in _SYNONYMS.get(declaration.name, ()):
        value = synonym.topic_value(defaults)
        if value is not None:
            return value
    return declaration.default
