"""Every metric of Millstream, declared once.

The table ``METRICS`` decides what exists: slabs lay out their memory by it, and ``/metrics`` and the documentation are
rendered from it. An unknown name or label value fails at start. To add a metric, add a line to the table. Labels take
their values from a closed set, never a client, so that cardinality is bounded by this file. Settings bound how many
topics and groups are labels of ``NAMED`` metrics. Code binds a metric once::

    received = stats.counter("net_received_bytes")          # at construction
    received.inc(n)                                          # on the hot path, about 0.1 µs

A *counter* only grows, a *gauge* is set, a *histogram* counts observations in buckets of powers of two (of µs, bytes or
a count) and keeps their sum. ``per_shard`` metrics are shown per shard, others summed over all processes. Names in the
table carry no prefix. Exposed names carry it, with Prometheus' units: ``net_received_bytes`` becomes
``millstream_net_received_bytes_total``, and a histogram of µs is shown in seconds (``kafka_request_latency`` becomes
``millstream_kafka_request_latency_seconds``).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Kind(enum.Enum):
    """Kind of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(enum.Enum):
    """Unit of a metric; it decides the suffix of the exposed name."""

    COUNT = ""
    BYTES = "bytes"
    MICROSECONDS = "us"  # rendered in seconds
    MILLIONTHS = "millionths"  # of a whole; rendered as a fraction


class Label(msgspec.Struct, frozen=True):
    """A label and the closed set of its values. The set is empty only for ``ASKED`` and ``NAMED`` metrics, whose
    values depend on the node.
    """

    name: str
    values: tuple[str, ...]


class Metric(msgspec.Struct, frozen=True):
    """One line of the table."""

    name: str
    kind: Kind
    doc: str
    unit: Unit = Unit.COUNT
    label: Label | None = None
    per_shard: bool = False
    exponents: tuple[int, int] = (4, 24)  # histograms: first and last exposed bucket, as powers of two

    @property
    def exposed_name(self) -> str:
        """The name in the Prometheus exposition."""
        name = f"millstream_{self.name}"
        if self.unit is Unit.MICROSECONDS:
            name += "_seconds"
        elif self.unit is Unit.BYTES and "bytes" not in self.name:
            name += "_bytes"
        return f"{name}_total" if self.kind is Kind.COUNTER else name


