"""Settings of streams groups (KIP-1071)."""

from __future__ import annotations

from millstream.config.forms import Integer
from millstream.config.property import Property


class StreamsGroupProperties:
    """Streams groups: sessions of members, heartbeats, assignment of tasks."""

    group_streams_session_timeout_ms = Property(
        "group.streams.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="Time without a heartbeat after which a member of a streams group is removed.",
    )
    group_streams_min_session_timeout_ms = Property(
        "group.streams.min.session.timeout.ms",
        Integer(1, unit="ms"),
        45_000,
        doc="Minimum of streams.session.timeout.ms of a streams group.",
    )
    group_streams_max_session_timeout_ms = Property(
        "group.streams.max.session.timeout.ms",
        Integer(1, unit="ms"),
        60_000,
        doc="Maximum of streams.session.timeout.ms of a streams group.",
    )
    group_streams_heartbeat_interval_ms = Property(
        "group.streams.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="Heartbeat interval that the broker gives to members of a streams group.",
    )
    group_streams_min_heartbeat_interval_ms = Property(
        "group.streams.min.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        5_000,
        doc="Minimum of streams.heartbeat.interval.ms of a streams group.",
    )
    group_streams_max_heartbeat_interval_ms = Property(
        "group.streams.max.heartbeat.interval.ms",
        Integer(1, unit="ms"),
        15_000,
        doc="Maximum of streams.heartbeat.interval.ms of a streams group.",
    )
    group_streams_max_size = Property(
        "group.streams.max.size",
        Integer(1),
        2**31 - 1,
        doc="Maximum number of members of one streams group. Each thread of an application is one.",
    )
    group_streams_num_standby_replicas = Property(
        "group.streams.num.standby.replicas",
        Integer(0),
        0,
        doc="Number of members that keep a copy of the state of each task of a streams group.",
    )
    group_streams_max_standby_replicas = Property(
        "group.streams.max.standby.replicas",
        Integer(0),
        2,
        doc="Maximum of streams.num.standby.replicas of a streams group.",
    )
    group_streams_initial_rebalance_delay_ms = Property(
        "group.streams.initial.rebalance.delay.ms",
        Integer(0, unit="ms"),
        3_000,
        doc="Time for which a streams group without members waits for more of them when the first one joins, before it "
        "assigns tasks.",
    )
    group_streams_assignment_interval_ms = Property(
        "group.streams.assignment.interval.ms",
        Integer(0, unit="ms"),
        1_000,
        doc="Minimum time between two computations of a streams group's target assignment.",
        live=True,
    )
    group_streams_min_assignment_interval_ms = Property(
        "group.streams.min.assignment.interval.ms",
        Integer(0, unit="ms"),
        0,
        doc="Minimum of streams.assignment.interval.ms of a streams group.",
    )
    group_streams_max_assignment_interval_ms = Property(
        "group.streams.max.assignment.interval.ms",
        Integer(0, unit="ms"),
        15_000,
        doc="Maximum of streams.assignment.interval.ms of a streams group.",
    )
