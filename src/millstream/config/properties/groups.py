"""Consumer groups, their offsets, and idempotent producers."""

from __future__ import annotations

from millstream.config.forms import Choice, Choices, Integer
from millstream.config.property import Property

_MIB = 2**20


class GroupProperties:
    """Sessions, rebalances, committed offsets, producer ids."""

    group_min_session_timeout_ms = Property(
        "group.min.session.timeout.ms",
        Integer(1, unit="ms"),
        6_000,
        doc="The shortest session timeout that a member may ask for.",
    )
    group_max_session_timeout_ms = Property(
        "group.max.session.timeout.ms",
        Integer(1, unit="ms"),
        1_800_000,
        doc="The longest session timeout that a member may ask for.",
    )
    group_initial_rebalance_delay_ms = Property(
        "group.initial.rebalance.delay.ms",
        Integer(0, unit="ms"),
        3_000,
        doc="How long the first rebalance of an empty group waits for more members; 0 suits tests.",
    )
    group_max_size = Property("group.max.size", Integer(1), 2**31 - 1, doc="Members of one consumer group.")
    group_consumer_session_timeout_ms = Property(
        "group.consumer.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="How long a member of a consumer group (KIP-848) may be silent.",
    )
    group_consumer_min_session_timeout_ms = Property(
        "group.consumer.min.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="The shortest session timeout of a consumer group.",
    )
    group_consumer_max_session_timeout_ms = Property(
        "group.consumer.max.session.timeout.ms",
        Integer(1, unit="ms"),
        60_000,
        doc="The longest session timeout of a consumer group.",
    )
    group_consumer_heartbeat_interval_ms = Property(
        "group.consumer.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="How often members of a consumer group are told to send heartbeats.",
    )
    group_consumer_min_heartbeat_interval_ms = Property(
        "group.consumer.min.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="The shortest heartbeat interval of a consumer group.",
    )
    group_consumer_max_heartbeat_interval_ms = Property(
        "group.consumer.max.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        15_000,
        doc="The longest heartbeat interval of a consumer group.",
    )
    group_consumer_max_size = Property(
        "group.consumer.max.size", Integer(1), 2**31 - 1, doc="Members of one consumer group (KIP-848)."
    )
    group_consumer_assignors = Property(
        "group.consumer.assignors",
        Choices("uniform", "range"),
        ("uniform", "range"),
        doc="Assignors that members of a consumer group may ask for; the first one is used when none does.",
    )
    group_consumer_migration_policy = Property(
        "group.consumer.migration.policy",
        Choice("bidirectional", "upgrade", "downgrade", "disabled"),
        "bidirectional",
        doc="Whether a group with members may become a consumer group when one joins that speaks its protocol "
        "(upgrade), and a classic group again when the last of those has gone (downgrade).",
    )
    group_consumer_assignment_interval_ms = Property(
        "group.consumer.assignment.interval.ms",
        Integer(0, 15_000, unit="ms"),
        1_000,
        doc="The target assignment of a consumer group is computed at most once in this time.",
    )
    group_consumer_regex_refresh_interval_ms = Property(
        "group.consumer.regex.refresh.interval.ms",
        Integer(10_000, unit="ms"),
        600_000,
        doc="How often the topics are looked up again that regular expressions of a consumer group match; new topics "
        "are found sooner.",
    )
    offsets_topic_num_partitions = Property(
        "offsets.topic.num.partitions",
        Integer(1, 1_000),
        50,
        doc="Partitions of __consumer_offsets, fixed when it is created; a group's name decides which one keeps it.",
    )
    offsets_topic_segment_bytes = Property(
        "offsets.topic.segment.bytes",
        Integer(_MIB, unit="bytes"),
        100 * _MIB,
        doc="Segment size of __consumer_offsets.",
    )
    offsets_retention_minutes = Property(
        "offsets.retention.minutes",
        Integer(1, unit="minutes"),
        10_080,
        doc="How long the offsets of a group are kept after its last member left.",
    )
    offsets_retention_check_interval_ms = Property(
        "offsets.retention.check.interval.ms",
        Integer(1, unit="ms"),
        600_000,
        doc="How often expired offsets are looked for.",
    )
    offset_metadata_max_bytes = Property(
        "offset.metadata.max.bytes",
        Integer(0, unit="bytes"),
        4_096,
        doc="The longest text that a consumer may attach to an offset.",
    )
    producer_id_expiration_ms = Property(
        "producer.id.expiration.ms",
        Integer(1, unit="ms"),
        86_400_000,
        doc="How long an idempotent producer that writes nothing is remembered by a partition.",
        live=True,
    )
    producer_ids_max = Property(
        "producer.ids.max",
        Integer(1),
        20_000,
        doc="Idempotent producers that all partitions of a shard remember together, 1 KiB each; past it the one "
        "that wrote longest ago is forgotten.",
    )
