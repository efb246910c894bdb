"""Topic properties: the configuration of one topic. ``topic_resolution`` makes it from the topic's own and the node's.

Each property names the node settings of its default in order of precedence (Kafka's synonyms), with the factor between
their units. Values are transferred and stored in Kafka's spelling; the command line converts ``512MiB`` before it
sends.

A value of Kafka's topic properties that this version does not honour is refused with the reason. Properties that
concern only replication or tiered storage are accepted and shown, because they have no effect on a single node.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from millstream.config.event_properties import EventProperties
from millstream.config.forms import Boolean, Form, Only, OptionalInteger, Words
from millstream.config.node_properties import unknown_name
from millstream.config.property import Property, declared
from millstream.config.settings import Settings
from millstream.config.table_properties import TableProperties

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

_THROTTLED = re.compile(r"\d+:\d+")
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


class Synonym(NamedTuple):
    """A node setting that is the default of a topic property. ``factor`` converts its unit into the property's."""

    declaration: Property[Any]
    factor: int = 1

    def topic_value(self, settings: Settings) -> Any:
        """The setting in the topic property's unit; None if it is not set. A negative value means forever in every
        unit.
        """
        value = settings.__dict__[self.declaration.field]
        if value is None or self.factor == 1:
            return value
        return min(value * self.factor, 2**63 - 1) if value >= 0 else -1


class ThrottledReplicas(Words):
    """``*``, or a list of ``partition:broker``."""

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        return words == ("*",) or all(_THROTTLED.fullmatch(word) for word in words)

    def expected(self) -> str:
        return "* or a list of partition:broker, such as 0:1,1:1"


_SYNONYMS: dict[str, tuple[Synonym, ...]] = {}


def _inherits(setting: Property[T], name: str, *, doc: str, example: str = "", effect: bool = True) -> Property[T]:
    """A topic property with the form and default of one node setting."""
    _SYNONYMS[name] = (Synonym(setting),)
    return Property(name, setting.form, setting.default, doc=doc, example=example, effect=effect)


def _inherits_first(
    name: str,
    form: Form[int],
    fallback: int,
    synonyms: tuple[Synonym, ...],
    *,
    doc: str,
    example: str = "",
    effect: bool = True,
) -> Property[int]:
    """A topic property whose default is the first set one of several node settings."""
    _SYNONYMS[name] = synonyms
    return Property(name, form, fallback, doc=doc, example=example, effect=effect)


def _inner(setting: Property[int | None]) -> Form[int]:
    assert isinstance(setting.form, OptionalInteger)
    return setting.form.inner


