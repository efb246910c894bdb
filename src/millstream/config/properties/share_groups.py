"""Settings of share groups (KIP-932)."""

from __future__ import annotations

from millstream.config.forms import Choices, Integer, Short
from millstream.config.property import Property


class ShareGroupProperties:
    """Share groups: sessions of members, heartbeats, assignment, delivery."""

    group_share_session_timeout_ms = Property(
        "group.share.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="Time without a heartbeat after which a member of a share group is removed.",
    )
    group_share_min_session_timeout_ms = Property(
        "group.share.min.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="Minimum of share.session.timeout.ms of a share group.",
    )
    group_share_max_session_timeout_ms = Property(
        "group.share.max.session.timeout.ms",
        Integer(1, unit="ms"),
        60_000,
        doc="Maximum of share.session.timeout.ms of a share group.",
    )
    group_share_heartbeat_interval_ms = Property(
        "group.share.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="Heartbeat interval that the broker gives to members of a share group.",
    )
    group_share_min_heartbeat_interval_ms = Property(
        "group.share.min.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="Minimum of share.heartbeat.interval.ms of a share group.",
    )
    group_share_max_heartbeat_interval_ms = Property(
        "group.share.max.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        15_000,
        doc="Maximum of share.heartbeat.interval.ms of a share group.",
    )
    group_share_max_size = Property(
        "group.share.max.size",
        Integer(1, 1_000),
        200,
        doc="Maximum number of members of one share group.",
    )
    group_share_max_share_sessions = Property(
        "group.share.max.share.sessions",
        Integer(1),
        2_000,
        doc="Maximum number of share sessions of one broker: members of share groups that fetch from it. Further ones "
        "are answered SHARE_SESSION_LIMIT_REACHED.",
    )
    group_share_assignors = Property(
        "group.share.assignors",
        Choices("simple"),
        ("simple",),
        doc="The assignor of share groups. There is one.",
    )
    group_share_assignment_interval_ms = Property(
        "group.share.assignment.interval.ms",
        Integer(0, unit="ms"),
        1_000,
        doc="Minimum time between two computations of a share group's target assignment.",
        live=True,
    )
    group_share_min_assignment_interval_ms = Property(
        "group.share.min.assignment.interval.ms",
        Integer(0, unit="ms"),
        0,
        doc="Minimum of share.assignment.interval.ms of a share group.",
    )
    group_share_max_assignment_interval_ms = Property(
        "group.share.max.assignment.interval.ms",
        Integer(0, unit="ms"),
        15_000,
        doc="Maximum of share.assignment.interval.ms of a share group.",
    )
    group_share_record_lock_duration_ms = Property(
        "group.share.record.lock.duration.ms",
        Integer(1_000, 3_600_000, unit="ms"),
        30_000,
        doc="Time after which a record that a member of a share group has acquired is released automatically.",
    )
    group_share_min_record_lock_duration_ms = Property(
        "group.share.min.record.lock.duration.ms",
        Integer(1_000, 30_000, unit="ms"),
        15_000,
        doc="Minimum of share.record.lock.duration.ms of a share group.",
    )
    group_share_max_record_lock_duration_ms = Property(
        "group.share.max.record.lock.duration.ms",
        Integer(30_000, 3_600_000, unit="ms"),
        60_000,
        doc="Maximum of share.record.lock.duration.ms of a share group.",
    )
    group_share_delivery_count_limit = Property(
        "group.share.delivery.count.limit",
        Integer(2, 10),
        5,
        doc="How often a record of a share group is delivered at most.",
    )
    group_share_min_delivery_count_limit = Property(
        "group.share.min.delivery.count.limit",
        Integer(2, 5),
        2,
        doc="Minimum of share.delivery.count.limit of a share group.",
    )
    group_share_max_delivery_count_limit = Property(
        "group.share.max.delivery.count.limit",
        Integer(5, 25),
        10,
        doc="Maximum of share.delivery.count.limit of a share group.",
    )
    group_share_partition_max_record_locks = Property(
        "group.share.partition.max.record.locks",
        Integer(100, 10_000),
        2_000,
        doc="Maximum number of records between the start of a share partition and the last one that was acquired.",
    )
    group_share_min_partition_max_record_locks = Property(
        "group.share.min.partition.max.record.locks",
        Integer(100, 2_000),
        100,
        doc="Minimum of share.partition.max.record.locks of a share group.",
    )
    group_share_max_partition_max_record_locks = Property(
        "group.share.max.partition.max.record.locks",
        Integer(2_000, 10_000),
        4_000,
        doc="Maximum of share.partition.max.record.locks of a share group.",
    )
    share_coordinator_state_topic_num_partitions = Property(
        "share.coordinator.state.topic.num.partitions",
        Integer(1, 1_000),
        50,
        doc="Number of partitions of __share_group_state, which is created when the first share group needs it.",
    )
    share_coordinator_state_topic_replication_factor = Property(
        "share.coordinator.state.topic.replication.factor",
        Short(1),
        3,
        doc="Number of replicas of __share_group_state. A cluster with fewer brokers gives it an odd number of them, "
        "and more when brokers join; Kafka would not create the topic.",
    )
    share_coordinator_state_topic_min_isr = Property(
        "share.coordinator.state.topic.min.isr",
        Short(1),
        2,
        doc="min.insync.replicas of __share_group_state, set at its creation. At most its replication factor counts.",
    )