API: Final = Label(
    "api",
    (
        "Produce",
        "Fetch",
        "ListOffsets",
        "Metadata",
        "OffsetCommit",
        "OffsetFetch",
        "FindCoordinator",
        "JoinGroup",
        "Heartbeat",
        "LeaveGroup",
        "SyncGroup",
        "DescribeGroups",
        "ListGroups",
        "ApiVersions",
        "CreateTopics",
        "DeleteTopics",
        "InitProducerId",
        "OffsetForLeaderEpoch",
        "DescribeAcls",
        "CreateAcls",
        "DeleteAcls",
        "DescribeConfigs",
        "CreatePartitions",
        "DeleteGroups",
        "IncrementalAlterConfigs",
        "OffsetDelete",
        "DeleteRecords",
        "AlterConfigs",
        "AlterReplicaLogDirs",
        "DescribeLogDirs",
        "ElectLeaders",
        "AlterPartitionReassignments",
        "ListPartitionReassignments",
        "DescribeClientQuotas",
        "AlterClientQuotas",
        "DescribeQuorum",
        "UpdateFeatures",
        "UnregisterBroker",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
        "ListConfigResources",
        "DescribeTopicPartitions",
        "PushEvents",
        "FeedEvents",
        "FetchEventData",
        "AcknowledgeEvents",
        "EventsMetadata",
        "ReplaceSegments",
        "RestoreBatches",
        "ReserveProducerIds",
        "DescribeVerifiers",
        "RestoreVerifiers",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
        "DescribeProducers",
        "DescribeCluster",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "EndTxn",
        "WriteTxnMarkers",
        "TxnOffsetCommit",
        "DescribeTransactions",
        "ListTransactions",
        "SaslHandshake",
        "SaslAuthenticate",
        "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
        "ShareGroupHeartbeat",
        "ShareGroupDescribe",
        "ShareFetch",
        "ShareAcknowledge",
        "InitializeShareGroupState",
        "ReadShareGroupState",
        "WriteShareGroupState",
        "DeleteShareGroupState",
        "ReadShareGroupStateSummary",
        "StreamsGroupHeartbeat",
        "StreamsGroupDescribe",
        "DescribeShareGroupOffsets",
        "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
        "Other",
    ),
)
QUOTA: Final = Label(
    "quota", ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
)
LOGIN: Final = Label("outcome", ("succeeded", "failed"))
GENERATION: Final = Label("generation", ("0", "1", "2"))
TRANSACTION_STATE: Final = Label(
    "state", ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
)
GROUP_STATE: Final = Label(
    "state",
    ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling", "NotReady"),
)
ACKNOWLEDGEMENT: Final = Label("kind", ("gap", "accept", "release", "reject", "renew"))
BACKGROUND: Final = Label("work", ("housekeeping", "checkpoint", "compaction", "expiry", "loading", "other"))
REPAIR: Final = Label(
    "kind",
    (
        "torn_wal",
        "torn_segment",
        "wal_replayed",
        "index_rebuilt",
        "epochs_rebuilt",
        "producers_rebuilt",
        "replica_lost",
        "other",
    ),
)
PARTITION_STATE: Final = Label("state", ("served", "failed"))
STORAGE_FAULT: Final = Label("kind", ("corruption", "read_error", "write_error", "sync_error", "disk_full", "slow"))
MEMORY: Final = Label("class", ("receive", "cache", "fetch", "ring"))  # iobuf.MemoryClass, lower case
BROKER_STATE: Final = Label("state", ("alive", "fenced"))
HTTP_ROUTE: Final = Label("route", ("metrics", "manifest", "registry", "console", "other"))
LEVEL: Final = Label("level", ("info", "warning", "error"))
PROCESS: Final = Label("process", ())
TOPIC: Final = Label("topic", ())
GROUP: Final = Label("group, topic", ())
DAMAGE: Final = Label("topic, partition, offset, file", ())
VERSION: Final = Label("version", ())
EVENT_POOL: Final = Label("pool", ("producers_metadata", "producers_data", "consumers_metadata", "consumers_desc"))
READ_SOURCE: Final = Label("source", ("cache", "segment", "archive"))
HOT_TIER_EVICTION: Final = Label("reason", ("capacity", "age", "low_disk", "invalid", "fault"))
HOT_TIER_REFUSAL: Final = Label("reason", ("too_large", "worth_less", "low_disk", "off", "other"))
BLOCK_SOURCE: Final = Label("source", ("memory", "hot_tier", "store"))
PART_SOURCE: Final = Label("source", ("memory", "disk", "store"))
OBJECT_OPERATION: Final = Label("operation", ("put", "get", "head", "list", "delete"))
OBJECT_TRANSFER: Final = Label("operation", ("put", "get"))


def _counter(
    name: str, doc: str, unit: Unit = Unit.COUNT, label: Label | None = None, *, per_shard: bool = False
) -> Metric:
    return Metric(name, Kind.COUNTER, doc, unit, label, per_shard)


def _gauge(
    name: str, doc: str, unit: Unit = Unit.COUNT, label: Label | None = None, *, per_shard: bool = False
) -> Metric:
    return Metric(name, Kind.GAUGE, doc, unit, label, per_shard)


def _latency(name: str, doc: str, label: Label | None = None, *, per_shard: bool = False) -> Metric:
    return Metric(name, Kind.HISTOGRAM, doc, Unit.MICROSECONDS, label, per_shard)


def _sizes(name: str, doc: str, unit: Unit, exponents: tuple[int, int]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, doc, unit, exponents=exponents)


_BYTES = Unit.BYTES
_US = Unit.MICROSECONDS