class TopicConfig(EventProperties, TableProperties):
    """The resolved values of one topic. Immutable; a changed configuration is a new one."""

    overrides: Mapping[str, str]
    """The topic's own properties, by Kafka name."""

    cleanup_policy = _inherits(
        Settings.log_cleanup_policy,
        "cleanup.policy",
        doc="delete: old segments are deleted by retention.ms and retention.bytes. compact: the last record of each "
        "key is kept. Both values together do both.",
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
        doc="Age of a segment's newest record after which the segment is deleted. -1 keeps segments forever.",
        example="7d",
    )
    retention_bytes = _inherits(
        Settings.log_retention_bytes,
        "retention.bytes",
        doc="Size that a partition keeps: its oldest segments are deleted while the others are at least this large. "
        "-1 is no limit.",
        example="10GiB",
    )
    segment_bytes = _inherits(
        Settings.log_segment_bytes,
        "segment.bytes",
        doc="Maximum size of a segment file. A batch that would exceed it begins a new one.",
        example="128MiB",
    )
    segment_ms = _inherits_first(
        "segment.ms",
        _inner(Settings.log_roll_ms),
        168 * _HOUR_MS,
        (Synonym(Settings.log_roll_ms), Synonym(Settings.log_roll_hours, _HOUR_MS)),
        doc="Age of the active segment after which a new one is begun, so that retention can delete the old one.",
        example="1d",
    )
    max_message_bytes = _inherits(
        Settings.message_max_bytes,
        "max.message.bytes",
        doc="Maximum size of a produced batch, after compression.",
    )
    message_timestamp_type = _inherits(
        Settings.log_message_timestamp_type,
        "message.timestamp.type",
        doc="CreateTime keeps the producer's timestamps, LogAppendTime replaces them with the broker's.",
    )
    message_timestamp_before_max_ms = _inherits(
        Settings.log_message_timestamp_before_max_ms,
        "message.timestamp.before.max.ms",
        doc="Maximum age of a record's timestamp with CreateTime. An older record is refused.",
    )
    message_timestamp_after_max_ms = _inherits(
        Settings.log_message_timestamp_after_max_ms,
        "message.timestamp.after.max.ms",
        doc="Maximum time that a record's timestamp may be in the future with CreateTime. A later record is refused.",
    )
    compression_type = _inherits(
        Settings.compression_type,
        "compression.type",
        doc="producer stores each batch as its producer compressed it. With any other value, batches with another "
        "codec are recompressed, without delaying other topics.",
    )
    compression_gzip_level = _inherits(
        Settings.compression_gzip_level,
        "compression.gzip.level",
        doc="Level of gzip if compression.type is gzip. -1 is gzip's default level.",
    )
    compression_lz4_level = _inherits(
        Settings.compression_lz4_level,
        "compression.lz4.level",
        doc="Level of lz4 if compression.type is lz4. 9 is the fast compressor, as in Kafka.",
    )
    compression_zstd_level = _inherits(
        Settings.compression_zstd_level,
        "compression.zstd.level",
        doc="Level of zstd if compression.type is zstd.",
    )
    segment_jitter_ms = _inherits_first(
        "segment.jitter.ms",
        _inner(Settings.log_roll_jitter_ms),
        0,
        (Synonym(Settings.log_roll_jitter_ms), Synonym(Settings.log_roll_jitter_hours, _HOUR_MS)),
        doc="Maximum random reduction of segment.ms per partition, so that many partitions do not roll at once.",
    )
    segment_index_bytes = _inherits(
        Settings.log_index_size_max_bytes,
        "segment.index.bytes",
        doc="Maximum size of a segment's index, which has an entry of 20 bytes per index.interval.bytes. A segment "
        "whose index is full is followed by a new one.",
    )
    preallocate = _inherits(
        Settings.log_preallocate,
        "preallocate",
        doc="Whether the space of a segment file is allocated at its creation. Only false is accepted: a segment "
        "file grows as it is written.",
    )
    follower_throttled_replicas = Property(
        "follower.replication.throttled.replicas",
        ThrottledReplicas(),
        (),
        doc="Replicas (partition:broker, or * for all) that receive files at the rate of "
        "follower.replication.throttled.rate at most.",
    )
    leader_throttled_replicas = Property(
        "leader.replication.throttled.replicas",
        ThrottledReplicas(),
        (),
        doc="Replicas (partition:broker, or * for all) that, while they lead, send to replicas that catch up at the "
        "rate of leader.replication.throttled.rate at most.",
    )
    storage_mode = _inherits(
        Settings.storage_mode,
        "storage.mode",
        doc="local keeps segments on the broker's disk alone. tiered also uploads closed segments to the object store "
        "(objects.url), from which readers of older offsets are served. A tiered topic cannot become local again. "
        "shared keeps records on the disk only until they are in the object store, in objects of many partitions; it "
        "is chosen when a topic is created.",
    )
    retention_local_target_ms = _inherits(
        Settings.retention_local_target_ms,
        "retention.local.target.ms",
        doc="Age of a segment's newest record after which a tiered topic drops the segment from the disk, if it is "
        "archived. -1 is no limit.",
        example="1h",
    )
    retention_local_target_bytes = _inherits(
        Settings.retention_local_target_bytes,
        "retention.local.target.bytes",
        doc="Bytes of a tiered topic's partition that stay on the disk at least; the oldest archived segments beyond "
        "are dropped from it. -1 is no limit.",
        example="1GiB",
    )
    segment_upload_max_ms = _inherits(
        Settings.segment_upload_max_ms,
        "segment.upload.max.ms",
        doc="Age of a tiered topic's active segment after which it is closed, so that it can be archived.",
        example="10m",
    )
    remote_storage_enable = Property(
        "remote.storage.enable",
        Only(False, "a topic is tiered with storage.mode=tiered"),
        False,
        doc="Whether old segments are copied to remote storage. Only false is accepted; use storage.mode.",
    )
    remote_log_copy_disable = Property(
        "remote.log.copy.disable",
        Boolean(),
        False,
        doc="No effect: a topic with storage.mode=tiered is archived. Kafka pauses the copying of segments with it.",
        effect=False,
    )
    remote_log_delete_on_disable = Property(
        "remote.log.delete.on.disable",
        Boolean(),
        False,
        doc="No effect: a tiered topic cannot become local again. Kafka deletes remote data with it.",
        effect=False,
    )
    local_retention_ms = _inherits(
        Settings.log_local_retention_ms,
        "local.retention.ms",
        doc="No effect: retention.local.target.ms says how long a tiered topic stays on the disk.",
        effect=False,
    )
    local_retention_bytes = _inherits(
        Settings.log_local_retention_bytes,
        "local.retention.bytes",
        doc="No effect: retention.local.target.bytes says how much of a tiered topic stays on the disk.",
        effect=False,
    )
    min_insync_replicas = _inherits(
        Settings.min_insync_replicas,
        "min.insync.replicas",
        doc="Number of replicas that a write with acks=all needs, at most the replication factor, as in Kafka. On a "
        "single node it is one.",
    )
    flush_messages = _inherits(
        Settings.log_flush_interval_messages,
        "flush.messages",
        doc="No effect: a shard syncs at the end of each turn, for all topics together. With write.caching only the "
        "answer comes before the sync.",
        effect=False,
    )
    flush_ms = _inherits_first(
        "flush.ms",
        Settings.log_flush_scheduler_interval_ms.form,
        Settings.log_flush_scheduler_interval_ms.default,
        (Synonym(Settings.log_flush_interval_ms), Synonym(Settings.log_flush_scheduler_interval_ms)),
        doc="No effect: a shard syncs at the end of each turn, for all topics together. With write.caching only the "
        "answer comes before the sync.",
        effect=False,
    )
    write_caching = _inherits(
        Settings.write_caching,
        "write.caching",
        doc="Whether writes are acknowledged from memory, before they are synced. Faster, but a crash loses the "
        "newest records.",
    )
    delete_retention_ms = _inherits(
        Settings.log_cleaner_delete_retention_ms,
        "delete.retention.ms",
        doc="Time that a compacted topic keeps a tombstone after the first compaction that met it.",
    )
    min_cleanable_dirty_ratio = _inherits(
        Settings.log_cleaner_min_cleanable_ratio,
        "min.cleanable.dirty.ratio",
        doc="Share of a log, written since its last compaction, beyond which it is compacted again.",
    )
    min_compaction_lag_ms = _inherits(
        Settings.log_cleaner_min_compaction_lag_ms,
        "min.compaction.lag.ms",
        doc="Minimum time that a compacted topic keeps every record, even if a later record has its key.",
        example="1h",
    )
    max_compaction_lag_ms = _inherits(
        Settings.log_cleaner_max_compaction_lag_ms,
        "max.compaction.lag.ms",
        doc="Maximum age of a record that compaction has not seen. The active segment is sealed in time for that.",
        example="1d",
    )
    file_delete_delay_ms = _inherits(
        Settings.log_segment_delete_delay_ms,
        "file.delete.delay.ms",
        doc="Time that files replaced by compaction are kept for running readers. Retention deletes segments at once.",
    )
    index_interval_bytes = _inherits(
        Settings.log_index_interval_bytes,
        "index.interval.bytes",
        doc="Bytes of a segment between two entries of its sparse index.",
    )
    unclean_leader_election_enable = _inherits(
        Settings.unclean_leader_election_enable,
        "unclean.leader.election.enable",
        doc="Whether a replica without all acknowledged records may become leader. Only false is accepted: a majority "
        "elects.",
    )
    internal_segment_bytes = Property(
        "internal.segment.bytes",
        OptionalInteger(1, unit="bytes"),
        None,
        doc="Replaces segment.bytes, without its lower bound. For tests.",
        hidden=True,
    )

    @property
    def is_tiered(self) -> bool:
        """Whether closed segments are archived."""
        return self.storage_mode == "tiered"

    @property
    def is_shared(self) -> bool:
        """Whether committed batches go into shared objects, and the disk keeps only what is not uploaded."""
        return self.storage_mode == "shared"

    @property
    def is_archived(self) -> bool:
        """Whether the object store has the older part of the log."""
        return self.storage_mode != "local"

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted."""
        return "compact" in self.cleanup_policy

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a topic's configuration is immutable, {name} cannot be assigned")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicConfig) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TopicConfig({', '.join(f'{name}={text}' for name, text in sorted(self.overrides.items()))})"


TOPIC_PROPERTIES: Mapping[str, Property[Any]] = MappingProxyType(declared(TopicConfig))
"""Every topic property, by Kafka name."""

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


def remarks_on(changes: Mapping[str, str | None]) -> list[str]:
    """A sentence for each changed topic property that is taken for Kafka's sake and has no effect, for an operator."""
    known = ((name, TOPIC_PROPERTIES.get(name)) for name, value in sorted(changes.items()) if value is not None)
    return [f"{name}: {declaration.doc}" for name, declaration in known if declaration and not declaration.effect]


def synonyms_of(name: str) -> tuple[Synonym, ...]:
    """The node settings that are the default of a topic property, highest precedence first."""
    return _SYNONYMS.get(name, ())


def validate_topic_property(name: str, value: str) -> None:
    """Raise ConfigError if ``value``, in Kafka's spelling, is invalid for the topic property ``name``."""
    topic_property(name).read(value, plain=True)


def default_of(declaration: Property[Any], defaults: Settings) -> Any:
    """The node's default of this property."""
    for synonym in _SYNONYMS.get(declaration.name, ()):
        value = synonym.topic_value(defaults)
        if value is not None:
            return value
    return declaration.default
