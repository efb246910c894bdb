"""Settings of the write-ahead log, checkpoints, compaction and disk space."""

from __future__ import annotations

from millstream.config.forms import DOUBLE_MAX, INT64_MAX, Boolean, Integer, Number, Text
from millstream.config.property import Property

_MIB = 2**20


class StorageProperties:
    """Write-ahead log, checkpoints, compaction and disk space."""

    wal_bytes = Property(
        "wal.bytes",
        Integer(4 * _MIB, INT64_MAX, unit="bytes"),
        256 * _MIB,
        doc="Maximum size of one shard's write-ahead log. When it is full, producers wait for a checkpoint that "
        "frees its oldest part.",
        example="1GiB",
    )
    wal_file_bytes = Property(
        "wal.file.bytes",
        Integer(_MIB, 2**31 - 1, unit="bytes"),
        32 * _MIB,
        doc="Size of one file of the write-ahead log. Files are zero-filled once and reused.",
    )
    wal_pacing_us = Property(
        "wal.pacing.us",
        Integer(0, 1_000_000, unit="µs"),
        500,
        doc="Minimum time between two syncs of a shard under load. It is a quarter longer while few records wait "
        "and more may come. A longer time saves CPU, a shorter one saves latency. A lone request never waits "
        "for it.",
    )
    checkpoint_bytes = Property(
        "checkpoint.bytes",
        Integer(_MIB, INT64_MAX, unit="bytes"),
        128 * _MIB,
        doc="Amount of write-ahead log after which segments are synced.",
    )
    checkpoint_ms = Property(
        "checkpoint.ms",
        Integer(100, INT64_MAX, unit="ms"),
        60_000,
        doc="Maximum time between two syncs of segments while there are writes.",
    )
    storage_direct_io = Property(
        "storage.direct.io",
        Boolean(),
        True,
        doc="Whether the write-ahead log and large writes to segments bypass the page cache (O_DIRECT). Without it "
        "producers cost more CPU and wait longer, but consumers far behind may find their data in the page "
        "cache. On a file system without direct I/O it has no effect.",
    )
    storage_reserve_bytes = Property(
        "storage.reserve.bytes",
        Integer(0, INT64_MAX, unit="bytes"),
        256 * _MIB,
        doc="Free space on the data directory's disk below which producers get a retriable error. Reads, deletions "
        "and internal records continue.",
    )
    log_retention_check_interval_ms = Property(
        "log.retention.check.interval.ms",
        Integer(1, INT64_MAX, unit="ms"),
        300_000,
        doc="Interval between two checks of retention by time and size.",
    )
    log_cleaner_enable = Property(
        "log.cleaner.enable",
        Boolean(),
        True,
        doc="Whether topics with cleanup.policy=compact are compacted, __consumer_offsets among them.",
    )
    log_cleaner_backoff_ms = Property(
        "log.cleaner.backoff.ms",
        Integer(0, INT64_MAX, unit="ms"),
        15_000,
        doc="Wait before the next check when there is nothing to compact.",
        live=True,
    )
    log_cleaner_dedupe_buffer_size = Property(
        "log.cleaner.dedupe.buffer.size",
        Integer(4096, INT64_MAX, unit="bytes"),
        134_217_728,
        doc="Memory for the keys of the log that is being compacted, over all shards, 24 bytes per key, allocated "
        "only during a compaction. A log with more keys is compacted in several passes.",
        live=True,
    )
    log_cleaner_io_buffer_load_factor = Property(
        "log.cleaner.io.buffer.load.factor",
        Number(0.01, 1.0),
        0.9,
        doc="Maximum load of the memory for keys. A higher load holds more keys and finds each more slowly.",
        live=True,
    )
    log_cleaner_io_max_bytes_per_second = Property(
        "log.cleaner.io.max.bytes.per.second",
        Number(1.0),
        DOUBLE_MAX,
        doc="Maximum bytes per second that compaction reads and writes, over all shards.",
        live=True,
    )
    log_cleaner_cpu_percent = Property(
        "log.cleaner.cpu.percent",
        Integer(1, 100),
        50,
        doc="Maximum share of a core, in percent, that compaction uses on each shard. It runs at the lowest priority.",
        live=True,
    )
    internal_disk_factory = Property(
        "internal.disk.factory",
        Text("module:callable"),
        "",
        doc="Replacement for the disk interface. Tests insert a faulty disk.",
        hidden=True,
    )
