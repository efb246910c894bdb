"""Node-wide defaults of topic properties.

Kafka's names differ from the topic's own properties (``log.segment.bytes`` for ``segment.bytes``), and retention time
has three names. ``millstream.config.topic_properties`` connects them.
"""

from __future__ import annotations

from millstream.config.forms import INT64_MAX, Boolean, Choice, Choices, Integer, Number, Only, OptionalInteger
from millstream.config.property import Property

_MIB = 2**20
_GIB = 2**30


class TopicDefaultProperties:
    """Number of partitions, and the node's default of every topic property."""

    num_partitions = Property(
        "num.partitions", Integer(1, 100_000), 1, doc="Number of partitions of a topic created without one."
    )
    default_replication_factor = Property(
        "default.replication.factor",
        Integer(1, 2**15 - 1),
        1,
        doc="Replication factor of a topic created without one. A single broker has one replica.",
    )
    log_cleanup_policy = Property(
        "log.cleanup.policy",
        Choices("delete", "compact", loose=True),
        ("delete",),
        doc="Default of the topic property cleanup.policy.",
        live=True,
    )
    log_retention_ms = Property(
        "log.retention.ms",
        OptionalInteger(-1, INT64_MAX, unit="ms"),
        None,
        doc="Default of the topic property retention.ms. -1 keeps records forever. Takes precedence over "
        "log.retention.minutes and log.retention.hours.",
        live=True,
    )
    log_retention_minutes = Property(
        "log.retention.minutes",
        OptionalInteger(-1, unit="minutes"),
        None,
        doc="log.retention.ms in minutes. Takes precedence over log.retention.hours.",
    )
    log_retention_hours = Property(
        "log.retention.hours", Integer(-1, unit="hours"), 168, doc="log.retention.ms in hours."
    )
    log_retention_bytes = Property(
        "log.retention.bytes",
        Integer(-INT64_MAX - 1, INT64_MAX, unit="bytes"),
        -1,
        doc="Default of the topic property retention.bytes. -1, like any negative value, is no limit.",
        live=True,
    )
    log_segment_bytes = Property(
        "log.segment.bytes",
        Integer(_MIB, unit="bytes"),
        _GIB,
        doc="Default of the topic property segment.bytes.",
        live=True,
    )
    log_roll_ms = Property(
        "log.roll.ms",
        OptionalInteger(1, INT64_MAX, unit="ms"),
        None,
        doc="Default of the topic property segment.ms. Takes precedence over log.roll.hours.",
        live=True,
    )
    log_roll_hours = Property("log.roll.hours", Integer(1, unit="hours"), 168, doc="log.roll.ms in hours.")
    log_roll_jitter_ms = Property(
        "log.roll.jitter.ms",
        OptionalInteger(0, INT64_MAX, unit="ms"),
        None,
        doc="Default of the topic property segment.jitter.ms. Takes precedence over log.roll.jitter.hours.",
        live=True,
    )
    log_roll_jitter_hours = Property(
        "log.roll.jitter.hours", Integer(0, unit="hours"), 0, doc="log.roll.jitter.ms in hours."
    )
    log_index_size_max_bytes = Property(
        "log.index.size.max.bytes",
        Integer(4, unit="bytes"),
        10 * _MIB,
        doc="Default of the topic property segment.index.bytes.",
        live=True,
    )
    log_preallocate = Property(
        "log.preallocate",
        Only(False, "segment files grow as they are written behind the write-ahead log"),
        False,
        doc="Default of the topic property preallocate.",
        live=True,
    )
    log_local_retention_ms = Property(
        "log.local.retention.ms",
        Integer(-2, INT64_MAX, unit="ms"),
        -2,
        doc="No effect: retention.local.target.ms says how long a tiered topic stays on the disk.",
        effect=False,
        live=True,
    )
    log_local_retention_bytes = Property(
        "log.local.retention.bytes",
        Integer(-2, INT64_MAX, unit="bytes"),
        -2,
        doc="No effect: retention.local.target.bytes says how much of a tiered topic stays on the disk.",
        effect=False,
        live=True,
    )
    log_index_interval_bytes = Property(
        "log.index.interval.bytes",
        Integer(0, unit="bytes"),
        32_768,
        doc="Default of the topic property index.interval.bytes. Apache Kafka's is 4096.",
        live=True,
    )
    log_flush_interval_messages = Property(
        "log.flush.interval.messages",
        Integer(1, INT64_MAX),
        INT64_MAX,
        doc="No effect: a shard syncs at the end of each turn.",
        effect=False,
        live=True,
    )
    log_flush_interval_ms = Property(
        "log.flush.interval.ms",
        OptionalInteger(0, INT64_MAX, unit="ms"),
        None,
        doc="No effect: a shard syncs at the end of each turn.",
        effect=False,
        live=True,
    )
    log_flush_scheduler_interval_ms = Property(
        "log.flush.scheduler.interval.ms",
        Integer(0, INT64_MAX, unit="ms"),
        INT64_MAX,
        doc="No effect: a shard syncs at the end of each turn.",
        effect=False,
    )
    log_message_timestamp_type = Property(
        "log.message.timestamp.type",
        Choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        doc="Default of the topic property message.timestamp.type.",
        live=True,
    )
    log_message_timestamp_before_max_ms = Property(
        "log.message.timestamp.before.max.ms",
        Integer(0, INT64_MAX, unit="ms"),
        INT64_MAX,
        doc="Default of the topic property message.timestamp.before.max.ms.",
        live=True,
    )
    log_message_timestamp_after_max_ms = Property(
        "log.message.timestamp.after.max.ms",
        Integer(0, INT64_MAX, unit="ms"),
        3_600_000,
        doc="Default of the topic property message.timestamp.after.max.ms.",
        live=True,
    )
    message_max_bytes = Property(
        "message.max.bytes",
        Integer(0, unit="bytes"),
        1_048_588,
        doc="Default of the topic property max.message.bytes.",
        live=True,
    )
    compression_type = Property(
        "compression.type",
        Choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        doc="Default of the topic property compression.type.",
        live=True,
    )
    compression_gzip_level = Property(
        "compression.gzip.level",
        Integer(-1, 9, never=0),
        -1,
        doc="Default of the topic property compression.gzip.level.",
        live=True,
    )
    compression_lz4_level = Property(
        "compression.lz4.level",
        Integer(1, 17),
        9,
        doc="Default of the topic property compression.lz4.level.",
        live=True,
    )
    compression_zstd_level = Property(
        "compression.zstd.level",
        Integer(-131_072, 22),
        3,
        doc="Default of the topic property compression.zstd.level.",
        live=True,
    )
    min_insync_replicas = Property(
        "min.insync.replicas", Integer(1), 1, doc="Default of the topic property min.insync.replicas.", live=True
    )
    unclean_leader_election_enable = Property(
        "unclean.leader.election.enable",
        Only(
            False,
            "a majority of the replicas elects, so that no acknowledged record is lost; when a majority of the brokers "
            "is lost for good, 'millstream cluster recover --unsafe' goes on with what is left",
        ),
        False,
        doc="Default of the topic property unclean.leader.election.enable. Only false is accepted.",
        live=True,
    )
    log_cleaner_delete_retention_ms = Property(
        "log.cleaner.delete.retention.ms",
        Integer(0, INT64_MAX, unit="ms"),
        86_400_000,
        doc="Default of the topic property delete.retention.ms.",
        live=True,
    )
    log_cleaner_min_cleanable_ratio = Property(
        "log.cleaner.min.cleanable.ratio",
        Number(0.0, 1.0),
        0.5,
        doc="Default of the topic property min.cleanable.dirty.ratio.",
        live=True,
    )
    log_cleaner_min_compaction_lag_ms = Property(
        "log.cleaner.min.compaction.lag.ms",
        Integer(0, INT64_MAX, unit="ms"),
        0,
        doc="Default of the topic property min.compaction.lag.ms.",
        live=True,
    )
    log_cleaner_max_compaction_lag_ms = Property(
        "log.cleaner.max.compaction.lag.ms",
        Integer(1, INT64_MAX, unit="ms"),
        INT64_MAX,
        doc="Default of the topic property max.compaction.lag.ms.",
        live=True,
    )
    log_segment_delete_delay_ms = Property(
        "log.segment.delete.delay.ms",
        Integer(0, INT64_MAX, unit="ms"),
        60_000,
        doc="Default of the topic property file.delete.delay.ms.",
        live=True,
    )
    write_caching = Property(
        "write.caching.default",
        Boolean(),
        False,
        doc="Default of the topic property write.caching.",
        live=True,
    )
