"""Settings of the object store and of tiered topics."""

from __future__ import annotations

from millstream.config.forms import INT64_MAX, Boolean, Choice, Integer, Text
from millstream.config.property import Property

_MIB = 2**20


class TierProperties:
    """Where archived segments are, how fast they go there, and the defaults of tiered topics."""

    objects_url = Property(
        "objects.url",
        Text("file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"),
        "",
        doc="Object store of tiered topics. Empty is the directory objects below the data directory. Credentials come "
        "from the environment.",
        example="s3://bucket/prefix",
    )
    backup_url = Property(
        "backup.url",
        Text("file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"),
        "",
        doc="Where the backups of this cluster are, for GET /v1/backups. Brokers make none: millstream backup create "
        "does. Credentials come from the environment.",
        example="s3://bucket/backups",
    )
    objects_upload_max_bytes_per_second = Property(
        "objects.upload.max.bytes.per.second",
        Integer(_MIB, INT64_MAX, unit="bytes"),
        256 * _MIB,
        doc="Maximum bytes per second that segments are uploaded with, over all shards. Objects of shared topics have "
        "as much for themselves.",
    )
    cache_type = Property(
        "cache.type",
        Text("none, memory, nvme, or the name of an installed warm cache", required=True),
        "none",
        doc="Warm cache of blocks read from the object store: none, in memory, in files of cache.path, or the one that "
        "an installed package provides under this name.",
    )
    cache_path = Property(
        "cache.path",
        Text("an absolute directory"),
        "",
        doc="Directory of the warm cache with cache.type=nvme, for the broker's user alone (mode 0700). Empty is the "
        "directory cache below the data directory. Encryption of the data directory does not cover another one.",
        example="/mnt/nvme/millstream",
    )
    cache_max_size_bytes = Property(
        "cache.max.size.bytes",
        Integer(4 * _MIB, INT64_MAX, unit="bytes"),
        20 * 1024 * _MIB,
        doc="Maximum size of the warm cache, over all shards.",
    )
    cache_max_segment_age_ms = Property(
        "cache.max.segment.age.ms",
        Integer(1, INT64_MAX, unit="ms"),
        600_000,
        doc="Time after which a block leaves the warm cache, counted from when it came there. How old its records are "
        "does not matter.",
    )
    cache_eviction_policy = Property(
        "cache.eviction.policy",
        Choice("interval", "age", "lru"),
        "interval",
        doc="Which block leaves a full warm cache: the one that its next reader reaches last, the oldest data, or the "
        "longest unused.",
    )
    cache_io = Property(
        "cache.io",
        Choice("auto", "direct", "buffered"),
        "auto",
        doc="How the files of the warm cache are read and written: past the page cache, or through it. auto writes "
        "past it, and reads through it if the cache is smaller than half of the free memory.",
    )
    cache_min_free_percent = Property(
        "cache.min.free.percent",
        Integer(0, 90),
        10,
        doc="Share of the disk under cache.path that stays free. With less, the warm cache shrinks to 80 % of "
        "cache.max.size.bytes and takes nothing more, until half as much again is free.",
    )
    evict_interval_ms = Property(
        "evict.interval.ms",
        Integer(10, INT64_MAX, unit="ms"),
        1000,
        doc="Time between two looks for blocks of the warm cache that are too old. A full cache evicts at once.",
    )
    cache_warmup = Property(
        "cache.warmup",
        Boolean(),
        True,
        doc="false is another name for cache.fill=write: what readers read from the object store is not kept.",
    )
    cache_fill = Property(
        "cache.fill",
        Choice("read", "write", "both"),
        "read",
        doc="What fills the warm cache: blocks read from the object store, blocks that are uploaded, or both.",
    )
    storage_mode = Property(
        "storage.mode.default",
        Choice("local", "tiered", "shared"),
        "local",
        doc="Default of the topic property storage.mode. A compacted topic is local whatever the default is.",
        live=True,
    )
    shared_uncommitted_max_bytes = Property(
        "shared.uncommitted.max.bytes",
        Integer(_MIB, INT64_MAX, unit="bytes"),
        1024 * _MIB,
        doc="Maximum bytes of topics with storage.mode=shared that no object has yet, over all shards. Above it "
        "producers of these topics get a retriable error until uploads have caught up.",
    )
    shared_upload_bytes = Property(
        "shared.upload.bytes",
        Integer(64 * 1024, INT64_MAX, unit="bytes"),
        64 * _MIB,
        doc="Bytes of topics with storage.mode=shared after which a shard uploads them, as objects of at most so many "
        "bytes, and of at most a sixteenth of the shard's memory.",
    )
    shared_upload_interval_ms = Property(
        "shared.upload.interval.ms",
        Integer(1, INT64_MAX, unit="ms"),
        10_000,
        doc="Age of a record of a topic with storage.mode=shared after which it is uploaded, however little there is. "
        "Records of this age may be lost with the broker's disk.",
    )
    shared_wal = Property(
        "shared.wal",
        Choice("disk", "object"),
        "disk",
        doc="What has a record of a topic with storage.mode=shared before it is acknowledged: the write-ahead log on "
        "the disk, or an object in the store as well, so that the disk may be lost. object needs objects.url.",
    )
    shared_wal_interval_ms = Property(
        "shared.wal.interval.ms",
        Integer(1, 60_000, unit="ms"),
        100,
        doc="Time between the beginnings of two objects of the write-ahead log of a shard with shared.wal=object. The "
        "next one begins when the one before is confirmed. Producers wait for it.",
    )
    shared_wal_bytes = Property(
        "shared.wal.bytes",
        Integer(64 * 1024, 64 * _MIB, unit="bytes"),
        8 * _MIB,
        doc="Maximum bytes of records in an object of the write-ahead log with shared.wal=object, but for a larger "
        "batch. With as many waiting the next object does not wait for shared.wal.interval.ms.",
    )
    shared_join_interval_ms = Property(
        "shared.join.interval.ms",
        Integer(1, INT64_MAX, unit="ms"),
        1_200_000,
        doc="Age after which what shared objects have of a partition with storage.mode=shared is joined into an object "
        "of its own, however little there is. Shared objects go when all that is in them was joined.",
    )
    shared_join_bytes = Property(
        "shared.join.bytes",
        Integer(64 * 1024, INT64_MAX, unit="bytes"),
        64 * _MIB,
        doc="Bytes of one partition in shared objects after which they are joined, into an object of about so many "
        "bytes. Ranges of 8 MiB and more stay where they are.",
    )
    retention_local_target_ms = Property(
        "retention.local.target.ms.default",
        Integer(-1, INT64_MAX, unit="ms"),
        86_400_000,
        doc="Default of the topic property retention.local.target.ms.",
        live=True,
    )
    retention_local_target_bytes = Property(
        "retention.local.target.bytes.default",
        Integer(-1, INT64_MAX, unit="bytes"),
        -1,
        doc="Default of the topic property retention.local.target.bytes.",
        live=True,
    )
    segment_upload_max_ms = Property(
        "segment.upload.max.ms.default",
        Integer(1, INT64_MAX, unit="ms"),
        3_600_000,
        doc="Default of the topic property segment.upload.max.ms.",
        live=True,
    )