METRICS: Final[tuple[Metric, ...]] = (
    # Connections and frames
    _gauge("net_connections", "Open client connections.", per_shard=True),
    _counter("net_accepted_connections", "Client connections accepted.", per_shard=True),
    _counter("net_refused_connections", "Connections closed at once: max.connections are open."),
    _counter("net_received_bytes", "Bytes read from client sockets.", _BYTES, per_shard=True),
    _counter("net_sent_bytes", "Bytes written to client sockets.", _BYTES, per_shard=True),
    _counter("net_refused_frames", "Connections closed because of bytes that are not a Kafka request."),
    _counter("net_stalled_connections", "Connections closed: incomplete request, or untaken responses."),
    _counter("net_idle_connections_closed", "Connections closed after connections.max.idle.ms."),
    _counter("tls_handshakes", "TLS handshakes of clients that were completed.", per_shard=True),
    _counter("tls_failed_handshakes", "TLS handshakes of clients that failed or took too long."),
    _gauge("tls_half_handshakes", "Connections in their TLS handshake.", per_shard=True),
    _gauge("insecure_listeners", "Addresses that other machines reach in clear or without proof (insecure.listeners)."),
    _gauge("tls_certificate_end", "When the first of this broker's certificates ends, seconds since 1970; 0: none."),
    _gauge("net_waiting_frames", "Connections whose next request waits for memory.", per_shard=True),
    _counter("kafka_logins", "Logins by SASL.", label=LOGIN),
    _counter("audit_records", "Logins, refusals and changes recorded in the audit."),
    _counter("audit_lost_records", "Records of the audit that were lost, because the disk did not take them in time."),
    _counter("audit_topic_records", "Records of the audit that were copied into `audit.topic`."),
    _counter("audit_topic_gaps", "How often files of the audit were removed before `audit.topic` had their records."),
    _latency("kafka_throttle_time", "Throttle times of clients over a quota.", QUOTA),
    _gauge("quota_sharers", "Users and client ids whose use of a quota is remembered.", per_shard=True),
    _gauge("quota_muted_connections", "Connections that are not read, because a quota is exceeded.", per_shard=True),
    # Requests
    _latency("kafka_request_latency", "From a request's last byte to its response handed to the socket.", API),
    # Derived from the histograms at rendering, for all APIs together, per shard
    _counter("kafka_requests", "Requests answered.", per_shard=True),
    _counter("kafka_request_time", "Sum of the latencies of all answered requests.", _US, per_shard=True),
    # Produce and fetch
    _counter("kafka_produce_bytes", "Bytes of record batches accepted.", _BYTES),
    _counter("kafka_produce_batches", "Record batches accepted."),
    _counter("kafka_produce_records", "Records in accepted batches."),
    _counter("kafka_produce_duplicates", "Duplicate batches of idempotent producers, not stored again."),
    _counter("kafka_produce_rejected_batches", "Batches refused for checksum, structure, size, sequence or timestamp."),
    _counter("kafka_produce_inspected_batches", "Batches whose records were checked one by one, as their topic asks."),
    _latency("kafka_produce_inspection_latency", "Time to check a batch's records, where records are checked."),
    _counter("kafka_fetch_bytes", "Bytes of record batches handed to consumers.", _BYTES),
    _gauge("kafka_fetch_waiters", "Fetches that wait for data (fetch.min.bytes, fetch.max.wait.ms).", per_shard=True),
    _gauge("kafka_fetch_sessions", "Incremental fetch sessions.", per_shard=True),
    _counter("kafka_fetch_sessions_evicted", "Fetch sessions evicted in favour of another."),
    _counter("kafka_fetch_cut", "Fetches that returned less because response memory was short."),
    _gauge("kafka_producer_ids", "Idempotent producers with state.", per_shard=True),
    _counter("kafka_producer_ids_expired", "Idempotent producers whose state was dropped, by age or number."),
    # WAL
    _latency("wal_sync_latency", "Sync of one write to the write-ahead log; acks wait for it.", per_shard=True),
    _latency("wal_write_latency", "pwritev of one write to the write-ahead log.", per_shard=True),
    _latency("wal_tick_latency", "One write to the write-ahead log and its sync, seen by the shard.", per_shard=True),
    _counter("wal_ticks", "Writes to the write-ahead log, each synced once for all partitions.", per_shard=True),
    _counter("wal_records", "Batches and notes written to the write-ahead log."),
    _counter("wal_written_bytes", "Bytes written to the write-ahead log.", _BYTES),
    _sizes("wal_tick_records", "Batches and notes in one write to the write-ahead log.", Unit.COUNT, (0, 14)),
    _sizes("wal_tick_bytes", "Bytes of one write to the write-ahead log.", _BYTES, (9, 26)),
    _gauge("wal_used_bytes", "Bytes of the write-ahead log not yet freed by a checkpoint.", _BYTES, per_shard=True),
    _counter("wal_full_waits", "Times that the write-ahead log was full and producers waited for a checkpoint."),
    # Log cache, segments, housekeeping
    _counter("cache_hits", "Reads served from the log cache."),
    _counter("cache_misses", "Reads served from a segment file."),
    _gauge("cache_bytes", "Record bytes held by the log cache.", _BYTES, per_shard=True),
    _counter("cache_evicted_bytes", "Record bytes dropped from the log cache.", _BYTES),
    _counter("read_bytes", "Record bytes read, by source.", _BYTES, READ_SOURCE),
    _counter("cold_reads", "Reads from segment files by the worker."),
    _counter("page_reads", "Reads from segment files in the page cache by the shard itself."),
    _counter("events_fed", "Events whose metadata were read for consumers, by source.", Unit.COUNT, READ_SOURCE),
    _counter("event_data_bytes", "Bytes of events' data that consumers selected, by source.", _BYTES, READ_SOURCE),
    _gauge("event_pool_leased_bytes", "Bytes that pushes and feeds hold of event pools.", _BYTES, EVENT_POOL),
    _counter("event_pool_leases", "Leases from the buffer pools of event partitions.", label=EVENT_POOL),
    _counter("event_pool_waits", "Times that a push or a feed found no free buffer and waited.", label=EVENT_POOL),
    _counter("event_pool_oversized", "Leases of more than a pool has, let through alone.", label=EVENT_POOL),
    _counter("event_files_opened", "Files of chunks that were opened: not in the cache of descriptors."),
    _counter("event_files_reused", "Files of chunks whose descriptor was in the cache."),
    _counter("event_files_overshot", "Files of chunks opened beyond fd_cache_capacity, all others being in use."),
    _latency("cold_read_latency", "One read from a segment file, as the reactor sees it."),
    _gauge("log_partitions", "Partitions that are served.", per_shard=True),
    _gauge("log_segments", "Segment files.", per_shard=True),
    _gauge("log_size_bytes", "Bytes of record batches in all partitions.", _BYTES, per_shard=True),
    _gauge("partitions", "Partitions whose home is the shard, by state.", label=PARTITION_STATE, per_shard=True),
    _counter("partition_failures", "Partitions that were ended by an unexpected exception."),
    _gauge("log_faulty", "Partitions not served because durable data of them are damaged.", per_shard=True),
    _counter("segments_rolled", "Segments sealed by size or age and followed by a new one."),
    _counter("segments_deleted", "Segments deleted by retention, trimming or topic deletion."),
    _counter("segment_written_bytes", "Bytes written to segment files, behind the write-ahead log.", _BYTES),
    _counter("retention_deleted_bytes", "Bytes deleted by retention.", _BYTES),
    _counter("log_cleaner_runs", "Logs compacted."),
    _latency("log_cleaner_run_latency", "Compaction of one log."),
    _counter("log_cleaner_read_bytes", "Bytes of segments read by compaction.", _BYTES),
    _counter("log_cleaner_cleaned_bytes", "Bytes of segments written by compaction.", _BYTES),
    _counter("log_cleaner_removed_records", "Records removed by compaction."),
    _gauge("log_cleaner_last_run", "Time of the last compaction, in seconds since 1970; 0 if none.", per_shard=True),
    _gauge("log_cleaner_max_dirty_percent", "Dirty share of the dirtiest compacted log, in percent.", per_shard=True),
    _gauge("log_cleaner_uncleanable_partitions", "Logs not compacted until the next start; they grow.", per_shard=True),
    _counter("checkpoints", "Checkpoints completed."),
    _latency("checkpoint_latency", "One checkpoint: segments written (paced) and synced, write-ahead log freed."),
    _counter("storage_faults", "Disk faults and damaged data.", label=STORAGE_FAULT),
    _gauge("storage_read_only", "1 while the disk is full and producers are refused.", per_shard=True),
    _counter("recovery_repairs", "Repairs at the start.", label=REPAIR),
    _counter("take_overs", "Disks of dead brokers that were taken over, as this broker has learnt."),
    _counter(
        "take_over_partitions",
        "Partitions of dead brokers that live brokers restore from the object store, as this broker has learnt.",
    ),
    _gauge(
        "take_over_waiting",
        "Partitions of dead brokers that are to be restored by live brokers, and have not been given to any. Shown by "
        "the active controller.",
    ),
    # Tiers
    _counter("archive_uploads", "Segments uploaded to the object store and committed."),
    _counter("archive_uploaded_bytes", "Bytes of segments uploaded and committed.", _BYTES),
    _counter("archive_upload_failures", "Uploads that failed; they are repeated."),
    _counter("archive_replaced_segments", "Archived segments in whose place a job has put other objects."),
    _counter("archive_refused_replacements", "Requests to replace archived segments that were refused."),
    _gauge("archive_lag_bytes", "Bytes of closed segments of tiered topics not yet archived.", _BYTES, per_shard=True),
    _gauge(
        "archive_upload_lag",
        "How long the oldest closed segment of tiered topics waits to be archived, since it was closed.",
        Unit.MICROSECONDS,
        per_shard=True,
    ),
    _gauge(
        "archive_uploads_behind",
        "1 while uploads of tiered topics have ordinary instead of idle priority, because segments wait too long.",
        per_shard=True,
    ),
    _gauge("archive_segments", "Archived segments of tiered topics.", per_shard=True),
    _gauge("archive_size_bytes", "Bytes of archived segments of tiered topics.", _BYTES, per_shard=True),
    _gauge(
        "shared_uncommitted_bytes", "Bytes of shared topics that no committed object has.", _BYTES, per_shard=True
    ),
    _gauge(
        "shared_upload_lag",
        "Age of the oldest record of shared topics that no committed object has, since this broker leads it.",
        Unit.MICROSECONDS,
        per_shard=True,
    ),
    _counter("shared_objects", "Objects of shared topics uploaded and committed."),
    _gauge(
        "shared_wal_pending_bytes",
        "Bytes of shared topics that wait for the write-ahead log in the store, about.",
        _BYTES,
        per_shard=True,
    ),
    _counter("shared_wal_objects", "Objects of the write-ahead log in the store."),
    _counter("shared_wal_written_bytes", "Bytes of records in these objects.", _BYTES),
    _latency("shared_wal_latency", "One such object, from its beginning until the store has it."),
    _counter("shared_joins", "Objects into which ranges of shared objects of one partition were joined."),
    _counter("shared_joined_bytes", "Bytes of these objects.", _BYTES),
    _counter("archive_reads", "Reads from archived segments."),
    _counter("archive_read_failures", "Reads from archived segments that failed; the client repeats them."),
    _latency("archive_read_latency", "One read from an archived segment, as the reactor sees it."),
    _counter("local_dropped_bytes", "Bytes of archived segments dropped from the disk.", _BYTES),
    _counter("archive_blocks", "Blocks of archived segments given to readers.", label=BLOCK_SOURCE),
    _counter("archive_parts", "Parts of manifests in which a segment was looked up.", label=PART_SOURCE),
    _counter("hot_tier_hits", "Blocks served by the warm cache."),
    _counter("hot_tier_misses", "Blocks that the warm cache did not have."),
    _gauge(
        "hot_tier_hit_rate",
        "Share of the blocks asked of the warm cache that it had, since the start.",
        Unit.MILLIONTHS,
        per_shard=True,
    ),
    _counter("hot_tier_fills", "Blocks added to the warm cache."),
    _counter("hot_tier_dropped_fills", "Blocks not added to the warm cache, because too many waited."),
    _counter("hot_tier_refused_fills", "Blocks that the warm cache did not take.", label=HOT_TIER_REFUSAL),
    _counter("hot_tier_evictions", "Blocks that left the warm cache.", label=HOT_TIER_EVICTION),
    _gauge("hot_tier_size_bytes", "Bytes of blocks in the warm cache.", _BYTES, per_shard=True),
    _latency("hot_tier_read_latency", "One read from the warm cache."),
    _latency("object_request_latency", "One request to the object store, its retries included.", OBJECT_OPERATION),
    _counter("object_request_failures", "Requests to the object store that failed.", label=OBJECT_OPERATION),
    _counter("object_hedged_reads", "Reads that the object store answered late, so that it was asked a second time."),
    _counter("object_bytes", "Bytes of requests to the object store that succeeded.", _BYTES, label=OBJECT_TRANSFER),
    # Cluster
    _gauge("cluster_topics", "Topics in the metadata cache (of shard 0)."),
    _gauge("cluster_metadata_revision", "Revision of the metadata cache of each shard.", per_shard=True),
    _counter("controller_commands", "Commands applied by the controller."),
    _counter("controller_snapshots", "Snapshots of the controller's state written."),
    _gauge("cluster_brokers", "Registered brokers, as this broker knows them.", label=BROKER_STATE),
    _gauge("cluster_moves", "Partitions whose replicas move between brokers, as this broker knows them."),
    _gauge("controller_active", "1 on the broker that is the controller of the cluster."),
    _gauge("controller_term", "Raft term of the controller's log."),
    # Replicas
    _gauge("replica_count", "Replicas on this broker of partitions with several replicas.", per_shard=True),
    _gauge("replica_leaders", "Those of them that lead.", per_shard=True),
    _gauge("replica_leaderless", "Those of them that know no leader.", per_shard=True),
    _gauge("replica_under_replicated", "Led partitions with a replica that is not in sync.", per_shard=True),
    _gauge("replica_lag_max", "Records that the replica furthest behind lacks of a led partition.", per_shard=True),
    _gauge("replica_term_max", "Highest Raft term of a partition.", per_shard=True),
    _gauge("replica_lost", "Replicas that count for nothing until their leader has filled them.", per_shard=True),
    _counter("replica_installs", "Logs that replicas here have received as files and adopted."),
    _gauge("replica_installing", "Logs that replicas here are receiving as files now."),
    _gauge("replica_install_left", "Offsets that these logs still lack."),
    _counter("replica_throttled", "Transfers to replicas that were put off by *.replication.throttled.rate."),
    _counter("replica_install_received_bytes", "Bytes of record batches received for such logs.", _BYTES),
    _counter("replica_install_sent_bytes", "Bytes of record batches sent for logs of replicas elsewhere.", _BYTES),
    _counter("replica_looked_at_bytes", "Bytes of segments that were read to find damage.", _BYTES),
    _counter("replica_elections", "Elections won by replicas on this broker.", per_shard=True),
    # Groups
    _gauge("group_count", "Consumer groups.", label=GROUP_STATE),
    _gauge("group_members", "Members of consumer groups."),
    _counter("group_rebalances", "Rebalances completed."),
    _counter("group_expired_members", "Members removed after their session timeout."),
    _counter("group_offset_commits", "Offsets committed."),
    _counter("group_expired_offsets", "Offsets removed after offsets.retention.minutes."),
    # Share groups
    _gauge("share_sessions", "Members of share groups that fetch from this broker.", per_shard=True),
    _gauge("share_partitions", "Partitions that share groups read here; counted for each group.", per_shard=True),
    _counter("share_acquired_records", "Records that members of share groups acquired; each delivery counts."),
    _counter("share_acknowledged_records", "Records that they acknowledged, by kind.", label=ACKNOWLEDGEMENT),
    _counter("share_released_records", "Records released because the session of their member ended."),
    _counter("share_timed_out_records", "Records released because share.record.lock.duration.ms had passed."),
    _counter("share_exhausted_records", "Records archived at share.delivery.count.limit, without an Accept."),
    _counter("share_state_writes", "Writes of the states of share partitions."),
    _counter("share_state_failed_writes", "Those of them that failed. Most are repeated."),
    # Transactions
    _gauge("transactional_ids", "Transactional ids.", label=TRANSACTION_STATE),
    _gauge("transaction_open", "Transactions that are open in partitions led here.", per_shard=True),
    _gauge("transaction_oldest_seconds", "Time since the oldest of them was first seen.", per_shard=True),
    _gauge(
        "transaction_late_partitions",
        "Partitions held back by a transaction open for longer than transaction.max.timeout.ms and five minutes.",
        per_shard=True,
    ),
    # Shard runtime
    _latency("reactor_callback", "One callback of the reactor.", per_shard=True),
    _counter("reactor_stalls", "Callbacks that ran longer than 500 µs.", per_shard=True),
    _counter("reactor_long_stalls", "Callbacks that ran longer than 50 ms.", per_shard=True),
    _counter("reactor_stall_dumps", "Stacks written because a callback passed the stall limit.", per_shard=True),
    _latency("gc_pause", "One garbage collection.", GENERATION, per_shard=True),
    _counter("background_time", "Time spent on background work.", _US, BACKGROUND),
    _counter("ring_hops", "Requests received from other shards for partitions of this shard.", per_shard=True),
    _counter("ring_sent_bytes", "Bytes sent to other shards: descriptors, no payload.", _BYTES, per_shard=True),
    _counter("ring_batches", "Ring records; one carries all messages of a turn.", per_shard=True),
    _counter("ring_wakes", "Doorbells rung because the other shard slept.", per_shard=True),
    _counter("ring_full", "Times that a ring was full and messages waited at the sender.", per_shard=True),
    _counter("mailbox_timeouts", "Calls to other shards that passed their deadline.", per_shard=True),
    _counter("mailbox_refused", "Calls refused because too many were outstanding.", per_shard=True),
    _gauge("mailbox_lent_fragments", "Fragments lent to other shards.", per_shard=True),
    # Memory: filled from the arenas at rendering
    _gauge("memory_capacity_bytes", "Memory of the shard, its part of memory.bytes.", _BYTES, per_shard=True),
    _gauge("memory_in_use_bytes", "Memory of the shard in use.", _BYTES, per_shard=True),
    _gauge("memory_slab_bytes", "Memory of the shard ever touched, and therefore resident.", _BYTES, per_shard=True),
    _gauge("memory_fragments", "Fragments in use.", per_shard=True),
    _gauge("memory_reserved_bytes", "Memory reserved, by purpose.", _BYTES, MEMORY, per_shard=True),
    _gauge("memory_limit_bytes", "Limit of reserved memory, by purpose.", _BYTES, MEMORY, per_shard=True),
    # Edges that are not Kafka, and the log itself
    _counter("http_requests", "Requests to the HTTP port.", label=HTTP_ROUTE),
    _counter("log_lines", "Lines written to the operator's log.", label=LEVEL),
)  # fmt: skip

