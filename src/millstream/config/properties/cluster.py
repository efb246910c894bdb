"""Settings of a broker that belongs to a cluster of several."""

from __future__ import annotations

from typing import Final

from millstream.config.forms import INT64_MAX, Boolean, Choice, Integer, OptionalHostPort, OptionalInteger
from millstream.config.listeners import Seeds
from millstream.config.property import Property

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name of the choice by rack."""


class ClusterProperties:
    """The addresses with which brokers find each other, where leaders belong, and when a replica counts as in sync."""

    peer_listen = Property(
        "peer.listen",
        OptionalHostPort(lowest_port=1),
        None,
        doc="Address on which other brokers reach this one. They connect to it as it stands here, so it names a host.",
        default_doc="none: a single broker",
        example="broker-1.example.org:9192",
    )
    internal_peer_bind = Property(
        "internal.peer.bind",
        OptionalHostPort(lowest_port=1),
        None,
        doc="Listen for other brokers here, and not at peer.listen, where a proxy of a test stands.",
        hidden=True,
    )
    internal_controller_segment_bytes = Property(
        "internal.controller.segment.bytes",
        OptionalInteger(1, unit="bytes"),
        None,
        doc="Segments of the controller's log in a cluster; no command is kept that a snapshot has. For tests.",
        hidden=True,
    )
    controller_snapshot_ms = Property(
        "metadata.log.max.snapshot.interval.ms",
        Integer(100, 86_400_000, unit="ms"),
        60_000,
        doc="How long after a change of topics, users or settings the controller's state is saved at the latest. A "
        "start replays the changes of up to two such intervals. Apache Kafka's default is an hour.",
    )
    raft_heartbeat_interval_ms = Property(
        "raft.heartbeat.interval.ms",
        Integer(10, 1_000, unit="ms"),  # leaders hand over to followers in contact within 2 s
        150,
        doc="How often a leader tells its replicas that it is alive, by one message per pair of shards. Candidates "
        "without a majority try again after one to two intervals. The same on every broker.",
    )
    raft_election_timeout_ms = Property(
        "raft.election.timeout.ms",
        Integer(100, 60_000, unit="ms"),
        1_500,
        doc="A replica without a sign of its leader for this long, and up to one heartbeat interval more, "
        "stands for election. A leader without a majority steps down after it. At least 4 times "
        "raft.heartbeat.interval.ms. Shorter: a dead broker is replaced sooner, and a slow network or disk changes "
        "leaders for nothing. The same on every broker.",
    )
    seeds = Property(
        "seeds",
        Seeds(),
        (),
        doc="peer.listen addresses of brokers to ask for the cluster at the first start. Brokers that form a new "
        "cluster together are given the same list, which names each of them.",
        default_doc="none: a single broker",
        example="broker-1:9192,broker-2:9192,broker-3:9192",
    )
    replace_broker = Property(
        "broker.replace",
        Boolean(),
        False,
        doc="The data directory that the cluster knows of this broker is lost for good: this one, which is empty, "
        "takes its place, and is filled by the other replicas. Without effect once that has happened.",
    )
    auto_leader_rebalance_enable = Property(
        "auto.leader.rebalance.enable",
        Boolean(),
        True,
        doc="Whether leaders are moved back to the preferred replicas, the first of each partition's list, when those "
        "are in sync again.",
    )
    leader_imbalance_check_interval_seconds = Property(
        "leader.imbalance.check.interval.seconds",
        Integer(1, INT64_MAX, unit="s"),
        60,
        doc="How often the controller looks for leaders to move back. The default of Apache Kafka is 300.",
    )
    replica_selector_class = Property(
        "replica.selector.class",
        Choice("", RACK_AWARE),
        "",
        doc="Which replica a consumer with `client.rack` is sent to: the leader (empty), or one that is in sync and in "
        "the consumer's rack (KIP-392). The same on every broker.",
    )
    partitions_per_shard_max = Property(
        "partitions.per.shard.max",
        Integer(1),
        10_000,
        doc="How many partitions, with their replicas, topics may give a broker for each of its shards. A request for "
        "more is refused; internal topics, and moves away from dead brokers, are not. What a partition costs is in "
        "the page Scale.",
        live=True,
    )
    dead_broker_replicas_move_after_ms = Property(
        "dead.broker.replicas.move.after.ms",
        Integer(-1, unit="ms"),
        900_000,
        doc="The replicas of a broker that has not been alive for this long move to other brokers, as far as there are "
        "enough; -1 leaves them.",
        live=True,
    )
    dead_broker_take_over_after_ms = Property(
        "dead.broker.take.over.after.ms",
        Integer(-1, unit="ms"),
        60_000,
        doc="The shared partitions that a broker with shared.wal=object has alone are restored from the object store "
        "by live brokers when it has not been alive for this long; -1 leaves them until it is back.",
        live=True,
    )
    replica_install_max_bytes_per_second = Property(
        "replica.install.max.bytes.per.second",
        Integer(1 << 20, unit="bytes"),
        100 << 20,
        doc="How fast the replicas of this broker receive logs as files, all together. A replica is sent files if its "
        "leader no longer has every entry that it lacks.",
    )
    leader_replication_throttled_rate = Property(
        "leader.replication.throttled.rate",
        Integer(0, INT64_MAX, unit="bytes"),
        INT64_MAX,
        doc="How many bytes a second this broker sends to replicas that catch up, of partitions that "
        "leader.replication.throttled.replicas of their topic names. New records are not throttled.",
        live=True,
    )
    follower_replication_throttled_rate = Property(
        "follower.replication.throttled.rate",
        Integer(0, INT64_MAX, unit="bytes"),
        INT64_MAX,
        doc="How many bytes a second the replicas of this broker receive as files, of partitions that "
        "follower.replication.throttled.replicas of their topic names.",
        live=True,
    )
    replica_lag_time_max_ms = Property(
        "replica.lag.time.max.ms",
        Integer(1, INT64_MAX, unit="ms"),
        30_000,
        doc="A replica that has not had its leader's whole log for this long is not in sync.",
    )
