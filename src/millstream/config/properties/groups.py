"""Settings of consumer groups, their committed offsets, and idempotent producers."""

from __future__ import annotations

from millstream.config.forms import Choice, Choices, Integer, Short
from millstream.config.property import Property

_MIB = 2**20


class RebalanceProtocols(Choices):
    """Protocols of groups, classic among them."""

    def accepts(self, value: object) -> bool:
        return super().accepts(value) and isinstance(value, tuple) and "classic" in value

    def expected(self) -> str:
        return f"{super().expected()}, with classic among them"


class GroupProperties:
    """Sessions, rebalances, committed offsets, producer ids."""

    group_min_session_timeout_ms = Property(
        "group.min.session.timeout.ms",
        Integer(0, unit="ms"),
        6_000,
        doc="Minimum session timeout that a member may request.",
    )
    group_max_session_timeout_ms = Property(
        "group.max.session.timeout.ms",
        Integer(1, unit="ms"),
        1_800_000,
        doc="Maximum session timeout that a member may request.",
    )
    group_initial_rebalance_delay_ms = Property(
        "group.initial.rebalance.delay.ms",
        Integer(0, unit="ms"),
        3_000,
        doc="Time that the first rebalance of an empty group waits for more members. 0 suits tests.",
    )
    group_max_size = Property(
        "group.max.size", Integer(1), 2**31 - 1, doc="Maximum number of members of one consumer group."
    )
    group_consumer_session_timeout_ms = Property(
        "group.consumer.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="Time without a heartbeat after which a member of a consumer group (KIP-848) is removed.",
    )
    group_consumer_min_session_timeout_ms = Property(
        "group.consumer.min.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="Minimum session timeout of a consumer group (KIP-848).",
    )
    group_consumer_max_session_timeout_ms = Property(
        "group.consumer.max.session.timeout.ms",
        Integer(1, unit="ms"),
        60_000,
        doc="Maximum session timeout of a consumer group (KIP-848).",
    )
    group_consumer_heartbeat_interval_ms = Property(
        "group.consumer.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="Heartbeat interval that the broker gives to members of a consumer group (KIP-848).",
    )
    group_consumer_min_heartbeat_interval_ms = Property(
        "group.consumer.min.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="Minimum heartbeat interval of a consumer group (KIP-848).",
    )
    group_consumer_max_heartbeat_interval_ms = Property(
        "group.consumer.max.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        15_000,
        doc="Maximum heartbeat interval of a consumer group (KIP-848).",
    )
    group_consumer_max_size = Property(
        "group.consumer.max.size",
        Integer(1),
        2**31 - 1,
        doc="Maximum number of members of one consumer group (KIP-848).",
    )
    group_consumer_assignors = Property(
        "group.consumer.assignors",
        Choices("uniform", "range"),
        ("uniform", "range"),
        doc="Assignors that members of a consumer group may request. The first is used if no member requests one.",
    )
    group_consumer_migration_policy = Property(
        "group.consumer.migration.policy",
        Choice("bidirectional", "upgrade", "downgrade", "disabled"),
        "bidirectional",
        doc="Whether a group with members may change its protocol: become a consumer group when a member with the "
        "consumer protocol joins (upgrade), become a classic group when the last such member leaves "
        "(downgrade).",
    )
    group_consumer_assignment_interval_ms = Property(
        "group.consumer.assignment.interval.ms",
        Integer(0, unit="ms"),
        1_000,
        doc="Minimum time between two computations of a consumer group's target assignment.",
        live=True,
    )
    group_consumer_min_assignment_interval_ms = Property(
        "group.consumer.min.assignment.interval.ms",
        Integer(0, unit="ms"),
        0,
        doc="Minimum of consumer.assignment.interval.ms of a consumer group (KIP-1263).",
    )
    group_consumer_max_assignment_interval_ms = Property(
        "group.consumer.max.assignment.interval.ms",
        Integer(0, unit="ms"),
        15_000,
        doc="Maximum of consumer.assignment.interval.ms of a consumer group (KIP-1263).",
    )
    group_consumer_regex_refresh_interval_ms = Property(
        "group.consumer.regex.refresh.interval.ms",
        Integer(10_000, unit="ms"),
        600_000,
        doc="Interval at which the regular expressions of a consumer group are matched again. New topics are found "
        "sooner.",
    )
    group_coordinator_rebalance_protocols = Property(
        "group.coordinator.rebalance.protocols",
        RebalanceProtocols("consumer", "classic", "share", "streams"),
        ("classic", "consumer", "streams"),
        doc="Protocols that groups may use. Without consumer, KIP-848 is refused, without streams "
        "KIP-1071. As in Kafka, classic cannot be left out, and share has no effect here: the feature `share.version` "
        "decides.",
    )
    offsets_topic_num_partitions = Property(
        "offsets.topic.num.partitions",
        Integer(1, 1_000),
        50,
        doc="Number of partitions of __consumer_offsets, fixed at its creation. A group's name decides its partition.",
    )
    offsets_topic_replication_factor = Property(
        "offsets.topic.replication.factor",
        Short(1),
        3,
        doc="Number of replicas of __consumer_offsets. A cluster with fewer brokers gives it an odd number of them, "
        "and more when brokers join; Kafka would not create the topic.",
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
        doc="Time that committed offsets are kept after the group's last member left.",
    )
    offsets_retention_check_interval_ms = Property(
        "offsets.retention.check.interval.ms",
        Integer(1, unit="ms"),
        600_000,
        doc="Interval between two searches for expired offsets.",
    )
    offset_metadata_max_bytes = Property(
        "offset.metadata.max.bytes",
        Integer(0, unit="bytes"),
        4_096,
        doc="Maximum size of the metadata that a consumer may attach to a committed offset.",
    )
    producer_id_expiration_ms = Property(
        "producer.id.expiration.ms",
        Integer(1, unit="ms"),
        86_400_000,
        doc="Time without writes after which a partition drops the state of an idempotent producer.",
        live=True,
    )
    producer_id_expiration_check_interval_ms = Property(
        "producer.id.expiration.check.interval.ms",
        Integer(1, unit="ms"),
        600_000,
        doc="Interval between two searches for idempotent producers whose state has expired.",
    )
    producer_ids_max = Property(
        "producer.ids.max",
        Integer(1),
        20_000,
        doc="Maximum number of idempotent producers with state in all partitions of a shard, 1 KiB each. Beyond it "
        "the producer with the oldest write is dropped.",
    )