ASKED: Final[tuple[Metric, ...]] = (
    _counter("process_cpu", "Processor time, user and system, of each process of the broker.", _US, PROCESS),
    _gauge("process_resident_memory_bytes", "Resident memory of each process, shared pages included.", _BYTES, PROCESS),
    _gauge("process_open_files", "Open file descriptors of each process.", label=PROCESS),
    _gauge(
        "process_open_files_limit",
        "Limit of open file descriptors of each process (LimitNOFILE, ulimit -n).",
        label=PROCESS,
    ),
    _gauge("storage_free_bytes", "Free space of the file system that holds the data directory.", _BYTES),
    _gauge("start_time", "Start time of the broker, in seconds since 1970.", _US),
    _gauge("build_info", "Always 1; the label is the running version.", label=VERSION),
)
"""Metrics that no process counts; they are looked up at each scrape (``node``)."""

NAMED: Final[tuple[Metric, ...]] = (
    _counter("topic_received_records", "Records appended to the topic since the start of the broker.", label=TOPIC),
    _counter("topic_received_bytes", "Bytes of record batches appended since the start.", _BYTES, TOPIC),
    _counter("topic_fetched_bytes", "Bytes of record batches read from the topic since the start.", _BYTES, TOPIC),
    _gauge("topic_size_bytes", "Bytes of record batches that the topic holds.", _BYTES, TOPIC),
    _gauge("topics_left_out", "Topics that are not shown: metrics.topics.max."),
    _gauge(
        "group_lag", "Records between the offsets that a group committed and the ends of their partitions.", label=GROUP
    ),
    _gauge("groups_left_out", "Groups of which a part is not shown: metrics.groups.max."),
)
"""Of topics and groups, whose names are labels. Settings bound their number; the first by name are shown. The shards
answer when the page is read."""

LOG_DAMAGE: Final = _gauge("log_damage", "1 for each damaged place found in a log since the start.", label=DAMAGE)
"""Kept apart (``damage``), because its label values are the damaged places."""

BY_NAME: Final[dict[str, Metric]] = {metric.name: metric for metric in METRICS}

assert len(BY_NAME) == len(METRICS), "a metric is declared twice"
assert all(
    len(set(metric.label.values)) == len(metric.label.values) for metric in METRICS if metric.label is not None
), "a label has a value twice"
